"""Tapes of parallel programs: replicas, shards, micro-batches, recomputation."""
