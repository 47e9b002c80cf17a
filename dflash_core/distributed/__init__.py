"""More than one process: who does what, the sum over ranks, and features from rank to rank."""
