"""Reads inputs of the max-load problem: a graph with times, and how many devices it is split over.

The JSON of "Efficient Algorithms for Device Placement of DNN Graph Operators" (Microsoft Research,
NeurIPS 2020), as :mod:`loadmaster.readers.planners.msr` reads it for the simulator. Here nothing is
converted: times, costs and sizes keep the file's own units, which it does not state. An edge's
``size`` is not looked at.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadmaster.base.checks import integer, is_integer, not_negative
from loadmaster.base.errors import InputError
from loadmaster.base.files import naming, parse_json, read_bytes
from loadmaster.base.text import shown
from loadmaster.readers.planners.planner_json import ends, positions, rows

#: The most devices of a kind.
MOST_DEVICES = 1024

#: The most bytes of a node and of a device.
MOST_BYTES = 2.0**61


@dataclass(frozen=True)
class MaxLoad:
    """A graph of n nodes, the devices, and the times in one unit, which is not known.

    Attributes
    ----------
    ids : tuple of int
        The nodes' ids, as the file lists them. Everything else speaks of positions in this list.
    times : float64 [n, 2]
        Time of each node on an accelerator (infinite: not supported there) and on a CPU core.
    bytes : int64 [n]
        What each node holds on an accelerator.
    backward : bool [n]
        Nodes of the backward pass.
    colour : int64 [n]
        Nodes of one colour share a device.
    src, dst : int64 [m]
        Edges: the second node reads what the first makes.
    cost : float64 [n]
        Time of each node's output between an accelerator and the host.
    accelerators, cpus : int
        How many devices there are.
    memory : int
        Bytes of an accelerator.
    """

    ids: tuple[int, ...]
    times: NDArray[np.float64]
    bytes: NDArray[np.int64]
    backward: NDArray[np.bool_]
    colour: NDArray[np.int64]
    src: NDArray[np.int64]
    dst: NDArray[np.int64]
    cost: NDArray[np.float64]
    accelerators: int
    cpus: int
    memory: int

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> MaxLoad:
        """Read a file, plain or gzipped.

        Raises
        ------
        InputError
            A damaged file; a node or edge without a field, or with one that is no number or
            negative; an id given twice or that no node has; an output with two costs.

        Examples
        --------
        >>> problem = MaxLoad.read("bert24_inference.json")  # doctest: +SKIP
        """
        document = parse_json(read_bytes(path), path)
        with naming(path):
            return cls.from_document(document)

    @classmethod
    def from_document(cls, document: Any) -> MaxLoad:
        """From parsed JSON; errors as those of :meth:`read`."""
        if not isinstance(document, dict) or "maxFPGAs" not in document:
            raise InputError("no input of the max-load problem: it has no maxFPGAs")
        nodes, edges = rows(document, "nodes"), rows(document, "edges")
        index = positions(nodes, "node")
        src, dst = np.array(ends(edges, index, "node"), dtype=np.int64).reshape(-1, 2).T
        return cls(
            ids=tuple(index),
            times=np.array([_times(node) for node in nodes]).reshape(-1, 2),
            bytes=np.array([_bytes(node, "size", _called(node)) for node in nodes], dtype=np.int64),
            backward=np.array([_flag(node, "isBackwardNode") for node in nodes], dtype=bool),
            colour=_colours(nodes),
            src=src,
            dst=dst,
            cost=_costs(edges, src, nodes),
            accelerators=integer("maxFPGAs", document["maxFPGAs"], 0, MOST_DEVICES),
            cpus=integer("maxCPUs", document.get("maxCPUs", 0), 0, MOST_DEVICES),
            memory=_bytes(document, "maxSizePerFPGA", "the file"),
        )


def _costs(
    edges: list[Mapping[str, Any]], src: NDArray[np.int64], nodes: list[Mapping[str, Any]]
) -> NDArray[np.float64]:
    """The cost of each node's output: all of its edges say the same."""
    cost = np.full(len(nodes), np.nan)
    for at, (edge, node) in enumerate(zip(edges, src.tolist(), strict=True)):
        said = not_negative(f"edge {at}: cost", edge.get("cost"))
        if not np.isnan(cost[node]) and cost[node] != said:
            raise InputError(
                f"{_called(nodes[node])} has an output that costs {cost[node]:.6g} on one edge and "
                f"{said:.6g} on another: it is moved once per device, so there must be one cost"
            )
        cost[node] = said
    cost[np.isnan(cost)] = 0.0
    return cost


def _times(node: Mapping[str, Any]) -> tuple[float, float]:
    cpu = not_negative(f"{_called(node)}: cpuLatency", node.get("cpuLatency"))
    if not _flag(node, "supportedOnFpga"):
        return np.inf, cpu
    return not_negative(f"{_called(node)}: fpgaLatency", node.get("fpgaLatency")), cpu


def _colours(nodes: list[Mapping[str, Any]]) -> NDArray[np.int64]:
    """A number per node; those without a colour have one of their own."""
    numbers: dict[tuple[str, Any], int] = {}
    colours = np.empty(len(nodes), dtype=np.int64)
    for at, node in enumerate(nodes):
        colour = node.get("colorClass")
        if colour is not None and not is_integer(colour):
            raise InputError(
                f"{_called(node)} has the colorClass {shown(colour)}: wants an integer"
            )
        key = ("own", at) if colour is None else ("colour", colour)
        colours[at] = numbers.setdefault(key, len(numbers))
    return colours


def _bytes(row: Mapping[str, Any], key: str, place: str) -> int:
    size = not_negative(f"{place}: {key}", row.get(key, 0))
    if size > MOST_BYTES:
        raise InputError(f"{place} has {size:.3g} bytes of {key}: at most 2^61 are supported")
    return round(size)


def _flag(node: Mapping[str, Any], key: str) -> bool:
    value = node.get(key, False)
    if value not in (0, 1):
        raise InputError(f"{_called(node)} has the {key} {shown(value)}: wants true or false")
    return bool(value)


def _called(node: Mapping[str, Any]) -> str:
    return f"node {node.get('id')}"
