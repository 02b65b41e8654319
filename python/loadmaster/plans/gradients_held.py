"""The memory of a plan where all gradients are held until the optimizer's step, as PyTorch does.

A plan's own step updates each parameter as soon as its gradient is there, in the backward pass, and
then needs the gradient no more. PyTorch's ``optimizer.step()`` comes after ``backward()``.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

import loadmaster.fast as fast
from loadmaster.base.units import format_bytes
from loadmaster.judge.assignment import Assignment
from loadmaster.judge.problem import Problem, ranks
from loadmaster.plans.plan import Plan
from loadmaster.strategies.candidate import Candidate

#: Peaks that differ by less are one.
_ALIKE = 1.01


def peaks_held(plan: Plan) -> NDArray[np.uint64] | None:
    """Bytes at the peak of each device if all gradients are held until the updates; uint64 [D].

    None: nothing is updated, or the plan is in the order of the system that runs it, a stream, or
    as it was measured. Two simulations.

    >>> import loadmaster as lm
    >>> plan = lm.place("example:lenet", "2xV100-NVLink", "single")
    >>> bool((peaks_held(plan) >= plan.memory.peak).all())
    True
    """
    is_other = plan.target is not None or plan.observed or plan.verdict.steady is not None
    return None if is_other else peaks_of(plan.problem, plan.assignment)


def peaks_of(problem: Problem, assignment: Assignment) -> NDArray[np.uint64] | None:
    """The same of an assignment; None: nothing is updated."""
    graph, model = problem.graph, problem.model
    updates = model.updates[problem.reduced.op_of]
    if not updates.any():
        return None
    first = problem.simulate(assignment.devices, assignment.priority, policy=assignment.policy)
    src, dst, *_ = graph.flows()
    before = ranks(fast.m_topo(graph))
    behind = updates.copy()
    for edge in np.argsort(before[dst], kind="stable").tolist():
        behind[dst[edge]] |= behind[src[edge]]
    order = np.lexsort((before, first.start, behind))
    priority = np.empty(len(order), dtype=np.int32)
    priority[order] = np.arange(len(order), dtype=np.int32)
    return problem.simulate(assignment.devices, priority, policy="fixed").peak


def in_words(plan: Plan) -> str:
    """Both peaks of the device that is fullest with all gradients; nothing where they are alike."""
    held = peaks_held(plan)
    if held is None:
        return ""
    rows = zip(held.tolist(), plan.memory.peak.tolist(), plan.binding.room, strict=True)
    most, own, room, device = max(
        ((*row, d.name) for row, d in zip(rows, plan.cluster.devices, strict=True)),
        key=lambda row: row[0] - row[2],
    )
    if most <= own * _ALIKE and (most > room) == (own > room):
        return ""
    fits = " and DOES NOT FIT" if most > room else ""
    return (
        f"{device} needs {format_bytes(own)} as parameters are updated in the backward pass, as "
        f"here; PyTorch's optimizer.step() comes behind it, holds all gradients, and needs "
        f"{format_bytes(most)} of {format_bytes(room)}{fits}"
    )


def document(plan: Plan) -> dict[str, list[int]]:
    """The peaks as plain data; nothing where there are none."""
    held = peaks_held(plan)
    return {} if held is None else {"peak_bytes_gradients_held": held.tolist()}


def is_short(candidate: Candidate) -> bool:
    """True if a plan that fits does not where all gradients are held."""
    held = peaks_of(candidate.problem, candidate.assignment)
    return held is not None and bool((held > np.array(candidate.problem.cluster.memory)).any())
