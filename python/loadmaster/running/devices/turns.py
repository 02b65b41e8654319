"""Calls of several devices in one order in which all of them can run here, one after another."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Mapping

import numpy as np

from loadmaster.model.graph import OpGraph
from loadmaster.running.tape.calls import Call
from loadmaster.running.tape.slots import Slot


def in_turn(graph: OpGraph, calls: Iterable[Call], slots: Mapping[int, Slot]) -> tuple[Call, ...]:
    """The calls in an order that keeps to the graph's. O((V + E) log V).

    The members of a collective run one after another once all have brought what they bring, and a
    member that changes what others read of its device runs after these.
    """
    all_of_them, n = list(calls), graph.n_ops
    members: dict[str, list[int]] = defaultdict(list)
    for op in np.flatnonzero(graph.is_member).tolist():
        members[graph.collectives[op]].append(op)
    # A member's share is a node of its own, and all members of a collective are one node.
    begins, ends, turn = list(range(n)), list(range(n)), [float(op) for op in range(2 * n)]
    then: list[list[int]] = [[] for _ in range(2 * n)]
    for ops in members.values():
        for op in ops:
            begins[op], ends[op] = n + op, min(ops)
            turn[n + op] = float(op)
            then[n + op].append(min(ops))
        turn[min(ops)] = max(ops) + 0.5
    for src, dst in zip(graph.src.tolist(), graph.dst.tolist(), strict=True):
        then[ends[src]].append(begins[dst])
    node = [begins[call.op] if call.brings else ends[call.op] for call in all_of_them]
    readers: dict[int, list[int]] = defaultdict(list)
    for call, at in zip(all_of_them, node, strict=True):
        for slot in call.reads:
            if slot in slots:
                readers[slots[slot].storage].append(at)
    for call, at in zip(all_of_them, node, strict=True):
        for slot in call.writes if call.shares else ():
            for reader in readers[slots[slot].storage]:
                if reader != at and at not in then[reader]:
                    then[reader].append(at)
    rank = _ranks(then, turn)
    order = sorted(range(len(node)), key=lambda i: (rank[node[i]], all_of_them[i].op))
    return tuple(all_of_them[i] for i in order)


def _ranks(then: list[list[int]], turn: list[float]) -> list[int]:
    """Kahn's order of nodes; of those that can be next, the one whose turn is first."""
    missing = [0] * len(then)
    for after in then:
        for later in after:
            missing[later] += 1
    ready = [(turn[node], node) for node, n in enumerate(missing) if not n]
    heapq.heapify(ready)
    rank = [0] * len(then)
    for i in range(len(then)):
        _, node = heapq.heappop(ready)
        rank[node] = i
        for later in then[node]:
            missing[later] -= 1
            if not missing[later]:
                heapq.heappush(ready, (turn[later], later))
    return rank
