"""Training of the drafter: one optimizer step, the loop around it, and the log it leaves."""
