"""Another batch, as far as memory goes."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from loadmaster.base.checks import is_integer
from loadmaster.model.graph import OpGraph

#: Assumptions on a graph with another batch.
ASSUMPTION = (
    "inputs, activations, their gradients and workspace go with the batch; parameters, their "
    "gradients and optimizer state do not"
)


def batch_of(graph: OpGraph) -> int | None:
    """The size of the batch, as far as the graph's ``meta`` says."""
    said = graph.meta.get("batch")
    return said if is_integer(said) and said > 0 else None


def scaled_batch(graph: OpGraph, times: Fraction) -> OpGraph:
    """The graph as if its batch were so many times what it is; see :data:`ASSUMPTION`.

    What depends on the batch is told as in :func:`loadmaster.transforms.data_parallel`. Sizes are
    rounded up. Times, FLOPs and shapes stay as they are: this is for questions of memory. O(V + E).

    Examples
    --------
    >>> import loadmaster as lm
    >>> from fractions import Fraction
    >>> graph = lm.read("example:lenet")
    >>> half = scaled_batch(graph, Fraction(1, 2))
    >>> at = graph.index("convolution")
    >>> bool(int(half.output_bytes[at]) * 2 == int(graph.output_bytes[at]))
    True
    """
    roles = graph.roles
    top, bottom = np.uint64(times.numerator), np.uint64(times.denominator)

    def scaled(sizes: NDArray[np.uint64]) -> NDArray[np.uint64]:
        whole, rest = np.divmod(sizes, bottom)
        return whole * top + (rest * top + bottom - np.uint64(1)) // bottom

    # A tensor may pass through several ops: it is what the edge says that leaves its maker.
    data = np.flatnonzero(roles.tensor >= 0)
    data = data[np.argsort(graph.view[graph.src[data]], kind="stable")]
    ids, first = np.unique(roles.tensor[data], return_index=True)
    edge = data[first]
    goes_along = roles.many[graph.src[edge]] & ~roles.gradient[edge]
    of_edge = np.zeros(graph.n_edges, dtype=bool)
    of_edge[data] = goes_along[np.searchsorted(ids, roles.tensor[data])]

    # Of what an op makes, the gradients of weights stay.
    fixed = np.zeros(graph.n_ops, dtype=np.uint64)
    np.add.at(fixed, graph.src[edge[~goes_along]], graph.bytes[edge[~goes_along]])
    fixed = np.minimum(fixed, graph.output_bytes)
    output_bytes = fixed + scaled(graph.output_bytes - fixed)
    return graph.with_columns(
        {
            "output_bytes": np.where(roles.many, output_bytes, graph.output_bytes),
            "workspace": np.where(roles.many, scaled(graph.workspace), graph.workspace),
        },
        {"bytes": np.where(of_edge, scaled(graph.bytes), graph.bytes)},
    )
