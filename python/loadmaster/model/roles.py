"""Ops that a data-parallel graph replicates, and their tensors that are weight gradients."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

import loadmaster.fast as fast
from loadmaster.model.graph import INPUT, OpGraph


@dataclass(frozen=True)
class Roles:
    """The ops that are replicated, and those of their tensors that are weight gradients.

    Attributes
    ----------
    many : bool [n_ops]
        Whether an op is replicated.
    tensor : int64 [n_edges]
        Tensor id per edge, -1 for control.
    gradient : bool [n_edges]
        Whether the edge carries a weight gradient (or a part of one) of a replicated op.
    """

    many: NDArray[np.bool_]
    tensor: NDArray[np.int64]
    gradient: NDArray[np.bool_]

    @classmethod
    def of(cls, graph: OpGraph) -> Roles:
        """Roles of a graph's ops; see :func:`~loadmaster.transforms.data_parallel`. O(V + E)."""
        is_input = graph.stands_for == INPUT
        state = graph.placeholder & ~is_input
        many, gradient = fast.roles(graph._core, state, is_input, graph.updates)
        return cls(many, graph.src if graph.tensor is None else graph.tensor, gradient)
