"""Meshes of all usable devices whose parts are equal: data parallelism outside, tensors inside."""

from __future__ import annotations

from collections.abc import Iterator

from loadmaster.judge.problem import Problem
from loadmaster.model.recipe import Mesh, MeshAxis
from loadmaster.strategies.sharding.meshes import meshes

#: Names of the outer axis, which shares the batch, and of the inner one, which cuts tensors.
DATA, MODEL = "dp", "tp"


def uniform_meshes(problem: Problem) -> Iterator[Mesh]:
    """Every size of the inner axis that divides the number of usable devices, one device first.

    An axis of one device is left out.
    """
    first = next(meshes(problem), None)
    if first is None:
        return
    n = first.size
    for tp in range(1, n + 1):
        if n % tp == 0:
            sizes = {DATA: n // tp, MODEL: tp}
            axes = tuple(MeshAxis(name, size) for name, size in sizes.items() if size > 1)
            yield Mesh(axes, first.devices)
