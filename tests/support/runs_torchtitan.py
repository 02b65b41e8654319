"""What is written for torchtitan, taken by its own configuration where it is installed."""

from __future__ import annotations

import tempfile
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

from gloo_steps import functions

from loadmaster.systems.torchtitan.check import words
from loadmaster.transforms.shares import batch_size

#: What torchtitan calls the sizes that a plan is asked for.
DEGREES = {
    "replicate": "data_parallel_replicate_degree",
    "shard": "data_parallel_shard_degree",
    "tp": "tensor_parallel_degree",
    "pp": "pipeline_parallel_degree",
}


def run(case, plan, written):
    """Degrees are those of so many devices, and the batch is that of the model."""
    config = SimpleNamespace(activation_checkpoint="as it was", **as_torchtitan_has_them())
    functions(written)["parallelize"](config)
    said, training = config.parallelism, config.training
    assert config.activation_checkpoint is None
    shares = said.data_parallel_replicate_degree * said.data_parallel_shard_degree
    devices = len({int(device) for device in plan.running_devices})
    assert shares * said.tensor_parallel_degree * said.pipeline_parallel_degree == devices
    assert training.global_batch_size % (training.local_batch_size * shares) == 0
    assert training.global_batch_size == batch_size(plan.graph)
    for name, value in case.get("options", {}).items():
        assert getattr(said, DEGREES[name]) == value
    if said.pipeline_parallel_degree > 1:
        assert training.local_batch_size % said.pipeline_parallel_microbatch_size == 0
        parts = said.module_fqns_per_model_part
        assert len(parts) % said.pipeline_parallel_degree == 0
        modules = [module for part in parts for module in part]
        layers = [f"layers.{i}" for i in range(len(modules) - 3)]
        assert modules == ["tok_embeddings", *layers, "norm", "lm_head"]
    if is_installed():
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "written.py")
            path.write_text(written)
            words(str(path), devices)


def is_installed():
    """Whether torchtitan is, with what its configuration needs."""
    return all(map(find_spec, ("torchtitan", "tyro", "spmd_types")))


def as_torchtitan_has_them():
    """Its parts of a configuration, which take no name that they have not; else any names."""
    if not is_installed():
        return {"parallelism": SimpleNamespace(), "training": SimpleNamespace()}
    from torchtitan.config.configs import ParallelismConfig, TrainingConfig

    return {"parallelism": ParallelismConfig(), "training": TrainingConfig()}
