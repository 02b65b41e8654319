"""Steps of public models by written files, unedited, beside a step of the model on one device.

Loss and gradients are the same within 1e-4; what is written for ONNX is tried on a forward pass.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from functools import cache

import numpy as np
import public_models
import pytest
import torch
from gloo_steps import assert_same, functions, on_processes
from public_models import PUBLIC
from torch.utils._pytree import tree_leaves

import loadmaster as lm
from loadmaster.systems.shared.fake_processes import passes
from loadmaster.systems.shared.priced_collectives import priced_collectives
from loadmaster.writers.export import export

#: Systems that start processes by an engine of their own, with the packages that they need.
ENGINES = {
    "deepspeed": ("deepspeed",),
    "accelerate": ("accelerate",),
    "trainer": ("accelerate", "transformers"),
}

#: Parts of parameters' names that wrappers put in.
_WRAPPERS = ("module.", "_checkpoint_wrapped_module.", "_orig_mod.")


@cache
def graph_of(name):
    """The graph of a model's training step."""
    return lm.capture(**PUBLIC[name]())


@cache
def cluster_of(k):
    """Processes on CPUs."""
    core = lm.DeviceType("cpu", {"f32": 40e9}, 10e9, launch=5e-6)
    figures = {"bandwidth": 5e9, "latency": 2e-5, "type": core}
    return lm.Cluster.mesh(k, memory="2GiB", **figures)


def called(case):
    """Positional and named arguments of a model."""
    inputs = case["example_inputs"]
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return (inputs if isinstance(inputs, tuple) else (inputs,)), {}


def loss_of(case, output):
    """The loss of an output: the case's, or the model's own."""
    return case["loss"](output, case["targets"]) if "loss" in case else output["loss"]


def step_of(case):
    """Loss and gradients of a step of the model as it is."""
    model = case["model"].train()
    args, kwargs = called(case)
    loss = loss_of(case, model(*args, **kwargs))
    loss.backward()
    return {"loss": loss.detach(), "gradients": gradients_of([model])}


def gradients_of(modules):
    """Whole gradients by the names that parameters have in the model."""
    found = {}
    for module in modules:
        for name, parameter in module.named_parameters():
            if (gradient := parameter.grad) is not None:
                whole = gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient
                for wrapper in _WRAPPERS:
                    name = name.replace(wrapper, "")
                found[name] = whole.detach().clone()
    return found


def run_by_processes(name, written):
    """A step by a file of PyTorch is that of the model."""
    step = _step_in_stages if "STAGES" in written else _step_by_file
    found = on_processes(functions(written)["PROCESSES"], step, written, name)
    gradients = {key: tensor for one in found for key, tensor in one["gradients"].items()}
    loss = next(one["loss"] for one in found if one["loss"] is not None)
    expected = step_of(PUBLIC[name]())
    assert_same({"loss": loss, "gradients": gradients}, expected, ("gradients",))


def collectives_of(plan, name, written, path):
    """Collectives that a file runs under the fake process group, and those of its plan."""
    path.write_text(written)
    degrees, environment = plan.parallelism, dict(os.environ)
    shares = degrees.replicate * degrees.shard if degrees is not None else 1
    try:
        model = f"{public_models.__file__}:{name}"
        ran = passes(str(path), model, public_models.BATCH, shares)["collectives"]
    finally:
        os.environ.clear()
        os.environ.update(environment)
        torch.distributed.destroy_process_group()
    return ran, priced_collectives(plan)


def _step_by_file(rank, k, written, name):
    """Loss of the whole batch, and gradients of the parameters that a process has."""
    file = functions(written)
    device = file["start"]()
    model, batch, loss, _, _ = file["example_of"](f"{public_models.__file__}:{name}")
    share, model = file["share_of"](batch, device), model.train()
    model = file["parallelize"](model, device)
    found = file["over_processes"](file["backward"](model, share, loss or file["own_loss"]))
    gradients = gradients_of([model])
    file["optimizer_of"](model, torch.optim.AdamW).step()
    return {"loss": torch.tensor(found), "gradients": gradients}


def _step_in_stages(rank, k, written, name):
    """Loss and gradients of the stages that a process has."""
    file, case = functions(written), PUBLIC[name]()
    (args, kwargs), device = called(case), file["start"]()
    batch = (args, kwargs, (case["targets"],) if "targets" in case else ())
    loss = case.get("loss") or (lambda output: output["loss"])
    model = file["parallelize"](case["model"].train(), device, batch, loss)
    step = {"loss": file["backward"](model, batch), "gradients": gradients_of([model])}
    file["optimizer_of"](model, torch.optim.AdamW).step()
    return step


def run_by_engine(target, k, name, written):
    """A step by a system that has an engine of its own is that of the model."""
    for package in ENGINES[target]:
        pytest.importorskip(package, reason=f"needs {package}")
    step = getattr(importlib.import_module("public_engines"), target)
    expected = step_of(PUBLIC[name]())
    for one in on_processes(k, step, written, name):
        assert_same(one, expected, ("gradients",))


def run_eagerly(name, k):
    """A module whose segments are on several devices puts out what the model does."""
    model, args, kwargs = evaluated(name)
    with torch.no_grad():
        program = torch.export.export(model, args, kwargs)
        expected = next(x for x in tree_leaves(model(*args, **kwargs)) if x.is_floating_point())
    graph, cluster = lm.read(program), cluster_of(k)
    runs = np.flatnonzero(graph.reduced.runs).tolist()
    ends = {graph.names[runs[0]]: 0, graph.names[runs[-1]]: k - 1}
    rules = lm.Constraints(pin={name: cluster.devices[d].name for name, d in ends.items()})
    plan = lm.place(graph, cluster, target="eager", constraints=rules)
    assert len(export(plan)["segments"]) > 1
    names = {device.name: "cpu" for device in plan.cluster.devices}
    with torch.no_grad():
        output = lm.writers.fx_split(plan, program, names=names)(*args, **kwargs)
    same = next(x for x in tree_leaves(output) if x.is_floating_point())
    torch.testing.assert_close(same, expected, rtol=1e-4, atol=1e-5)


def run_by_device_map(name, written):
    """A step by a device map in accelerate is that of the model: the CPU stands for GPUs."""
    accelerate = pytest.importorskip("accelerate", reason="needs accelerate")
    from accelerate.utils.modeling import check_device_map

    case = PUBLIC[name]()
    check_device_map(case["model"], written)
    places = dict.fromkeys(written, "cpu")
    module = accelerate.dispatch_model(
        case["model"], places, main_device="cpu", offload_dir=None, force_hooks=True
    )
    assert_same(step_of({**case, "model": module}), step_of(PUBLIC[name]()), ("gradients",))


def run_by_onnx(name, folder):
    """Sub-models, one after another, put out what the model does."""
    pytest.importorskip("onnxruntime", reason="needs the extra onnxruntime")
    model, args, kwargs = evaluated(name)
    path = folder / f"{name}.onnx"
    with torch.no_grad():
        torch.onnx.export(
            model, args, path, kwargs=kwargs, dynamo=True, external_data=False, verbose=False
        )
        expected = next(x for x in tree_leaves(model(*args, **kwargs)) if x.is_floating_point())
    plan = lm.place(lm.read(path), cluster_of(2), target="onnx")
    lm.writers.onnx(plan, folder / "parts", model=path)
    segments = lm.writers.OnnxSegments(folder / "parts")
    inputs = [x.numpy() for x in tree_leaves((args, kwargs))]
    names = [one["name"] for one in segments.manifest["inputs"]]
    found = segments.run(dict(zip(names, inputs, strict=True)))
    same = found[segments.manifest["outputs"][0]]
    torch.testing.assert_close(torch.from_numpy(same), expected, rtol=1e-4, atol=1e-5)


def evaluated(name):
    """A model that is evaluated, and its arguments: without labels, which are for the loss."""
    case = PUBLIC[name]()
    args, kwargs = called(case)
    labels = kwargs.pop("labels", None)
    kwargs.pop("return_loss", None)
    model = case["model"].eval()
    if getattr(model.config if hasattr(model, "config") else None, "is_encoder_decoder", False):
        kwargs["decoder_input_ids"] = labels
    if name == "qwen3_moe":  # PyTorch has no ONNX for products of groups.
        model.config._experts_implementation = "batched_mm"
    return model, args, kwargs
