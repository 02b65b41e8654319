"""What is written for DeepSpeed, read by its own configuration where it is installed."""

from __future__ import annotations

import json
from importlib.util import find_spec

from loadmaster.systems.deepspeed.check import configuration
from loadmaster.transforms.shares import batch_size


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
    return configuration(json.loads(json.dumps(written)), processes)
