"""Placements for AutoParallel: each tensor is cut as the plan has it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from written import constants

import loadmaster as lm
from loadmaster.base.errors import InputError
from loadmaster.model.graph import PARAMETER
from loadmaster.model.shapes import parse_output


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_placements_divide_evenly_and_are_what_was_planned(tp):
    graph = lm.read("example:gpt3-330m")
    plan = lm.place(graph, lm.Cluster.preset("4xV100-PCIe"), target="autoparallel", tp=tp)
    file = constants(lm.writers.autoparallel(plan))
    mesh, placements = file["MESH"], file["PLACEMENTS"]
    assert math.prod(mesh.values()) == 4
    assert mesh.get("tp", 1) == tp
    ops = np.flatnonzero(graph.stands_for == PARAMETER).tolist()
    assert list(placements) == [graph.names[op] for op in ops]
    held = 0
    for op in ops:
        sizes, parts = parse_output(graph.outputs[op])[0][1], [1] * 8
        for size, axis in zip(mesh.values(), placements[graph.names[op]], strict=True):
            if axis is not None:
                parts[axis] *= size
        assert all(size % n == 0 for size, n in zip(sizes, parts, strict=False))
        held += int(graph.output_bytes[op]) // math.prod(parts)
    assert held <= int(plan.memory.peak.max())
    cut = [any(axis is not None for axis in axes) for axes in placements.values()]
    assert any(cut) or tp == 1


def test_what_placements_do_not_say_is_refused():
    piped = lm.place("example:alexnet", "2xV100-NVLink", "pipeline")
    with pytest.raises(InputError, match=r"no work by labels of one mesh.*--target autoparallel"):
        lm.writers.autoparallel(piped)
