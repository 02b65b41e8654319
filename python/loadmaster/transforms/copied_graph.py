"""Copies of a graph on the devices of a mesh, and the edges between copies and added ops."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadmaster.model.graph import OpGraph
from loadmaster.transforms.layout import Layout

Ints = NDArray[np.int64]
Sizes = NDArray[np.uint64]


@dataclass(frozen=True, eq=False)
class CopiedGraph:
    """The copies of a graph on the devices of a mesh, as edges name them.

    An end of an edge is ``op * k + device`` for a copy, and ``n_ops * k + i`` for added op i.
    """

    layout: Layout

    @property
    def graph(self) -> OpGraph:
        """The graph that is copied."""
        return self.layout.graph

    @property
    def k(self) -> int:
        """Number of devices."""
        return self.layout.mesh.size

    @cached_property
    def devices(self) -> Ints:
        """The devices, [k]."""
        return np.arange(self.k)

    @cached_property
    def nowhere(self) -> Ints:
        """The place of edges that stand for no edge of the graph: after all of them."""
        return np.array(self.graph.n_edges)

    @cached_property
    def ids(self) -> Ints:
        """The tensor of each edge of the graph."""
        ids = self.graph.src if self.graph.tensor is None else self.graph.tensor
        return ids.astype(np.int64)

    @cached_property
    def stride(self) -> int:
        """Tensors of one device; those of the next are numbered after them."""
        return int(self.ids.max(initial=-1)) + 1

    @cached_property
    def carrier(self) -> Ints:
        """Per output, an edge that carries it; -1: none."""
        at, edge = self.layout.carrying
        carrier = np.full(len(self.layout.maker), -1, dtype=np.int64)
        carrier[at] = edge
        return carrier

    def copy(self, ops: Ints) -> Ints:
        """The ends of edges at copies of ops: [k, n]."""
        return ops.astype(np.int64) * self.k + self.devices[:, None]

    def added(self, number: Ints) -> Ints:
        """The ends of edges at added ops."""
        return self.graph.n_ops * self.k + number

    def is_on(self, ops: Ints) -> NDArray[np.bool_]:
        """True where a device has a copy of an op: [k, n]."""
        homes, home = self.layout.homes
        on: NDArray[np.bool_] = np.equal(homes[home[ops]].T, self.devices[:, None])
        return on

    def tensor_of(self, tensor: Ints) -> Ints:
        """The tensor that each device reads of an output: [k, n]; -1: no edge carries it."""
        homes, home = self.layout.homes
        edge = self.carrier[tensor]
        at = homes[home[self.layout.maker[tensor]]].T * self.stride
        return np.where(edge >= 0, self.ids[np.where(edge >= 0, edge, 0)] + at, -1)

    def new_tensors(self, first: int, n: int) -> Ints:
        """Tensors of so many new ones on each device, ``first`` of which are there: [k, n]."""
        return self.k * (self.stride + first) + np.arange(n) + n * self.devices[:, None]

    def bytes_of(self, tensor: Ints) -> Sizes:
        """Bytes of outputs on each device, as they are made: [k, n]."""
        layout = self.layout
        return layout.ways.ways.amounts(layout.made_way[tensor], layout.tensor_bytes[tensor])


def links(where: NDArray[np.bool_], *columns: NDArray[Any]) -> tuple[NDArray[Any], ...]:
    """Edges where there are any: their place, ends, tensor and bytes, which broadcast to [k, n]."""
    return tuple(np.broadcast_to(column, where.shape)[where] for column in columns)


def waits(
    copies: CopiedGraph, where: NDArray[np.bool_], before: Ints, after: Ints
) -> tuple[NDArray[Any], ...]:
    """Edges without data."""
    none = np.zeros(1, dtype=np.uint64)
    return links(where, copies.nowhere, before, after, np.array(-1), none)
