"""What is written for transformers' Trainer, read by its own arguments."""

from __future__ import annotations

import tempfile
from importlib.util import find_spec
from pathlib import Path

import pytest

from loadmaster.systems.trainer.check import arguments, words
from loadmaster.transforms.shares import batch_size


def run(case, plan, written):
    """Sizes and the engine are the plan's, for Trainer too."""
    pytest.importorskip("transformers", reason="needs transformers")
    engine = case["options"]["engine"]
    if engine == "deepspeed" and find_spec("deepspeed") is None:
        return
    read = as_trainer_reads(written)
    processes = len({int(device) for device in plan.running_devices})
    assert read.per_device_train_batch_size * processes == batch_size(plan.graph)
    assert read.gradient_accumulation_steps == 1
    assert read.optim == "adamw_torch"
    assert bool(read.fsdp) == (engine == "fsdp")
    assert (read.deepspeed is not None) == (engine == "deepspeed")
    if engine == "ddp":
        assert read.ddp_bucket_cap_mb == case["options"].get("bucket_mb", read.ddp_bucket_cap_mb)
    if engine == "fsdp":
        assert read.fsdp_plugin_args["fsdp_version"] == 2
        assert read.fsdp_plugin_args["activation_checkpointing"] == bool(plan.recipe.recompute)


def as_trainer_reads(written):
    """The arguments as Trainer has them."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "training_arguments.yaml")
        path.write_text(written)
        assert words(str(path))["words"].startswith("transformers reads")
        return arguments(str(path))
