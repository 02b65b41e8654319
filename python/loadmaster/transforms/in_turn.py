"""Collectives that run in turn with the ops of their device, so that nothing overlaps them.

An op of PyTorch that redistributes a DTensor waits for its collective, unless a compiler has moved
the wait.
"""

from __future__ import annotations

import numpy as np

from loadmaster.model.program import Program
from loadmaster.transforms.control_edges import with_control


def in_turn(program: Program) -> Program:
    """A program in which collectives wait for the op before them in the program's order, and the
    op after them waits for the collective, on every device. O(V + E).

    Parameters
    ----------
    program : Program
        Replicas or shards.

    Examples
    --------
    >>> import loadmaster as lm
    >>> graph = lm.read("example:lenet")
    >>> recipe = lm.Recipe({"dp": 2}, {"dp": {"**": "batch"}})
    >>> program = lm.transforms.shard(graph, recipe)
    >>> in_turn(program).graph.n_edges > program.graph.n_edges
    True
    """
    graph = program.graph
    device = np.where(program.rank >= 0, program.rank, program.replica)
    runs = np.flatnonzero(~graph.view & ~graph.placeholder & (device >= 0))
    of = runs[np.lexsort((runs, device[runs]))]
    before, after = of[:-1], of[1:]
    is_one = (device[before] == device[after]) & (graph.is_member[before] | graph.is_member[after])
    return with_control(program, before[is_one], after[is_one])
