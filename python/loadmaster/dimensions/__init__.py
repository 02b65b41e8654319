"""Dimensions that the tensors of a graph share, and the ones along which each op can be cut."""
