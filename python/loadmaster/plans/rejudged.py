"""A plan judged otherwise: on another cluster, as it was measured, and beside one device."""

from __future__ import annotations

from dataclasses import replace

from loadmaster.base.errors import InfeasibleError, InputError
from loadmaster.base.units import counted
from loadmaster.judge.bounds import SPLIT_OPS, WHOLE_OPS, bound, split_bound
from loadmaster.judge.problem import Problem
from loadmaster.judge.simulation import Simulation, as_costs
from loadmaster.judge.streaming import judge
from loadmaster.judge.verdict import Verdict
from loadmaster.model.cluster import Cluster
from loadmaster.plans.as_run import judged_as_run
from loadmaster.plans.plan import Plan
from loadmaster.rules.constraints import Constraints
from loadmaster.strategies.candidate import Candidate
from loadmaster.strategies.simple import single as one_device


def whole_problem(plan: Plan) -> Problem:
    """The problem of placing the ops of a plan's user whole."""
    if plan.program.is_plain:
        return replace(plan.problem, seed=0, best_effort=False)
    whole = Problem.make(plan.graph, plan.cluster, plan.costs)
    return replace(whole, objective=plan.objective)


def single(plan: Plan) -> float | None:
    """Seconds per step on the fastest single device that holds the graph; None: none does."""
    candidate = on_one_device(plan)
    if candidate is None:
        return None
    return judged_as_run(plan, candidate.problem, candidate.assignment, candidate.verdict)


def on_one_device(plan: Plan) -> Candidate | None:
    """The same graph on the fastest single device that holds it; None: none does."""
    try:
        return one_device.place(whole_problem(plan))
    except InfeasibleError:
        return None


def measured(plan: Plan, seen: Simulation) -> Plan:
    """A plan with what was measured of it, instead of what was simulated."""
    memory = replace(plan, observed=seen).memory
    verdict = Verdict.measured(seen.makespan, memory.peak, memory.capacity.tolist())
    return replace(plan, verdict=verdict, observed=seen)


def on(plan: Plan, cluster: Cluster) -> Plan:
    """The same placement and order on another cluster, judged there; see :meth:`Plan.on`.

    Raises
    ------
    InputError
        The cluster has fewer devices than the plan uses.
    """
    used = int(plan.assignment.devices.max()) + 1
    if used > cluster.n_devices:
        raise InputError(
            f"the plan uses {counted(used, 'device')}, but {cluster!r} has only {cluster.n_devices}"
        )
    before, program = plan.problem, plan.program
    same = tuple(t.name for t in cluster.types) == before.costs.types
    problem = Problem.make(
        program,
        cluster,
        before.costs if same else as_costs(None, program.graph, cluster),
        seed=plan.seed,
        source_costs=before.user_costs if same else as_costs(None, program.source, cluster),
    )
    problem = replace(problem, objective=plan.objective)
    whole = whole_problem(replace(plan, problem=problem))
    bounds = {WHOLE_OPS: bound(whole), SPLIT_OPS: split_bound(whole)}
    space = plan.space if program.is_plain else SPLIT_OPS
    return replace(
        plan,
        problem=problem,
        verdict=judge(problem, plan.assignment),
        lower_bound=bounds[space].seconds,
        bound_source=bounds[space].source,
        space=space,
        bounds={name: one.seconds for name, one in bounds.items()},
        offers=(),
        left_out=(),
        constraints=Constraints(),
        observed=None,
    )
