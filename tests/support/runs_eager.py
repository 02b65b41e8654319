"""A plan of whole ops as a module that PyTorch runs eagerly: the same numbers."""

from __future__ import annotations

import torch
from target_models import built, program_of, tensor_of

import loadmaster as lm


def run(case, plan, written):
    assert {node["device"] for node in written["nodes"].values()} <= {"cuda:0", "cuda:1"}
    made = built(case["model"])
    with torch.no_grad():
        expected = tensor_of(made.module(*made.inputs))
    # The nodes of an exported program have names that the plan of a captured step has not.
    program = program_of(case["model"])
    again = lm.place(lm.read(program), plan.cluster, target="eager", **case["options"])
    names = {device.name: "cpu" for device in plan.cluster.devices}
    with torch.no_grad():
        found = tensor_of(lm.writers.fx_split(again, program, names=names)(*made.inputs))
    assert torch.allclose(found, expected, rtol=1e-4, atol=1e-6 * float(expected.abs().max()))
