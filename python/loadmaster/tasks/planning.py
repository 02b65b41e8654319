"""Planning: from a problem and a request to a plan that is judged, bounded and explained."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

from loadmaster.base import checks
from loadmaster.base.errors import InfeasibleError
from loadmaster.base.progress import Incumbent, Progress
from loadmaster.base.units import format_seconds
from loadmaster.costs.runtimes.priced import runtime_of
from loadmaster.judge.allowed import check_allowed
from loadmaster.judge.assignment import Assignment
from loadmaster.judge.bounds import SPLIT_OPS, WHOLE_OPS, Bound, bound, split_bound
from loadmaster.judge.problem import Problem
from loadmaster.judge.streaming import streamed
from loadmaster.plans.plan import Plan
from loadmaster.plans.planner import Planner
from loadmaster.rules.binding import Binding, bind
from loadmaster.rules.constraints import Constraints
from loadmaster.rules.stages import Stages
from loadmaster.strategies import least_overflow
from loadmaster.strategies.auto.v_cycle import polished
from loadmaster.strategies.candidate import Candidate
from loadmaster.strategies.contiguous import contiguous
from loadmaster.strategies.options import takes
from loadmaster.strategies.pipelines.throughput import balanced
from loadmaster.strategies.refusal import overflow_error, proof
from loadmaster.strategies.registry import (
    DEFAULT,
    FORMER_NAMES,
    METHODS,
    function_of,
    is_final,
    rivals_in_stages,
)
from loadmaster.strategies.warm import as_candidates, carried_over
from loadmaster.systems.registry import check_no_target, limits_of, target_of
from loadmaster.tasks import portfolio

_AUTO = Planner(DEFAULT)


@dataclass(frozen=True)
class PlanRequest:
    """A plan that is asked for.

    Attributes
    ----------
    planner : Planner
        The method, or the target.
    options : mapping
        Of the planner.
    time_limit : float or None
        Seconds for planners that take a limit.
    refine : bool
        True if the placement is refined.
    warm_start : Plan or None
        A plan for the same ops, than which the answer is no worse.
    constraints : Constraints
    progress : Progress or None
    greedy : bool
        True if a method that finds nothing that fits fails: nothing else is tried.
    """

    planner: Planner = _AUTO
    options: Mapping[str, Any] = field(default_factory=dict)
    time_limit: float | None = None
    refine: bool = False
    warm_start: Plan | None = None
    constraints: Constraints = field(default_factory=Constraints)
    progress: Progress | None = None
    greedy: bool = False

    @property
    def method(self) -> str:
        """The method; for a target the one that a plan has whose target decides."""
        name = DEFAULT if self.planner.is_target else self.planner.name
        return FORMER_NAMES.get(name, name)


def check_planner(planner: Planner, options: Mapping[str, Any]) -> None:
    """Refuses a planner of no known name, and options that it does not take.

    Raises
    ------
    InputError
    """
    if planner.is_target:
        target_of(planner.name).checked(options)
    else:
        check_no_target(planner.name)
        function_of(planner.name, options)


def plan_for(users_problem: Problem, request: PlanRequest, *, began: float | None = None) -> Plan:
    """The plan that is asked for, of a problem whose program may be a transformed one.

    ``began`` is the time at which planning began (``time.perf_counter``), if that is not now.

    Raises
    ------
    InputError, InfeasibleError
        As :func:`loadmaster.place`.
    """
    began = time.perf_counter() if began is None else began
    checks.flag("refine", request.refine)
    limit = request.time_limit
    limit = None if limit is None else checks.time_limit(limit)
    function, users_problem = _function(users_problem, request)
    constraints, progress = request.constraints, request.progress
    binding = bind(users_problem, constraints)
    problem = binding.problem
    options = dict(request.options)
    if constraints.contiguous:
        Stages.of(problem)  # Refuses the impossible before any work.
        # A stage holds its ops whole.
        options = {"split": "none", **options} if takes(function, "split") else options
    begun, before = _started(problem, request.warm_start)
    if progress is not None:
        progress(request.planner.name, None)
    tell = _beside_bound(problem, progress, is_target=request.planner.is_target)
    passed_on = {
        "time_limit": limit,
        "progress": tell,
        # Methods search among placements of the problem's own ops.
        "warm_start": before if begun is problem else None,
        "start_search": _search_whole_ops,
    }
    keywords = options | {n: value for n, value in passed_on.items() if takes(function, n)}
    try:
        check_allowed(problem)
        first = _best(problem, function, request, keywords, tell)
        rivals = [first, *as_candidates(begun, before)]
        if request.refine:
            tell("refine", problem.objective.seconds(first.verdict), first.problem)
            rivals = [_refined(one) for one in rivals]
            options["refine"] = True
        if constraints.contiguous:
            tell("contiguous stages", problem.objective.seconds(first.verdict), first.problem)
            rivals = _in_stages([*rivals, *_rivals_in_stages(problem, request.method)])
    except InfeasibleError as error:
        if constraints.is_empty:
            raise
        raise InfeasibleError(f"{error} Constraints: {constraints}.", error.shortfall) from error
    best = _confirmed(problem.objective.best(rivals), tell)
    if first.bound is not None and (first.space != WHOLE_OPS or first.problem is problem):
        best = replace(best, bound=first.bound, space=first.space, offers=first.offers)
    if request.warm_start is not None:
        best = best.noted(_began_with(problem, request.warm_start))
    target = request.planner.name if request.planner.is_target else None
    plan = _plan(binding, best, request.method, options, time.perf_counter() - began)
    left_out = first.left_out if target is None else limits_of(target)
    plan = replace(plan, target=target, left_out=left_out)
    if progress is not None:
        progress("bound", Incumbent(problem.objective.seconds(plan.verdict), plan.lower_bound))
    return plan


def _function(problem: Problem, request: PlanRequest) -> tuple[Callable[..., Candidate], Problem]:
    """The function that plans, and the problem at the prices that it plans by."""
    check_planner(request.planner, request.options)
    if not request.planner.is_target:
        return METHODS[request.planner.name][0], problem
    system = target_of(request.planner.name)
    system.check_framework(problem.model)
    system.check_runtime(runtime_of(problem.model))
    return system.plan, system.priced(problem)


def _began_with(problem: Problem, plan: Plan) -> str:
    seconds = problem.objective.seconds(plan.verdict)
    return f"warm start: a plan of {format_seconds(seconds)} by {plan.method}"


def _refined(one: Candidate) -> Candidate:
    """A candidate, refined as its objective asks."""
    if one.problem.objective.goal == "step":
        return polished(one.problem, one)
    return balanced(one)


def _confirmed(one: Candidate, tell: Callable[..., None]) -> Candidate:
    """The candidate with the verdict on a stream of its steps, where the objective is throughput.

    Raises
    ------
    InfeasibleError
        A step fits, but no stream does.
    """
    if one.problem.objective.goal == "step" or one.verdict.steady is not None:
        return one
    verdict = streamed(
        one.problem, one.assignment, progress=lambda stage: tell(stage, None, one.problem)
    )
    confirmed = replace(one, verdict=verdict)
    if one.fits and not confirmed.fits and not one.problem.best_effort:
        raise overflow_error(one.problem, confirmed)
    return confirmed


def _search_whole_ops(problem: Problem, **options: Any) -> Candidate:
    """The search for methods that start from one: it places ops whole."""
    return METHODS[DEFAULT][0](problem, split="none", **options)


def _started(problem: Problem, plan: Plan | None) -> tuple[Problem, Assignment | None]:
    """A plan's placement, and the problem that it is of: this one, or that of the plan's program.

    Raises
    ------
    InputError
        The plan is for other ops.
    """
    if plan is None or plan.program.is_plain:
        return problem, None if plan is None else carried_over(plan, problem)
    if not problem.program.is_plain or plan.graph.names != problem.model.names:
        return problem, carried_over(plan, problem)
    begun = problem.transformed(plan.program)
    return begun, carried_over(plan, begun)


def _best(
    problem: Problem,
    function: Callable[..., Candidate],
    request: PlanRequest,
    keywords: Mapping[str, Any],
    tell: Callable[..., None],
) -> Candidate:
    """The placement that a planner makes; by ``auto``, the best by any planner where memory is
    short, unless constraints or ``split`` narrow down what may be planned.
    """
    limit = keywords.get("time_limit")
    ends = time.perf_counter() + (inf if limit is None else limit)
    is_narrow = keywords.get("split") == "none" or not request.constraints.is_of_memory
    if request.planner != _AUTO or is_narrow or request.greedy or problem.best_effort:
        return _first(problem, function, request, keywords)
    first, refused = None, None
    try:
        first = _first(problem, function, request, keywords)
    except InfeasibleError as error:
        refused = error
    is_tried = portfolio.may_gain(problem, first)
    best = first
    if is_tried:
        least = None if first is None else problem.objective.seconds(first.verdict)
        rivals = portfolio.others(
            problem, lambda name: tell(name, least), lambda: time.perf_counter() < ends
        )
        best = portfolio.best_of(first, rivals, lambda one: _confirmed(one, tell))
    if best is None:
        assert refused is not None
        raise refused
    if is_tried and time.perf_counter() >= ends:
        best = best.noted(f"the time limit of {limit:g} s left no time for some other methods")
    return best


def _first(
    problem: Problem,
    function: Callable[..., Candidate],
    request: PlanRequest,
    keywords: Mapping[str, Any],
) -> Candidate:
    """The placement that a planner makes.

    If a method finds nothing that fits: its placement with best effort, if that fits after all,
    else the placement that the search for the least overflow finds.
    """
    try:
        return function(problem, **keywords)
    except InfeasibleError as error:
        # The papers' own constraint is not the simulator's.
        is_static = request.options.get("memory") == "static"
        is_alone = request.greedy or request.planner.is_target or is_final(request.method)
        if is_alone or problem.best_effort or is_static or proof(problem):
            raise
        try:
            return least_overflow.rescued(problem, function, keywords)
        except InfeasibleError:
            again = ["the same with best effort"] * takes(function, "memory")
            tried = ", ".join([request.method, *again, "a search for the least overflow"])
            raise InfeasibleError(f"{error} Tried: {tried}.", error.shortfall) from error


def _in_stages(rivals: list[Candidate]) -> list[Candidate]:
    """The candidates with contiguous stages. Candidates that cannot have them are left out."""
    staged: list[Candidate] = []
    refused: InfeasibleError | None = None
    for one in rivals:
        try:
            staged.append(contiguous(one))
        except InfeasibleError as error:
            refused = refused or error
    if not staged:
        assert refused is not None
        raise refused
    return staged


def _rivals_in_stages(problem: Problem, method: str) -> Iterator[Candidate]:
    """Placements by the methods that compete with ``method`` where stages must be contiguous."""
    for rival in rivals_in_stages(method):
        with suppress(InfeasibleError):
            yield rival(problem)


def _beside_bound(
    whole: Problem, progress: Progress | None, *, is_target: bool
) -> Callable[..., None]:
    """Tells step times as incumbents, if there is somebody to tell.

    What a transform made of a problem, and what a target has, stands beside the bound of plans that
    may split ops: that of whole ops does not hold for it. An incumbent that has a bound keeps it.
    """
    least: dict[bool, float] = {}

    def tell(stage: str, makespan: float | None, problem: Problem = whole) -> None:
        if progress is None:
            return
        if makespan is None:
            progress(stage, None)
            return
        if isinstance(makespan, Incumbent) and makespan.lower_bound:
            progress(stage, makespan)
            return
        is_whole = problem.program is whole.program and not is_target
        if is_whole not in least:
            least[is_whole] = (bound if is_whole else split_bound)(whole).seconds
        progress(stage, Incumbent(makespan, least[is_whole]))

    return tell


def _plan(
    binding: Binding, candidate: Candidate, method: str, options: dict[str, Any], seconds: float
) -> Plan:
    """The plan on the user's cluster, not on the constrained one."""
    placed = binding.released(candidate.problem)
    bounds = _bounds(binding.problem, candidate)
    searched = candidate.space if placed.program is binding.original.program else SPLIT_OPS
    chosen = bounds[searched]
    return Plan(
        problem=placed,
        assignment=candidate.assignment,
        verdict=candidate.verdict.within(placed.cluster.memory),
        method=method,
        # A recipe is kept with the program that was made by it.
        options={key: value for key, value in options.items() if key != "recipe"},
        lower_bound=chosen.seconds,
        bound_source=chosen.source,
        space=searched,
        bounds={space: one.seconds for space, one in bounds.items()},
        offers=candidate.offers,
        notes=candidate.notes,
        planning_seconds=seconds,
        constraints=binding.constraints,
        parallelism=candidate.parallelism,
        for_writer=candidate.for_writer,
    )


def _bounds(problem: Problem, candidate: Candidate) -> dict[str, Bound]:
    """The bound of each space of plans for a problem, that of the candidate's maker among them."""
    bounds = {WHOLE_OPS: bound(problem), SPLIT_OPS: split_bound(problem)}
    came = candidate.bound
    if came is not None:
        bounds[came.space] = max(bounds[came.space], came, key=lambda one: one.seconds)
    return bounds
