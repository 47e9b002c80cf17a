"""Checkpoints: what is saved, how it is committed, and how a run continues from it."""
