"""The DFlash drafter: its shape, network, attention, initial weights, head loss and objectives."""
