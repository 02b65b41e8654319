"""PyTorch's SimpleFSDP: parameters that are gathered when they are read."""
