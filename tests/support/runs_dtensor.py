"""What is written for DTensor, run on processes of gloo."""

from __future__ import annotations

import json
import tempfile
from math import prod
from pathlib import Path

import parallel_models
import target_models
import torch
from gloo_steps import assert_same, functions, on_processes, whole_step
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.nn.attention import SDPBackend, sdpa_kernel

import loadmaster as lm

#: Axes that share the batch.
OF_BATCH = ("dp", "replicate", "shard")


def run(case, plan, written):
    """A step by the written file is that of the model as it is, on every process."""
    assert_steps([(case["model"], written, shards_of(plan))])


def shards_of(plan):
    """What is written beside the file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "written.py"
        lm.writers.dtensor(plan, path)
        return json.loads(path.with_suffix(".shards.json").read_text())


def assert_steps(files):
    """Steps by files, each with its model and its shards, are those of the models as they are."""
    (size,) = {prod(functions(written)["MESH"].values()) for _, written, _ in files}
    for each in on_processes(size, steps, files):
        for (name, _, _), found in zip(files, each, strict=True):
            assert_same(found, whole_step(built(name)))


def built(name):
    models = parallel_models if name in parallel_models.MODELS else target_models
    return models.built(name)


def steps(rank, k, files):
    """Loss, gradients and parameters of a step of each file on a process."""
    return [step(*file) for file in files]


def step(name, written, shards):
    file, made, whole = functions(written), built(name), built(name).module
    device = torch.device("cpu")  # Plans are for GPUs.
    model = file["parallelize"](made.module, device)
    mesh = init_device_mesh("cpu", tuple(file["MESH"].values()), mesh_dim_names=tuple(file["MESH"]))
    rows = shards["parameters"]
    for name, parameter in model.named_parameters():
        assert_lies(rows[name], mesh, parameter, whole.get_parameter(name).detach())
    optimizer = file["optimizer_of"](model, torch.optim.SGD, lr=0.1)
    batch = file["share_of"]((made.inputs, {}, (made.targets,)), device)
    with sdpa_kernel(SDPBackend.MATH):  # On a CPU DTensor knows attention by its parts alone.
        loss = file["over_processes"](file["backward"](model, batch, made.loss))
    of = dict(model.named_parameters())
    gradients = {name: unmixed(rows[name], mesh, full(p.grad)) for name, p in of.items()}
    optimizer.step()
    parameters = {name: unmixed(rows[name], mesh, full(p.detach())) for name, p in of.items()}
    return {"loss": torch.tensor(loss), "gradients": gradients, "parameters": parameters}


def full(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def assert_lies(row, mesh, parameter, whole):
    """This process has the part of a parameter that is written."""
    part = mixed(row, mesh, whole)
    for axis in ("tp", *OF_BATCH):
        if row["placements"].get(axis, "Replicate") != "Replicate":
            at = int(row["placements"][axis].removeprefix("Shard(").removesuffix(")"))
            part = part.chunk(mesh[axis].size(), at)[mesh[axis].get_local_rank()]
    local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
    assert list(whole.shape) == row["shape"]
    assert torch.equal(local, part)


def mixed(row, mesh, tensor):
    """A tensor with its rows interleaved as it is written."""
    if parts := row.get("interleaved"):
        rows = tensor.unflatten(0, (parts, mesh["tp"].size(), -1)).transpose(0, 1)
        return rows.reshape(tensor.shape)
    return tensor


def unmixed(row, mesh, tensor):
    """A tensor with its rows as the model has them."""
    if parts := row.get("interleaved"):
        rows = tensor.unflatten(0, (mesh["tp"].size(), parts, -1)).transpose(0, 1)
        return rows.reshape(tensor.shape)
    return tensor
