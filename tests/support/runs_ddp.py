"""What is written for DistributedDataParallel, run on processes of gloo."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import torch
import torch.distributed as dist
from gloo_steps import assert_same, functions, on_processes, share, whole_step
from sync_batch_norm import on_cpus
from target_models import built


def run(case, plan, written):
    """A step by the written file is that of the model as it is, on every process."""
    k = functions(written)["PROCESSES"]
    # In training mode batch norms see other batches in each process, unless they are synchronised.
    trains = case.get("options", {}).get("batch_norm") == "synchronised"
    expected = whole_step(made_for(case["model"], trains))
    for found in on_processes(k, step, written, case["model"], trains):
        assert_same(found, expected)


def made_for(name, trains):
    """A model; in training mode in float64, since many batch norms lose more of float32 than is
    allowed.
    """
    made = built(name)
    if not trains:
        return made
    inputs = tuple(tensor.double() for tensor in made.inputs)
    return replace(made, module=made.module.double().train(), inputs=inputs)


def step(rank, k, written, name, trains):
    """Loss, gradients and parameters of a step on a process."""
    with on_cpus() if trains else nullcontext():
        return stepped(rank, k, functions(written), made_for(name, trains))


def stepped(rank, k, file, made):
    model = file["parallelize"](made.module, torch.device("cpu"))
    optimizer = file["optimizer_of"](model, torch.optim.SGD, lr=0.1)
    inputs = [share(tensor, rank, k) for tensor in made.inputs]
    assert len(inputs[0]) == file["BATCH_OF_EACH"]
    loss = made.loss(model(*inputs), share(made.targets, rank, k))
    loss.backward()
    dist.all_reduce(mean := loss.detach().clone())
    of_model = dict(model.module.named_parameters())
    gradients = {name: p.grad.clone() for name, p in of_model.items()}
    optimizer.step()
    parameters = {name: p.detach().clone() for name, p in of_model.items()}
    return {"loss": mean / k, "gradients": gradients, "parameters": parameters}
