"""What is written for JAX, on devices of the host: a step of the model as PyTorch exports it, its
ops in JAX's words. Parameters have PyTorch's names and shapes.
"""

from __future__ import annotations

import aten_in_jax
import jax_models
import pytest
import torch
from aten_in_jax import Name, Program
from gloo_steps import whole_step
from target_models import built
from torch import nn


def run(case, plan, written):
    """Loss and gradients are those of PyTorch; every array lies as the file says."""
    pytest.importorskip("jax", reason="needs JAX")
    made, whole = built(case["model"]), whole_step(built(case["model"]))
    graph = plan.graph
    names = [n for n, kind in zip(graph.names, graph.kinds, strict=True) if kind == "input"]
    parameters = {name: p.detach().numpy() for name, p in made.module.named_parameters()}
    given = [tensor.numpy() for tensor in (*made.inputs, made.targets)]
    expected = whole["loss"].numpy(), {n: g.numpy() for n, g in whole["gradients"].items()}
    found = jax_models.on_devices(
        aten_in_jax.step,
        written,
        program(made, names),
        parameters,
        dict(zip(names, given, strict=True)),
        expected,
    )
    assert found < 1, found


class _Loss(nn.Module):
    """The loss of a model, of its inputs and targets."""

    def __init__(self, made):
        super().__init__()
        self.model, self.loss = made.module, made.loss

    def forward(self, *given):
        return self.loss(self.model(*given[:-1]), given[-1])


def program(made, names):
    """The loss as ops, whose inputs have these names. What depends on neither parameters nor inputs
    is computed here.
    """
    exported = torch.export.export(_Loss(made), (*made.inputs, made.targets))
    exported = exported.run_decompositions({})
    signature = exported.graph_signature
    state = {**exported.state_dict, **exported.constants}
    buffers = {**signature.inputs_to_buffers, **signature.inputs_to_lifted_tensor_constants}
    known = {name: state[of] for name, of in buffers.items()}
    calls = []
    for node in exported.graph.nodes:
        if node.op != "call_function" or not node.users:
            continue
        needs = {one.name for one in node.all_input_nodes}
        if needs <= known.keys():
            arguments = torch.fx.map_arg((node.args, node.kwargs), lambda one: known[one.name])
            known[node.name] = node.target(*arguments[0], **arguments[1])
        else:
            arguments = torch.fx.map_arg((node.args, node.kwargs), lambda one: Name(one.name))
            calls.append((node.name, _op(node.target), *arguments))
    read = {
        one.text for call in calls for one in torch.utils._pytree.tree_leaves(call)
        if isinstance(one, Name)
    }  # fmt: skip
    # A tied parameter has one name in the model, the first.
    first = {id(p): name for name, p in made.module.named_parameters()}
    every = {n: first[id(p)] for n, p in made.module.named_parameters(remove_duplicate=False)}
    return Program(
        {n: every[of.removeprefix("model.")] for n, of in signature.inputs_to_parameters.items()},
        dict(zip(signature.user_inputs, names, strict=True)),
        {name: known[name].detach().numpy() for name in sorted(read & known.keys())},
        calls,
        signature.user_outputs[0],
    )


def _op(target):
    return str(target) if isinstance(target, torch._ops.OpOverload) else target.__name__
