"""What is written for Lightning: its arguments, taken by Lightning itself where it is installed."""

from __future__ import annotations

from importlib.util import find_spec

from gloo_steps import functions

from loadmaster.transforms.shares import batch_size


def run(case, plan, written):
    """Processes, nodes and sizes are the plan's; Lightning's strategy takes its arguments."""
    file = functions(written)
    processes = len({int(device) for device in plan.running_devices})
    of_trainer = file["TRAINER"]
    assert of_trainer["devices"] * of_trainer["num_nodes"] == processes
    assert of_trainer["precision"] == "32-true"
    assert file["BATCH_OF_EACH"] * processes == file["BATCH"] == batch_size(plan.graph)
    if case["options"]["engine"] == "fsdp":
        assert file["STRATEGY"]["data_parallel_size"] == processes
        assert len(file["UNITS"]) > 0
    if find_spec("lightning") is not None:
        kind = {"ddp": "DDPStrategy", "fsdp": "ModelParallelStrategy"}[case["options"]["engine"]]
        trainer = file["trainer"](accelerator="cpu", logger=False)
        assert type(trainer.strategy).__name__ == kind
        assert trainer.world_size == processes
