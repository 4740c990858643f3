"""Known faults: whether each is still there."""
