"""The op that decides on the device of each op."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

import loadmaster.fast as fast


def deciders(graph: fast.Graph) -> list[NDArray[np.int32]]:
    """Ways to say which op decides on the device of each, int32 [n_ops] each.

    One way: the first op of its colocated set decides. The other way, where it is another: the
    first op that reads the parameter which the set updates. Which of the two is better depends on
    where the backward pass goes, so both are tried.
    """
    sets, own = graph.colocation, np.arange(graph.n_ops, dtype=np.int32)
    n_sets = int(sets.max()) + 1
    if n_sets < graph.n_ops:
        first = np.empty(n_sets, dtype=np.int32)
        # Of several values for one set the last is kept.
        first[sets[::-1]] = own[::-1]
        own = first.take(sets)
    return [own] if np.array_equal(own, graph.lead) else [own, graph.lead]
