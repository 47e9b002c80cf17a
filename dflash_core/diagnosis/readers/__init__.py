"""Readers of training logs: each turns one form of file into a Table; detect.read_any chooses."""
