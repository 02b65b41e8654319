"""What is written for DistributedDataParallel, run on processes of gloo."""

from __future__ import annotations

import torch
import torch.distributed as dist
from gloo_steps import assert_same, functions, on_processes, share, whole_step
from target_models import built


def run(case, plan, written):
    """A step by the written file is that of the model as it is, on every process."""
    k = functions(written)["PROCESSES"]
    expected = whole_step(built(case["model"]))
    for found in on_processes(k, step, written, case["model"]):
        assert_same(found, expected)


def step(rank, k, written, name):
    """Loss, gradients and parameters of a step on a process."""
    file, made = functions(written), built(name)
    model = file["parallelize"](made.module, torch.device("cpu")).eval()
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
