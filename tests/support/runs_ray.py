"""What is written for Ray Train: its workers, taken by Ray itself where it is installed."""

from __future__ import annotations

from importlib.util import find_spec

from gloo_steps import functions


def run(case, plan, written):
    """A worker for each process of the plan, which runs what its engine's own file does."""
    file = functions(written)
    scaling, n = file["SCALING"], len({int(device) for device in plan.running_devices})
    assert scaling["num_workers"] == file["PROCESSES"] == n
    assert scaling["use_gpu"]
    assert scaling["resources_per_worker"] == {"GPU": 1}
    assert file["TORCH"] == {"backend": "nccl"}
    assert callable(file["start"])
    assert callable(file["parallelize"])
    if find_spec("ray") is not None:
        from ray.train import ScalingConfig

        assert ScalingConfig(**scaling).total_resources == {"GPU": n}
