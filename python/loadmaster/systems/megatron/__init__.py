"""Megatron-LM: tensor, data and pipeline parallelism."""
