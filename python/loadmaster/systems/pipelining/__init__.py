"""``torch.distributed.pipelining``: stages."""
