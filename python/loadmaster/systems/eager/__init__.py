"""PyTorch in one process: whole ops on devices."""
