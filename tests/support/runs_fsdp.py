"""What is written for FSDP2, run on processes of gloo."""

from __future__ import annotations

import torch
import torch.distributed as dist
from gloo_steps import assert_same, functions, on_processes, share, whole_step
from target_models import built

from loadmaster.systems.fsdp.write import shards

#: What wrappers of recomputation put into names.
_WRAPPER = "_checkpoint_wrapped_module."


def run(case, plan, written):
    """A step by the written file is that of the model as it is; every process has its shards."""
    k = functions(written)["PROCESSES"]
    expected, lie = whole_step(built(case["model"])), shards(plan)
    found = on_processes(k, step, written, case["model"])
    for rank, one in enumerate(found):
        assert_same(one, expected)
        assert set(one["local"]) == set(lie["parameters"])
        for name, tensor in one["local"].items():
            rows = lie["parameters"][name]["rows"]
            whole = built(case["model"]).module.get_parameter(name).detach()
            assert list(whole.shape) == lie["parameters"][name]["shape"]
            assert bool(rows) == bool(whole.shape)
            part = whole[slice(*rows[rank % lie["mesh"]["shard"]])] if rows else whole
            assert torch.equal(tensor, part), name


def step(rank, k, written, name):
    """Loss, gradients and parameters of a step on a process, and what it has of them at first."""
    file, made = functions(written), built(name)
    model = file["parallelize"](made.module, torch.device("cpu")).eval()
    of_model = {name.replace(_WRAPPER, ""): p for name, p in model.named_parameters()}
    local = {name: p.to_local().detach().clone() for name, p in of_model.items()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs = [share(tensor, rank, k) for tensor in made.inputs]
    assert len(inputs[0]) == file["BATCH_OF_EACH"]
    loss = made.loss(model(*inputs), share(made.targets, rank, k))
    loss.backward()
    dist.all_reduce(mean := loss.detach().clone())
    gradients = {name: p.grad.full_tensor() for name, p in of_model.items()}
    optimizer.step()
    parameters = {name: p.full_tensor().detach() for name, p in of_model.items()}
    return {"loss": mean / k, "gradients": gradients, "parameters": parameters, "local": local}
