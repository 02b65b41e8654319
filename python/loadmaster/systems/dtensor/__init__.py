"""PyTorch's DTensor: parallel styles of modules."""
