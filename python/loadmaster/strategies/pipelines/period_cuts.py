"""Contiguous stages with a short period: where to cut a line.

A stage computes no longer than a period, and what crosses a cut is sent within it. Whether a period
can be had is asked of all places where a stage could end, device after device; the shortest that
can be had is found by bisection. Of the places where a stage may end, least is sent at those that
are taken.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

import loadmaster.fast as fast
from loadmaster.judge.problem import Problem
from loadmaster.strategies.pipelines.lines import Line
from loadmaster.transforms.copies import is_state

#: Halvings of the period that is looked for.
_HALVINGS = 40

#: Share by which a period may be longer than the shortest, where less is sent for it.
_SLACK = 1.002


def state_tensors(problem: Problem) -> NDArray[np.bool_]:
    """Per tensor id of the graph that runs, whether it stays from step to step: bool [n_ids]."""
    model = problem.model
    ids = (model.src if model.tensor is None else model.tensor).astype(np.int64)
    stays = np.zeros(max(int(ids.max(initial=-1)) + 1, problem.graph.n_tensor_ids), dtype=bool)
    if not problem.waits_for_updates:
        of_state = is_state(model)[problem.reduced.shows[model.src]] & (ids >= 0)
        stays[ids[of_state]] = True
    return stays


@dataclass(frozen=True, eq=False)
class _Sums:
    """Sums over the ops before each place of a line. Colocated ops count where the first of them
    stands.

    Attributes
    ----------
    at : int64 [n_reduced]
        Where each op counts.
    seconds : float64 [n_types, n_places + 1]
        What all ops before a place take, those aside that a type may not run.
    refused : int64 [n_types, n_places + 1]
        How many of them it may not run.
    resident : float64 [n_places + 1]
        Bytes of all ops before a place that stay.
    crossing : float64 [n_places + 1]
        Seconds between an average pair of devices of all tensors that cross a place.
    """

    at: NDArray[np.int64]
    seconds: NDArray[np.float64]
    refused: NDArray[np.int64]
    resident: NDArray[np.float64]
    crossing: NDArray[np.float64]

    @classmethod
    def of(cls, problem: Problem, line: Line) -> _Sums:
        """O(V + E)."""
        graph, n = problem.graph, len(line.is_open) - 1
        first = np.full(int(graph.colocation.max()) + 1, n)
        np.minimum.at(first, graph.colocation, line.place[problem.reduced.op_of])
        at = first[graph.colocation]

        def until(values: NDArray[np.float64]) -> NDArray[np.float64]:
            return np.concatenate([[0.0], np.cumsum(np.bincount(at, values, n))])

        allowed = problem.allowed_types
        seconds = np.where(allowed, problem.compute_time, 0.0)
        return cls(
            at,
            np.stack([until(column) for column in seconds.T]),
            np.stack([until((~column).astype(float)) for column in allowed.T]).astype(np.int64),
            until(graph.resident.astype(np.float64)),
            _crossing(problem, at, n),
        )


def sent(
    problem: Problem,
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.float64]]:
    """Edges of the reduced graph that are sent in each step if their ends are apart: source,
    destination, and seconds between an average pair of devices on the first edge of each tensor or
    message, 0 on its others.
    """
    src, dst, which, seconds = _sent(problem)
    is_first = np.zeros(len(which), dtype=bool)
    is_first[np.unique(which, return_index=True)[1]] = True
    return src, dst, np.where(is_first, seconds[which], 0.0)


def _sent(
    problem: Problem,
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.intp], NDArray[np.float64]]:
    """The same edges, the number of the tensor or message of each, and the seconds of each."""
    src, dst, tensor, bytes_, _ = fast.edges(problem.graph)
    stays = state_tensors(problem)
    kept = (tensor < 0) | ~stays[np.maximum(tensor, 0)]
    src, dst, tensor, bytes_ = src[kept], dst[kept], tensor[kept], bytes_[kept]
    key = np.where(tensor >= 0, tensor.astype(np.int64), -1 - src.astype(np.int64))
    _, which = np.unique(key, return_inverse=True)
    size = np.zeros(int(which.max(initial=-1)) + 1)
    np.maximum.at(size, which, bytes_.astype(np.float64))
    latency, per_byte = problem.links.mean_link
    return src, dst, which, latency + size * per_byte


def _crossing(problem: Problem, at: NDArray[np.int64], n: int) -> NDArray[np.float64]:
    src, dst, which, seconds = _sent(problem)
    count = len(seconds)
    begins, ends = np.full(count, n), np.zeros(count, dtype=np.int64)
    for place in (at[src], at[dst]):
        np.minimum.at(begins, which, place)
        np.maximum.at(ends, which, place)
    change = np.bincount(begins + 1, seconds, n + 2) - np.bincount(ends + 1, seconds, n + 2)
    return np.maximum(np.cumsum(change)[: n + 1], 0.0)


def period_cuts(
    problem: Problem, line: Line, devices: list[int], share: float = 1.0
) -> NDArray[np.int32] | None:
    """The device of each op: stages of the line on these devices, in their order; None: what stays
    does not fit a share of their memory.

    O((V log(1 / precision)) devices).
    """
    sums = _Sums.of(problem, line)
    finder = _Finder(problem, sums, devices, share)
    high = float(sums.seconds.max()) + float(sums.crossing.max(initial=0.0))
    if finder.reached(high) is None:
        return None
    low = 0.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if finder.reached(middle) is None:
            low = middle
        else:
            high = middle
        if high - low <= 1e-4 * high:
            break
    stage = np.searchsorted(finder.ends(high * _SLACK), sums.at, side="right")
    return np.array(devices, dtype=np.int32)[stage]


class _Finder:
    """Search for stages of a line that have a period."""

    def __init__(self, problem: Problem, sums: _Sums, devices: list[int], share: float) -> None:
        self.sums, self.n = sums, len(sums.resident) - 1
        self.types = [problem.cluster.device_types[d] for d in devices]
        self.memory = [share * problem.memory[d] for d in devices]

    def _earliest(self, stage: int, period: float) -> NDArray[np.int64]:
        """The earliest begin of a stage that ends at each place."""
        before, kind = self.sums, self.types[stage]
        earliest = np.zeros(self.n + 1, dtype=np.int64)
        for sums, most in (
            (before.seconds[kind], period),
            (before.resident, self.memory[stage]),
            (before.refused[kind], 0),
        ):
            earliest = np.maximum(
                earliest, np.searchsorted(sums, sums - most * (1 + 1e-12), side="left")
            )
        return earliest

    def reached(self, period: float) -> list[NDArray[np.bool_]] | None:
        """The places where each stage may end; None: the last cannot end at the end."""
        place = np.arange(self.n + 1)
        now = place == 0
        rows = [now]
        may_cut = self.sums.crossing <= period
        may_cut[-1] = True
        for stage in range(len(self.types)):
            before = np.concatenate([[0], np.cumsum(now)])
            now = (before[place + 1] - before[self._earliest(stage, period)] > 0) & may_cut
            rows.append(now)
        return rows if now[-1] else None

    def ends(self, period: float) -> list[int]:
        """The ends of the stages, but for the last: the places where least is sent, from the
        back.
        """
        rows = self.reached(period)
        assert rows is not None, "the period can be had"
        at, ends = self.n, []
        for stage in reversed(range(1, len(self.types))):
            first = int(self._earliest(stage, period)[at])
            some = first + np.flatnonzero(rows[stage][first : at + 1])
            at = int(some[self.sums.crossing[some].argmin()])
            ends.append(at)
        return ends[::-1]
