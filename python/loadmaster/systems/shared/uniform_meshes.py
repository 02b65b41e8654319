"""Meshes of usable devices whose parts are equal: data parallelism outside, tensors inside.

Data parallelism has one axis; or two, replicas of what devices near each other share (HSDP).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from loadmaster.judge.problem import Problem
from loadmaster.model.factorisations import factorisations
from loadmaster.model.families import families
from loadmaster.model.recipe import DeviceMesh, MeshAxis
from loadmaster.strategies.sharding import units
from loadmaster.strategies.sharding.meshes import meshes, numbers_of_devices
from loadmaster.strategies.simple.data_parallel import usable

#: Names of the outer axis, which shares the batch, and of the inner one, which cuts tensors.
DATA, MODEL = "dp", "tp"

#: Names of the two axes that the outer one may be taken apart into: replicas, and the devices near
#: each other that have a part each of what is replicated.
REPLICAS, PARTS = units.REPLICAS, units.PARTS


def tensor_parts(mesh: DeviceMesh) -> int:
    """The number of parts that the inner axis of a mesh cuts tensors into.

    >>> tensor_parts(DeviceMesh.of({"dp": 2, "tp": 4})), tensor_parts(DeviceMesh.of({"dp": 2}))
    (4, 1)
    """
    return mesh.shape[mesh.names.index(MODEL)] if MODEL in mesh.names else 1


def uniform_meshes(problem: Problem) -> Iterator[DeviceMesh]:
    """Every size of the inner axis that divides a number of devices, one device first.

    Numbers are that of all usable devices first, and of fewer
    (:func:`loadmaster.strategies.sharding.meshes.numbers_of_devices`). Devices are of one family,
    that of the fastest. An axis of one device is left out.
    """
    first = next(meshes(problem), None)
    if first is None:
        return
    family = [kind for kind, _ in families(problem.cluster)]
    fastest = family[usable(problem)[0]]
    of = [d for d in first.on(problem.cluster).tolist() if family[d] == fastest]
    devices = tuple(problem.cluster.devices[d].name for d in of)
    for tp, dp in factorisations(numbers_of_devices(problem, of), 2):
        sizes = {DATA: dp, MODEL: tp}
        axes = tuple(MeshAxis(name, size) for name, size in sizes.items() if size > 1)
        yield DeviceMesh(axes, devices[: tp * dp])


def of_most_devices(shapes: list[DeviceMesh]) -> int:
    """The number of meshes that have as many devices as the first, which has the most: of so many
    the labels are looked at more closely.

    >>> of_most_devices([DeviceMesh.of({"dp": n}) for n in (8, 8, 4)])
    2
    """
    return sum(mesh.size == shapes[0].size for mesh in shapes)


def in_two(mesh: DeviceMesh) -> Iterator[DeviceMesh]:
    """The meshes in which the outer axis is replicas of parts, the most parts first.

    >>> [two.shape for two in in_two(DeviceMesh.of({"dp": 8, "tp": 2}))]
    [(2, 4, 2), (4, 2, 2)]
    """
    if DATA not in mesh.names:
        return
    at = mesh.names.index(DATA)
    for sizes in factorisations([mesh.shape[at]], 2, lambda sizes: sizes[-1] > 1):
        replicas, parts = sizes
        two = MeshAxis(REPLICAS, replicas), MeshAxis(PARTS, parts)
        yield replace(mesh, axes=(*mesh.axes[:at], *two, *mesh.axes[at + 1 :]))
