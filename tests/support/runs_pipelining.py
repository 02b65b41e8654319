"""What is written for torch.distributed.pipelining, run on processes of gloo."""

from __future__ import annotations

import torch
import torch.distributed as dist
from gloo_steps import assert_same, functions, on_processes, whole_step
from target_models import built, tensor_of


def run(case, plan, written):
    """What the written file runs is what the model as it is does: a step, or a forward pass."""
    ranks = functions(written)["PROCESSES"]
    made = built(case["model"])
    if not case.get("train"):
        found = on_processes(ranks, evaluated, written, case["model"])[-1]
        expected = tensor_of(made.module(*made.inputs))
        torch.testing.assert_close(tensor_of(found), expected, rtol=1e-4, atol=1e-6)
        return
    assert_steps([written], case["model"])


def assert_steps(files, name):
    """Steps of a model by files, each for as many ranks, are that of the model as it is."""
    (ranks,) = {functions(written)["PROCESSES"] for written in files}
    expected = whole_step(built(name))
    for every in zip(*on_processes(ranks, steps, files, name), strict=True):
        assert_same(joined(every), expected)


def joined(every):
    """What ranks have of a step, together; each parameter is on one of them."""
    parts = {
        what: {name: tensor for found in every for name, tensor in found[what].items()}
        for what in ("gradients", "parameters")
    }
    assert len(parts["parameters"]) == sum(len(found["parameters"]) for found in every)
    loss = every[0]["loss"]
    assert all(torch.equal(found["loss"], loss) for found in every)
    whole = torch.cat([gradient.flatten() for gradient in parts["gradients"].values()])
    for found in every:
        torch.testing.assert_close(found["norm"], whole.norm())
    return {"loss": loss, **parts}


def steps(rank, ranks, files, name):
    """What each file's step comes to on a rank."""
    found = []
    for written in files:
        made = built(name)
        found.append(trained(written, made.module, (made.inputs, {}, (made.targets,)), made.loss))
    return found


def step_of(rank, ranks, written, step):
    """What a drawn step comes to on a rank."""
    return trained(written, step.module(), step.batch, step.loss_of)


def trained(written, module, batch, loss_of):
    """Mean loss, gradients and parameters of a step of SGD, as far as a rank has them."""
    file = functions(written)
    model = file["parallelize"](module, torch.device("cpu"), batch, loss_of)
    loss = file["backward"](model, batch)
    parameters = dict(model.named_parameters())
    gradients = {name: p.grad.clone() for name, p in parameters.items() if p.grad is not None}
    norm = file["clip"](model, 1e6)
    file["optimizer_of"](model, torch.optim.SGD, lr=0.1).step()
    return {
        "loss": loss,
        "norm": norm,
        "gradients": gradients,
        "parameters": {name: p.detach().clone() for name, p in parameters.items()},
    }


def evaluated(rank, ranks, written, name):
    """What the model puts out, on the last rank."""
    file, made = functions(written), built(name)
    model = file["parallelize"](made.module, torch.device("cpu"), (made.inputs, {}, ()))
    found = file["evaluate"](model, *made.inputs)
    dist.barrier()
    return found if rank == ranks - 1 else None


def in_one_process(written, module, batch, loss_of=None):
    """What the stages of a file put out one after another for each micro-batch, and the names of
    the parameters of each stage.
    """
    file, cpu = functions(written), torch.device("cpu")
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    calls, result, tensors = file["_recorded"](module, batch, loss_of)
    parts = file["_cut"](calls, result, tensors)
    module.kept, stages = {}, []
    for part, reads in zip(parts, [*(later.reads for later in parts[1:]), ()], strict=True):
        sends, last = {one: tensors[one].dtype for one in reads}, None if reads else result
        stages.append(file["_Stage"](module, part, sends, last, cpu))
    module.micro_batches, outputs = file["_micro_batches"](batch), []
    for number in range(file["MICRO_BATCHES"]):
        sent = ()
        for stage in stages:
            sent = stage(*sent, micro_batch=torch.tensor([number]))
        outputs.append(sent)
    owned = [{names[id(x)] for x in stage.owned() if id(x) in names} for stage in stages]
    return outputs, owned
