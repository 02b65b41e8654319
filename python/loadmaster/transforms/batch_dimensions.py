"""The batch as the dimension of a graph, with the sums that synchronised batch norms exchange."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from loadmaster.dimensions.dimensions import Dimensions
from loadmaster.dimensions.of_batch import dimensions_of_batch
from loadmaster.model.graph import OpGraph
from loadmaster.transforms.batch_norm import statistics


@lru_cache(maxsize=2)
def batch_dimensions(graph: OpGraph, batch: int, *, is_synchronised: bool) -> Dimensions:
    """Dimensions told by sizes, made once for all layouts of a graph.

    Raises
    ------
    InputError
        A batch norm to synchronise that does not say how many channels it has.
    """
    exchanged = np.zeros(graph.n_ops, dtype=np.uint64)
    if is_synchronised:
        norms, size = statistics(graph, graph.roles.many)
        exchanged[norms] = size
    return dimensions_of_batch(graph, batch, exchanged)
