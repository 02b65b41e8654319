"""What is written for torch.distributed.pipelining, run on processes of gloo."""

from __future__ import annotations

import torch
import torch.distributed as dist
from gloo_steps import assert_same, functions, on_processes, whole_step
from target_models import built, tensor_of


def run(case, plan, written):
    """What the written file runs is what the model as it is does: a step, or a forward pass."""
    ranks = len(functions(written)["DEVICES"])
    made = built(case["model"])
    if not case.get("train"):
        found = on_processes(ranks, evaluated, written, case["model"])[-1]
        expected = tensor_of(made.module(*made.inputs))
        torch.testing.assert_close(tensor_of(found), expected, rtol=1e-4, atol=1e-6)
        return
    assert_steps([written], case["model"])


def assert_steps(files, name):
    """Steps of a model by files, each for as many ranks, are that of the model as it is."""
    (ranks,) = {len(functions(written)["DEVICES"]) for written in files}
    expected = whole_step(built(name))
    for every in zip(*on_processes(ranks, steps, files, name), strict=True):
        joined = {
            what: {name: tensor for found in every for name, tensor in found[what].items()}
            for what in ("gradients", "parameters")
        }
        (loss,) = (found["loss"] for found in every if found["loss"] is not None)
        assert_same({"loss": loss, **joined}, expected)


def steps(rank, ranks, files, name):
    """What each file's step comes to on a rank."""
    return [trained(rank, ranks, written, name) for written in files]


def trained(rank, ranks, written, name):
    """Mean loss, gradients and parameters of a step of SGD, as far as a rank has them."""
    made = built(name)
    parallelize = functions(written)["parallelize"]
    schedule, modules = parallelize(made.module, made.inputs, made.loss, "cpu")
    optimizer = torch.optim.SGD([p for m in modules for p in m.parameters()], lr=0.1)
    given, losses = made.inputs if rank == 0 else (), []
    schedule.step(*given, target=made.targets, losses=losses)
    parameters = {name: p for m in modules for name, p in m.named_parameters()}
    gradients = {name: p.grad.clone() for name, p in parameters.items()}
    optimizer.step()
    return {
        "loss": torch.stack(losses).mean().detach() if losses else None,
        "gradients": gradients,
        "parameters": {name: p.detach().clone() for name, p in parameters.items()},
    }


def evaluated(rank, ranks, written, name):
    """What the model puts out, on the last rank."""
    made = built(name)
    schedule, _ = functions(written)["parallelize"](made.module, made.inputs, None, "cpu")
    with torch.no_grad():
        found = schedule.eval(*(made.inputs if rank == 0 else ()))
    dist.barrier()
    return found if rank == ranks - 1 else None
