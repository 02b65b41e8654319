"""PyTorch's FSDP2: ``fully_shard``."""
