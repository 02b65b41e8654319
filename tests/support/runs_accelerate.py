"""What is written for accelerate, read by its launcher, and its FSDP2 run on processes of gloo."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from gloo_steps import assert_same, on_processes, share, whole_step
from target_models import built

from loadmaster.systems.accelerate_config.check import launched

#: What accelerate puts into the environment.
_PREFIXES = ("FSDP_", "ACCELERATE_", "PARALLELISM_CONFIG_")


def run(case, plan, written):
    """Its launcher starts the plan's processes and engine; a step of FSDP2 is the model's own."""
    pytest.importorskip("accelerate", reason="needs accelerate")
    processes = len({int(device) for device in plan.running_devices})
    config, said = as_its_launcher_reads(written)
    engine = case["options"]["engine"]
    kinds = {"ddp": "MULTI_GPU", "fsdp": "FSDP", "deepspeed": "DEEPSPEED"}
    assert config.distributed_type == (kinds[engine] if processes > 1 else "NO")
    assert config.num_processes == processes
    if engine == "fsdp":
        words = set(plan.recipe.units.values()) - {plan.recipe.units["."]}
        assert said["FSDP_RESHARD_AFTER_FORWARD"] == ("true" if words else "false")
        expected = whole_step(built(case["model"]))
        for one in on_processes(processes, step, said, case["model"]):
            assert_same(one, expected)
            units = {unit for unit in one["units"] if unit}
            assert set(units_of(plan)) <= units
            # accelerate has the ends of a model as units, too.
            ends = {"norm", "model.norm", "model.embed_tokens", "lm_head"}
            assert units - set(units_of(plan)) <= ends


def units_of(plan):
    """The modules that the plan gathers one by one."""
    from loadmaster.systems.shared.sharded_plans import modules_in

    return modules_in(plan, [pattern for pattern in plan.recipe.units if pattern != "."])


def as_its_launcher_reads(written):
    """The configuration, and the environment of a process that ``accelerate launch`` starts."""
    from accelerate.commands.config.config_args import load_config_from_file
    from accelerate.utils.launch import prepare_multi_gpu_env

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "accelerate.yaml")
        path.write_text(written)
        return load_config_from_file(str(path)), {
            name: text
            for name, text in prepare_multi_gpu_env(launched(str(path))).items()
            if name.startswith(_PREFIXES)
        }


def sharded_by(said, model, rank):
    """The model as accelerate prepares FSDP2 in the environment of its launcher."""
    from accelerate.utils import FullyShardedDataParallelPlugin
    from accelerate.utils.fsdp_utils import fsdp2_apply_ac, fsdp2_prepare_model

    before = dict(os.environ)
    os.environ.update(said)
    try:
        plugin = FullyShardedDataParallelPlugin()
    finally:
        os.environ.clear()
        os.environ.update(before)
    accelerator = SimpleNamespace(
        state=SimpleNamespace(fsdp_plugin=plugin),
        mixed_precision="no",
        is_main_process=rank == 0,
        device=torch.device("cpu"),
    )
    plugin.set_auto_wrap_policy(model)
    if plugin.activation_checkpointing:
        model = fsdp2_apply_ac(accelerator, model)
    return fsdp2_prepare_model(accelerator, model)


def step(rank, k, said, name):
    """Loss, gradients and parameters of a step of a model that accelerate has wrapped."""
    from torch.distributed.fsdp import FSDPModule

    made = built(name)
    model = sharded_by(said, made.module, rank).eval()
    wrapper = "_checkpoint_wrapped_module"
    units = [
        path.replace(f".{wrapper}", "")
        for path, module in model.named_modules()
        if isinstance(module, FSDPModule)
    ]
    of_model = {key.replace(f"{wrapper}.", ""): p for key, p in model.named_parameters()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = made.loss(model(*(share(x, rank, k) for x in made.inputs)), share(made.targets, rank, k))
    loss.backward()
    dist.all_reduce(mean := loss.detach().clone())
    gradients = {key: p.grad.full_tensor() for key, p in of_model.items()}
    optimizer.step()
    parameters = {key: p.full_tensor().detach() for key, p in of_model.items()}
    return {"loss": mean / k, "gradients": gradients, "parameters": parameters, "units": units}
