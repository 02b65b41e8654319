"""The step of a plan as its target runs it: sub-models cost a session's run each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from loadmaster.base import checks
from loadmaster.base.errors import InputError
from loadmaster.judge.assignment import Assignment
from loadmaster.judge.problem import Problem
from loadmaster.judge.segmented import cut
from loadmaster.judge.verdict import Verdict
from loadmaster.model.runtime import SessionCost
from loadmaster.plans.plan import Plan

#: Key of the cost of a run among the facts that a planner leaves.
_KEY = "session"


def facts_of(session: SessionCost) -> dict[str, Any]:
    """The facts that let a plan be judged as sub-models, for ``for_writer`` of its candidate."""
    return {_KEY: {"run": session.run, "tensor": session.tensor}}


def as_run(plan: Plan) -> float:
    """Seconds per step as the plan's target runs it; as it was measured, if it was."""
    if plan.observed is not None:
        return plan.makespan
    return judged_as_run(plan, plan.problem, plan.assignment, plan.verdict)


def rank(plan: Plan) -> tuple[int, float]:
    """A key to sort plans of one objective by, the best first: a step counts as it is run."""
    if plan.objective.goal == "step":
        return plan.verdict.excess, plan.as_run
    return plan.objective.rank(plan.verdict)


def judged_as_run(plan: Plan, problem: Problem, assignment: Assignment, verdict: Verdict) -> float:
    """Seconds per step of an assignment as the target of a plan would run it.

    Raises
    ------
    InputError
        The plan's file says no cost of a run where it should.
    """
    facts = plan.for_writer.get(_KEY)
    if facts is None:
        return verdict.step_time
    if not isinstance(facts, Mapping):
        raise InputError(f"for_writer: {_KEY} is no table")
    checks.known_keys(f"for_writer: {_KEY}", facts, {"run", "tensor"})
    return cut(problem, assignment, SessionCost(**facts)).step
