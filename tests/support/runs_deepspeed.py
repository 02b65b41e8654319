"""What is written for DeepSpeed, read by its own configuration where it is installed."""

from __future__ import annotations

import json
import os
from importlib.util import find_spec

from loadmaster.transforms.shares import batch_size


class _Processes:
    """Stands for so many processes."""

    def __init__(self, n):
        self.n = n

    def get_data_parallel_world_size(self):
        return self.n


def run(case, plan, written):
    """Sizes, stage and buckets are the plan's, for DeepSpeed too."""
    zero, batch = written["zero_optimization"], batch_size(plan.graph)
    processes = len({int(device) for device in plan.running_devices})
    assert written["train_batch_size"] == batch
    assert written["train_micro_batch_size_per_gpu"] * processes == batch
    assert zero["stage"] == case.get("options", {}).get("stage", zero["stage"])
    read = as_deepspeed_reads(written, processes)
    if read is None:
        return
    assert read.train_batch_size == batch
    assert read.train_micro_batch_size_per_gpu == batch // processes
    assert read.zero_optimization_stage == zero["stage"]
    assert read.zero_config.reduce_bucket_size == zero["reduce_bucket_size"]
    if zero["stage"] == 3:
        assert read.zero_config.prefetch_bucket_size == zero["stage3_prefetch_bucket_size"]
        assert read.zero_config.param_persistence_threshold == 0


def as_deepspeed_reads(written, processes):
    """The configuration as DeepSpeed has it for so many processes; None: it is not installed."""
    if find_spec("deepspeed") is None:
        return None
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    from deepspeed import comm
    from deepspeed.runtime.config import DeepSpeedConfig

    before = comm.get_rank
    comm.get_rank = lambda *_: 0
    try:
        return DeepSpeedConfig(json.loads(json.dumps(written)), mpu=_Processes(processes))
    finally:
        comm.get_rank = before
