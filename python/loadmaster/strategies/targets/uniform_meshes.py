"""Meshes of all usable devices whose parts are equal: data parallelism outside, tensors inside."""

from __future__ import annotations

from collections.abc import Iterator

from loadmaster.judge.problem import Problem
from loadmaster.model.families import families
from loadmaster.model.recipe import Mesh, MeshAxis
from loadmaster.strategies.sharding.meshes import meshes
from loadmaster.strategies.simple.data_parallel import usable

#: Names of the outer axis, which shares the batch, and of the inner one, which cuts tensors.
DATA, MODEL = "dp", "tp"


def tensor_parts(mesh: Mesh) -> int:
    """How many parts the inner axis of a mesh cuts tensors into.

    >>> tensor_parts(Mesh.of({"dp": 2, "tp": 4})), tensor_parts(Mesh.of({"dp": 2}))
    (4, 1)
    """
    return mesh.shape[mesh.names.index(MODEL)] if MODEL in mesh.names else 1


def uniform_meshes(problem: Problem) -> Iterator[Mesh]:
    """Every size of the inner axis that divides the number of usable devices, one device first.

    Devices are of one family, that of the fastest. An axis of one device is left out.
    """
    first = next(meshes(problem), None)
    if first is None:
        return
    family = [kind for kind, _ in families(problem.cluster)]
    fastest = family[usable(problem)[0]]
    of = zip(first.devices, first.on(problem.cluster).tolist(), strict=True)
    devices = tuple(name for name, device in of if family[device] == fastest)
    n = len(devices)
    for tp in range(1, n + 1):
        if n % tp == 0:
            sizes = {DATA: n // tp, MODEL: tp}
            axes = tuple(MeshAxis(name, size) for name, size in sizes.items() if size > 1)
            if axes:
                yield Mesh(axes, devices)
