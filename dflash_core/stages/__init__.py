"""The stages: each loads its inputs, calls the core once, and leaves its outputs in build/."""
