"""Gathering: ops brought to their inputs and readers where that costs no time.

A search for a short step leaves ops that are not on the critical path wherever they happen to be:
an optimizer's updates lie scattered over idle devices, and each fetches a gradient and a parameter.
Gathering moves each colocated set to where it saves most transfer time, if the device is idle for
long enough between what the set reads and what reads the set. All moves of a round are tried at
once. Where the simulator finds the step longer or memory short, each half of them is tried, and so
on. So a plan never gets worse, sends less, and gets shorter where transfers were in the way.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

import loadmaster.fast as fast
from loadmaster.judge.problem import Problem
from loadmaster.strategies.candidate import Candidate

#: Sets, and the device that each goes to.
Moves = tuple[NDArray[np.int64], NDArray[np.int32]]


def gathered(problem: Problem, candidate: Candidate, simulations: int) -> tuple[Candidate, int]:
    """The candidate or one with less to send that takes no longer, and the simulations used.

    Parameters
    ----------
    problem : Problem
        That of the candidate.
    candidate : Candidate
        One that fits. If every set is on the device of the first reader of what it updates, that
        stays so.
    simulations : int
        How many may be used.

    Notes
    -----
    O(V + E) per simulation, and O((V + E) devices) per round of moves.

    Examples
    --------
    >>> import loadmaster as lm
    >>> from loadmaster.strategies.candidate import judged
    >>> cluster = lm.Cluster.preset("4xV100-PCIe")
    >>> plan = lm.place(lm.read("example:lenet"), cluster, "random")
    >>> before = judged(plan.problem, plan.assignment)
    >>> after, _ = gathered(plan.problem, before, 20)
    >>> after.schedule.bytes_moved < before.schedule.bytes_moved
    True
    >>> plan.problem.objective.gain(before.verdict, after.verdict) >= 0
    True
    """
    traffic = _SetTraffic.of(problem, candidate.assignment.devices)
    refused: set[tuple[int, int]] = set()
    best, left = candidate, simulations
    while left > 0:
        sets, targets = traffic.moves(best, refused)
        waiting = [np.arange(len(sets))] if len(sets) else []
        before = best
        while waiting and left > 0:
            some = waiting.pop()
            left -= 1
            tried = traffic.moved(best, sets[some], targets[some])
            if problem.objective.better(tried, best) is tried:
                best = tried
            elif len(some) > 1:
                half = len(some) // 2
                waiting += [some[half:], some[:half]]
            else:
                refused.add((int(sets[some[0]]), int(targets[some[0]])))
        if best is before:
            break
    return best, simulations - left


@dataclass(frozen=True)
class _SetTraffic:
    """Tensors by the sets of ops that make and read them. The message of a control edge is a tensor
    too.

    Attributes
    ----------
    set_of : int64 [n_reduced]
        The set of each op.
    first : int64 [n_sets]
        The first op of each set.
    src, dst, tensor : int [n_edges]
        Producer, reader and tensor of each edge.
    producer : int32 [n_tensors]
        The op that makes each tensor.
    seconds : float64 [n_tensors]
        Seconds that each tensor takes between an average pair of devices.
    row_set, row_tensor : int64 [n_rows]
        The pairs of a set and a tensor that an op of the set makes or reads.
    reads : int64 [n_rows]
        How many ops of the set read the tensor.
    makes : bool [n_rows]
        Whether an op of the set makes the tensor.
    """

    problem: Problem
    set_of: NDArray[np.int64]
    first: NDArray[np.int64]
    src: NDArray[np.int32]
    dst: NDArray[np.int32]
    tensor: NDArray[np.int64]
    producer: NDArray[np.int32]
    seconds: NDArray[np.float64]
    row_set: NDArray[np.int64]
    row_tensor: NDArray[np.int64]
    reads: NDArray[np.int64]
    makes: NDArray[np.bool_]

    @classmethod
    def of(cls, problem: Problem, devices: NDArray[np.int32]) -> _SetTraffic:
        """Traffic between the sets that the placement keeps together: colocated sets or, if each of
        these is with the first reader of what it updates, the sets with their readers.
        """
        graph = problem.graph
        follows = np.array_equal(devices[graph.lead], devices)
        _, first, set_of = np.unique(
            graph.lead if follows else graph.colocation, return_index=True, return_inverse=True
        )
        src, dst, ids, size, _ = fast.edges(graph)
        latency, per_byte = problem.links.mean_link
        # Messages of control edges: one per source.
        key = np.where(ids >= 0, ids.astype(np.int64), graph.n_tensor_ids + src)
        _, edge, tensor = np.unique(key, return_index=True, return_inverse=True)
        producer, n_tensors = src[edge], len(edge)
        read = set_of[dst] * n_tensors + tensor
        pairs = set_of[producer] * n_tensors + np.arange(n_tensors)
        rows, row = np.unique(np.concatenate([read, pairs]), return_inverse=True)
        row_set, row_tensor = rows // n_tensors, rows % n_tensors
        return cls(
            problem,
            set_of,
            first,
            src,
            dst,
            tensor,
            producer,
            latency + size[edge].astype(np.float64) * per_byte,
            row_set,
            row_tensor,
            np.bincount(row[: len(dst)], minlength=len(rows)),
            set_of[producer[row_tensor]] == row_set,
        )

    def moved(
        self, candidate: Candidate, sets: NDArray[np.int64], targets: NDArray[np.int32]
    ) -> Candidate:
        """The candidate with some sets on other devices."""
        of_set = candidate.assignment.devices[self.first]
        of_set[sets] = targets
        assignment = replace(candidate.assignment, devices=of_set[self.set_of])
        return replace(candidate, assignment=assignment, verdict=self.problem.verdict(assignment))

    def moves(self, candidate: Candidate, refused: set[tuple[int, int]]) -> Moves:
        """Moves that each save transfer time, by the time at which the sets begin. Of moves that
        touch the same tensor only the one that saves most is among them.
        """
        saved, sets = self._saved(candidate.assignment.devices)
        saved = np.where(self._room(candidate, sets), saved, 0.0)
        for one, device in refused:
            saved[sets == one, device] = 0.0
        target = saved.argmax(axis=1).astype(np.int32)
        most = saved[np.arange(len(sets)), target]
        rank = np.empty(len(sets), dtype=np.int64)
        rank[np.lexsort((sets, -most))] = np.arange(len(sets))
        place = np.full(len(self.first), len(sets), dtype=np.int64)
        place[sets] = np.where(most > 0, rank, len(sets))
        least = np.full(len(self.producer), len(sets), dtype=np.int64)
        np.minimum.at(least, self.row_tensor, place[self.row_set])
        beaten = np.zeros(len(self.first), dtype=bool)
        beaten[self.row_set[least[self.row_tensor] < place[self.row_set]]] = True
        go = np.flatnonzero((most > 0) & ~beaten[sets])
        go = go[np.argsort(candidate.schedule.start[self.first[sets[go]]], kind="stable")]
        return sets[go], target[go]

    def _saved(self, devices: NDArray[np.int32]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """The sets that send or receive, and the seconds of transfers that each of them saves on
        each device if all others stay: [n, n_devices] first, then the sets.
        """
        k, n_tensors = self.problem.cluster.n_devices, len(self.producer)
        readers = np.bincount(self.tensor * k + devices[self.dst], minlength=n_tensors * k)
        readers = readers.reshape(n_tensors, k)
        source = devices[self.producer]
        away: NDArray[np.bool_] = readers > 0
        away[np.arange(n_tensors), source] = False
        is_sent: NDArray[np.bool_] = np.asarray(away.any(axis=1))
        active = np.zeros(len(self.first), dtype=bool)
        active[self.row_set[is_sent[self.row_tensor]]] = True
        rows = np.flatnonzero(active[self.row_set])
        tensor, makes = self.row_tensor[rows], self.makes[rows]
        here = devices[self.first[self.row_set[rows]]]
        others = readers[tensor, here] > self.reads[rows]
        read_there = readers[tensor] > 0
        made_there = np.equal.outer(source[tensor], np.arange(k))
        # A maker that moves saves the copy for the readers there, and needs a copy for those left
        # behind. A reader that moves saves the copy here if it was the last reader, and needs a
        # copy there if it is the first.
        of_maker = read_there.astype(np.int8) - others[:, None]
        of_reader = ((here != source[tensor]) & ~others)[:, None].astype(np.int8)
        of_reader = of_reader - (~read_there & ~made_there)
        gain = np.where(makes[:, None], of_maker, of_reader) * self.seconds[tensor][:, None]
        gain[np.arange(len(rows)), here] = 0.0
        sets, which = np.unique(self.row_set[rows], return_inverse=True)
        saved = [np.bincount(which, column, len(sets)).astype(np.float64) for column in gain.T]
        return np.stack(saved, axis=1), sets

    def _room(self, candidate: Candidate, sets: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Mask of the devices that each set may move to, and that are idle for long enough: [n,
        n_devices]. Idle time counts from when an op of the set first has all its inputs, until the
        last op of the set is waited for.
        """
        problem, schedule = self.problem, candidate.schedule
        n_sets, across = len(self.first), self.set_of[self.src] != self.set_of[self.dst]
        ready = np.zeros(len(self.set_of))
        np.maximum.at(ready, self.dst[across], schedule.finish[self.src[across]])
        due = np.full(len(self.set_of), schedule.makespan)
        np.minimum.at(due, self.src[across], schedule.start[self.dst[across]])
        begin, end = np.full(n_sets, np.inf), np.zeros(n_sets)
        np.minimum.at(begin, self.set_of, ready)
        np.maximum.at(end, self.set_of, due)
        types = np.array(problem.cluster.device_types)
        room = problem.allowed_types[self.first[sets]][:, types]
        for device in range(problem.cluster.n_devices):
            ops = np.flatnonzero(candidate.assignment.devices == device)
            ops = ops[np.argsort(schedule.start[ops], kind="stable")]
            edges = np.stack([schedule.start[ops], schedule.finish[ops]], axis=1).ravel()
            edges = np.concatenate([[0.0], edges, [schedule.makespan]])
            idle = np.maximum(np.diff(edges), 0.0)
            idle[1::2] = 0.0
            passed = np.concatenate([[0.0], np.cumsum(idle)])
            free = np.interp(end[sets], edges, passed) - np.interp(begin[sets], edges, passed)
            seconds = np.bincount(self.set_of, problem.time[:, types[device]], n_sets)
            room[:, device] &= free >= seconds[sets]
        return room
