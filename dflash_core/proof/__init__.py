"""Proof of checkpoints: steps replayed from one in a fresh process must be those that the run's log tells of."""
