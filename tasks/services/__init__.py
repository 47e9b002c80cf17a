"""The servers and workers of one machine: what they are, how they start and stop, and what Prefect's server is told."""
