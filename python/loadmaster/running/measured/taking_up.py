"""Time at which a device took each op up: as soon as it had ended the one before, if the inputs
were there.

Between two ops a device looks for the next one, and forgets what nobody reads any more. That takes
some microseconds each time, on every run of every plan. It belongs to the op that follows: an op
lasts from when nothing but the device kept it from running. Time for which an op's inputs were not
there yet, or the device sent something, is not the op's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from loadmaster.plans.plan import Plan
from loadmaster.running.devices.compiled import Compiled, compile_plan

if TYPE_CHECKING:
    from loadmaster.running.measured.measured import Steps

Floats = NDArray[np.float64]


def taken_up(plan: Plan, steps: Steps) -> Floats:
    """Time at which each op was taken up in each step, float64 [n_steps, n_ops], in seconds of the
    clock.

    O(V log V + E + T) a step.
    """
    compiled = compile_plan(plan)
    graph = plan.program.graph
    runs = ~graph.placeholder & ~graph.is_member
    there = _inputs_there(compiled, steps)
    begun = steps.start.copy()
    for device in range(compiled.n_devices):
        ops = np.flatnonzero(runs & (compiled.device[: compiled.n_ops] == device))
        sent = np.flatnonzero(compiled.sender[: steps.sent_finish.shape[1]] == device)
        for step in range(len(steps)):
            start, finish = steps.start[step, ops], steps.finish[step, ops]
            order = np.lexsort((finish, start))
            free = np.append(-np.inf, np.maximum.accumulate(finish[order])[:-1])
            free = np.maximum(free, _last_before(steps.sent_finish[step, sent], start[order]))
            at = ops[order]
            known = (there[step, at] <= free) & (free <= start[order])
            begun[step, at] = np.where(known & np.isfinite(free), free, start[order])
    return begun


def _inputs_there(compiled: Compiled, steps: Steps) -> Floats:
    """Arrival of the last input of each op, [n_steps, n_ops]; infinite: not measured."""
    n, planned = compiled.n_ops, steps.sent_finish.shape[1]
    there = np.zeros((len(steps), compiled.n_tasks))
    before, after = compiled.order
    is_op = before < n
    _latest(there, after[is_op], steps.finish[:, before[is_op]])
    arrival, task = compiled.waits
    is_planned = arrival < planned
    _latest(there, task[is_planned], steps.sent_finish[:, arrival[is_planned]])
    is_added = ~is_planned & (arrival < compiled.n_transfers)
    there[:, task[is_added]] = np.inf
    return there[:, :n]


def _latest(there: Floats, task: NDArray[np.int32], seconds: Floats) -> None:
    """Raises the time of each task, which may be named several times, to the latest of its own."""
    for row, column in zip(there, seconds, strict=True):
        np.maximum.at(row, task, column)


def _last_before(ends: Floats, starts: Floats) -> Floats:
    """The last of some ends that is not after each start; minus infinity: none."""
    ends = np.append(-np.inf, np.sort(ends))
    return np.asarray(ends[np.searchsorted(ends, starts, side="right") - 1])
