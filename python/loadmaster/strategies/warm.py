"""A plan as the start of another: its placement on a cluster that may have changed.

Ops keep their devices by name. What has lost its device, or may not be there any more, goes
elsewhere: see :func:`as_candidates`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from loadmaster.base.errors import InputError
from loadmaster.judge.allowed import allowed_devices
from loadmaster.judge.assignment import Assignment
from loadmaster.judge.problem import Problem
from loadmaster.strategies.candidate import Candidate, judged
from loadmaster.strategies.simple.assigned import on_allowed

if TYPE_CHECKING:
    from loadmaster.plans.plan import Plan

#: The device of an op that has none.
NOWHERE = -1


def carried_over(plan: Plan, problem: Problem) -> Assignment:
    """A plan's placement of the reduced ops, by names of devices; :data:`NOWHERE` without one.

    Raises
    ------
    InputError
        The plan is for other ops.
    """
    ran = plan.program.graph
    if ran.names != problem.model.names:
        raise InputError(
            f"the plan to start from places other ops: it is for {ran!r}, not {problem.model!r}"
        )
    index = {device.name: i for i, device in enumerate(problem.cluster.devices)}
    there = np.array([index.get(d.name, NOWHERE) for d in plan.cluster.devices], dtype=np.int32)
    of = problem.reduced.op_of
    return Assignment(there[plan.running_devices[of]], plan.running_priority[of], plan.policy)


def as_candidates(problem: Problem, start: Assignment | None) -> list[Candidate]:
    """A placement as a candidate, if there is one and it fits: a list of one, or none.

    A colocated set goes where its first op was. All sets that have lost their device go to one
    device: the one with which the step fits and is shortest. A set that may not be there goes to
    the device that computes least. If nothing fits there is no candidate, unless best effort will
    do.

    Notes
    -----
    A simulation per device where sets have lost theirs, else one.

    Examples
    --------
    >>> import loadmaster as lm, numpy as np
    >>> from loadmaster.judge.assignment import Assignment
    >>> plan = lm.place(lm.read("example:lenet"), lm.Cluster.preset("2xV100-NVLink"))
    >>> same = Assignment(plan.assignment.devices, plan.assignment.priority)
    >>> [c.verdict.step_time == plan.makespan for c in as_candidates(plan.problem, same)]
    [True]
    """
    if start is None:
        return []
    tried = [
        judged(problem, replace(start, devices=devices))
        for devices in _placements(problem, start.devices)
    ]
    best = problem.objective.best(tried)
    return [best] if best.fits or problem.best_effort else []


def _placements(problem: Problem, devices: NDArray[np.int32]) -> Iterator[NDArray[np.int32]]:
    """The placement with every set where it may be, once for each device that sets without one
    can go to.
    """
    sets = problem.graph.colocation
    allowed = allowed_devices(problem)
    by_set = devices[np.unique(sets, return_index=True)[1]]
    settled = by_set != NOWHERE
    settled[settled] = allowed[np.flatnonzero(settled), by_set[settled]]
    homes = range(1 if settled.all() else problem.cluster.n_devices)
    for home in homes:
        yield on_allowed(problem, np.where(settled, by_set, home).astype(np.int32))[sets]
