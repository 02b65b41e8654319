"""AutoParallel: placements of PyTorch's DTensor."""
