"""Batches dealt out: whole models beside each other, each of which works on other batches.

A model that infers needs no other model's results, so several of them finish several batches at a
time. What a step of the program is, is a *round*: each lane takes as many batches as it is dealt.
A lane has the weights once, however many batches of a round it takes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from loadmaster.base import checks
from loadmaster.base.errors import InputError
from loadmaster.model.graph import OpGraph
from loadmaster.model.program import Program
from loadmaster.transforms.copies import WholeCopies
from loadmaster.transforms.streams import waits_for_updates


def deal(graph: OpGraph, counts: Sequence[int]) -> Program:
    """Whole copies of the graph, one for each batch of a round.

    Parameters
    ----------
    graph : OpGraph
        For inference.
    counts : sequence of int
        Batches of a round that each lane takes, at least 1 each.

    Returns
    -------
    Program
        The copy for batch b of a round has ops named ``name@b<b>``, and b as its ``replica``.

    Raises
    ------
    InputError
        No lanes; a lane without batches; a graph for training, whose steps wait for each other.

    Examples
    --------
    >>> import loadmaster as lm
    >>> ops = {"name": ["w", "a"], "kind": ["parameter", "a"], "param_bytes": [8, 0]}
    >>> graph = lm.OpGraph(ops, {"src": [0], "dst": [1], "bytes": [8]})
    >>> program = deal(graph, [2, 1])
    >>> program.batches, program.graph.names
    (3, ['w@b0', 'a@b0', 'a@b1', 'w@b2', 'a@b2'])
    """
    for count in counts:
        checks.integer("counts", count)
    if not len(counts):
        raise InputError("counts is empty: wants the batches of a round for each lane")
    if waits_for_updates(graph):
        raise InputError(
            "batches of a graph for training are not dealt out: each step waits for the updates of "
            "the one before. Replicas that sum gradients are the method 'data-parallel'"
        )
    lane = np.repeat(np.arange(len(counts)), counts)
    copies = WholeCopies(graph, lane.tolist(), "b")
    replica = copies.copy.astype(np.int32)
    return copies.program(copies.edges(), replica=replica, batches=int(sum(counts)))
