"""Times of steps from a board, as seconds since each step began."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loadmaster.running.devices.compiled import Compiled
from loadmaster.running.measured.measured import Steps


@dataclass(frozen=True, slots=True)
class StepClock:
    """One step: the board's words of arrivals and tasks, when it began in nanoseconds, and for how
    many of those each device waited for a core.
    """

    arrivals: NDArray[np.uint64]
    tasks: NDArray[np.uint64]
    began: int
    delay: Sequence[int]


def steps_of(
    compiled: Compiled, seen: Sequence[StepClock], peaks: NDArray[np.uint64] | None = None
) -> Steps:
    """The steps as they passed on the machine."""
    n, sent = compiled.n_ops, compiled.n_transfers
    runs = compiled.device[:n] >= 0
    line = compiled.timeline
    planned, share_of = len(line.transfers), compiled.collective[sent:]
    rows: list[list[NDArray[np.float64]]] = []
    for step in seen:
        tasks = _seconds(step.tasks.reshape(-1, 2), step.began)
        arrivals = _seconds(step.arrivals.reshape(-1, 3), step.began)
        start, finish = (np.where(runs, tasks[:n, i], 0.0) for i in (0, 1))
        gathered = np.zeros((len(line.collectives), 2))
        np.maximum.at(gathered[:, 0], share_of, arrivals[sent:, 1])
        ended = np.maximum(arrivals[sent:, 2], tasks[compiled.members, 1])
        np.maximum.at(gathered[:, 1], share_of, ended)
        start[compiled.members] = tasks[n:, 0]
        finish[compiled.members] = gathered[share_of, 1]
        sends = arrivals[:planned]
        rows.append([start, finish, sends[:, 1], sends[:, 2], gathered[:, 0], gathered[:, 1]])
    columns = [np.stack(column) for column in zip(*rows, strict=True)]
    delay = np.array([max(step.delay) for step in seen]) / 1e9
    start, finish, sent_start, sent_finish, began, ended = columns
    return Steps(
        start, finish, sent_start, sent_finish, began, ended, finish.max(axis=1), delay, peaks
    )


def _seconds(words: NDArray[np.uint64], began: int) -> NDArray[np.float64]:
    """Clocks of a board as seconds since a step began."""
    return np.maximum(words.astype(np.int64) - began, 0) / 1e9
