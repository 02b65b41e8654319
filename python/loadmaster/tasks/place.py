"""The front door: place a graph on a cluster, compare methods, bound what is possible."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from loadmaster.base import checks
from loadmaster.base.errors import InfeasibleError, InputError, MissingExtraError
from loadmaster.base.progress import Incumbent, Progress, of_case
from loadmaster.base.units import format_bytes, format_seconds
from loadmaster.judge.allowed import check_allowed
from loadmaster.judge.assignment import Assignment
from loadmaster.judge.bounds import SPLIT_OPS, WHOLE_OPS, Bound, bound, split_bound
from loadmaster.judge.objective import OBJECTIVES, Goal
from loadmaster.judge.problem import Problem
from loadmaster.judge.simulation import CostsLike, as_costs
from loadmaster.judge.streaming import streamed
from loadmaster.model.recipe import Recipe, imbalance
from loadmaster.plans.comparison import Comparison
from loadmaster.plans.plan import Plan
from loadmaster.plans.planner import Planner
from loadmaster.rules.binding import Binding, bind
from loadmaster.rules.constraints import Constraints, as_constraints
from loadmaster.rules.stages import Stages
from loadmaster.strategies import least_overflow
from loadmaster.strategies.auto.v_cycle import polished
from loadmaster.strategies.candidate import Candidate
from loadmaster.strategies.contiguous import contiguous
from loadmaster.strategies.options import takes
from loadmaster.strategies.pipelines.throughput import balanced
from loadmaster.strategies.refusal import proof
from loadmaster.strategies.registry import (
    DEFAULT,
    FORMER_NAMES,
    METHODS,
    Method,
    function_of,
    is_final,
    options_of,
    rivals_in_stages,
)
from loadmaster.strategies.warm import as_candidates, carried_over
from loadmaster.systems.registry import check_no_target, limits_of, target_of
from loadmaster.tasks.given import ClusterLike, GraphLike, as_cluster, as_graph

OnOom = Literal["error", "best_effort"]


def place(
    graph: GraphLike,
    cluster: ClusterLike,
    method: Method | str = DEFAULT,
    costs: CostsLike | None = None,
    seed: int = 0,
    time_limit: float | None = None,
    *,
    on_oom: OnOom = "error",
    refine: bool = False,
    warm_start: Plan | None = None,
    constraints: Constraints | None = None,
    recipe: Recipe | None = None,
    objective: Goal = "step",
    expert_imbalance: float | None = None,
    target: str | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> Plan:
    """Decides on which device every op runs, and in which order.

    Parameters
    ----------
    graph : OpGraph, path or ``"example:NAME"``
    cluster : Cluster, path of a TOML file, or name of a preset
    method : str
        A name in :data:`loadmaster.strategies.METHODS`, which says what each method does.
        ``"auto"`` searches for the best plan, replicas among them; with ``split="none"`` it places
        every op whole. Others are ``"celeritas"``,
        ``"heft"``, ``"m-sct"``, ``"metis"``, ...
    costs : Costs, CostModel, Regression, or float64 [n_ops] or [n_ops, n_types], optional
        Seconds. If absent: measured times where the graph has them, else the roofline.
    seed : int
        For methods that draw.
    time_limit : float, optional
        Seconds for methods that search. If absent: 10 for solvers, no limit for ``auto`` and
        ``os-dpos``. Other methods are done in milliseconds.
    on_oom : "error" (default) or "best_effort"
        Whether a graph that does not fit is an error, or is placed all the same. Such a plan says
        that it does not fit.
    refine : bool
        Whether the method's placement is then refined
        (:func:`loadmaster.strategies.auto.v_cycle.polished`). This takes about a second and never
        makes the plan worse. It works on 64 devices at most.
    warm_start : Plan, optional
        A plan for the same ops, on any cluster. The answer is no worse than this plan. ``auto``
        starts from it as from its seeds, and ``mcmc`` starts one of its walks from it. Other
        methods ignore it, and the better of their plan and this one counts. An op stays on the
        device of the same name. If there is no such device, or the constraints forbid it, see
        :func:`loadmaster.strategies.warm.as_candidates`.
    constraints : Constraints, optional
        Constraints that the plan must obey, whatever the method.
    recipe : Recipe, optional
        What is split how. It is applied and judged as it is: nothing is searched, and the plan's
        method is ``"recipe"``. What it leaves ``"auto"`` is found by ``"sharded"``, and the rest
        stays as it says.
    objective : "step" (default) or "throughput"
        What is to be short: one step from start to end, or the time between batches when one
        follows another without a pause (:attr:`Plan.period`). A stream of steps is then simulated,
        which says how many batches are under way (:mod:`loadmaster.judge.streaming`).
    expert_imbalance : float, optional
        How much more than its fair share of the experts' work the busiest device does, where
        devices share the experts of a mixture: 1 or more. If absent: what the recipe says, else 1,
        tokens spread evenly. A plan that shares experts says which it took.
    target : str, optional
        The system that will run the plan, by a name in :data:`loadmaster.systems.SYSTEMS`. The
        plan is then made within what that system can run, and priced as it runs it; there is no
        ``method``, and ``options`` are those of the target. What was planned for a target is
        exported to it.
    progress : callable, optional
        Called with the stage and the best plan so far (:class:`Incumbent`: seconds, with a lower
        bound and the gap), or None.
    options
        Options of the method. For ``auto``: ``effort`` ("fast", "normal" or "max": about 1, 15 or
        60 s of work), ``split``, ``gap``, ``chains``, ``threads``. For ``celeritas``,
        ``order-place`` and ``glb``: ``max_ops`` (the paper's R, 200), ``max_bytes`` (M, as a share
        of the smallest memory, 0.25), ``max_time`` (seconds of compute in a group; none). For list
        schedulers: ``contention=False`` for the classic model of unlimited channels. For all but a
        few: ``memory="static"``, which charges resident and output bytes for the whole step, as the
        papers do. For ``data-parallel``: ``aggregation``, ``shards``, ``replicas``.

    Returns
    -------
    Plan
        Judged by the simulator, with a lower bound.

    Raises
    ------
    InputError
        Bad input; the culprit is named. Constraints that contradict each other; both are named.
    InfeasibleError
        No placement was found that fits; ``shortfall`` has the bytes short per device.

    Examples
    --------
    >>> import loadmaster as lm
    >>> plan = lm.place(lm.read("example:alexnet"), lm.Cluster.preset("4xV100-PCIe"))
    >>> plan.makespan >= plan.lower_bound > 0
    True
    """
    graph, cluster = as_graph(graph), as_cluster(cluster)
    if on_oom not in ("error", "best_effort"):
        raise InputError(f"on_oom is {on_oom!r}: wants 'error' or 'best_effort'")
    # A plan keeps its options as JSON, which has no numpy numbers.
    options = {k: v.item() if isinstance(v, np.generic) else v for k, v in options.items()}
    if target is not None:
        others = _others(method, recipe, refine, warm_start, constraints)
        target_of(target).decides_alone(others)
        target_of(target).checked(options)
    if expert_imbalance is not None:
        expert_imbalance = imbalance(expert_imbalance)
    if recipe is not None:
        options["recipe"] = recipe = _checked(recipe, expert_imbalance)
        expert_imbalance = recipe.expert_imbalance
        if method == DEFAULT:
            method = "sharded" if recipe.is_open else "recipe"
    if target is None:
        check_no_target(method)
        function_of(method, options)  # Refuses the impossible before any work.
    checks.one_of("objective", objective, tuple(OBJECTIVES))
    began = time.perf_counter()
    if progress is not None:
        progress("costs", None)
    given = Problem.make(
        graph,
        cluster,
        as_costs(costs, graph, cluster),
        seed=checks.seed(seed),
        best_effort=on_oom == "best_effort",
        expert_imbalance=1.0 if expert_imbalance is None else expert_imbalance,
    )
    return plan_for(
        replace(given, objective=OBJECTIVES[objective]),
        method,
        began=began,
        time_limit=time_limit,
        refine=refine,
        warm_start=warm_start,
        constraints=constraints,
        target=target,
        progress=progress,
        **options,
    )


def _checked(recipe: Recipe, expert_imbalance: float | None) -> Recipe:
    """A user's recipe, with what is said of experts beside it."""
    if not isinstance(recipe, Recipe):
        raise InputError(f"recipe is {recipe!r}: wants a Recipe, such as Recipe.load(path)")
    if expert_imbalance is None:
        return recipe
    return replace(recipe, expert_imbalance=expert_imbalance)


def _others(
    method: str,
    recipe: Recipe | None,
    refine: bool,
    warm_start: Plan | None,
    constraints: Constraints | None,
) -> dict[str, bool]:
    """What would decide beside a target, by name, and whether it is given."""
    return {
        f"method {method!r}": method != DEFAULT,
        "recipe": recipe is not None,
        "refine": refine,
        "warm_start": warm_start is not None,
        "contiguous": constraints is not None and constraints.contiguous,
    }


def plan_for(
    given: Problem,
    method: Method | str,
    *,
    began: float | None = None,
    time_limit: float | None = None,
    refine: bool = False,
    warm_start: Plan | None = None,
    constraints: Constraints | None = None,
    progress: Progress | None = None,
    greedy: bool = False,
    target: str | None = None,
    **options: Any,
) -> Plan:
    """:func:`place` for a given problem, whose program may be a transformed one.

    ``began`` is the time at which planning began (``time.perf_counter``), if that is not now. With
    ``greedy``, a method that finds nothing that fits fails: nothing else is tried.
    """
    checks.flag("refine", refine)
    method = FORMER_NAMES.get(method, method) if isinstance(method, str) else method
    if time_limit is not None:
        time_limit = checks.time_limit(time_limit)
    function, given = _planner(given, method, target, options)
    began = time.perf_counter() if began is None else began
    told = progress or (lambda stage, best: None)
    constraints = as_constraints(constraints)
    binding = bind(given, constraints)
    problem = binding.problem
    if constraints.contiguous:
        Stages.of(problem)  # Refuses the impossible before any work.
        # A stage holds its ops whole.
        options = {"split": "none", **options} if takes(function, "split") else options
    begun, before = _started(problem, warm_start)
    told(target or method, None)
    tell = _beside_bound(problem, progress)
    passed_on = {
        "time_limit": time_limit,
        "progress": tell,
        # Methods search among placements of the problem's own ops.
        "warm_start": before if begun is problem else None,
        "start_search": _search_whole_ops,
    }
    asked = {name: value for name, value in passed_on.items() if takes(function, name)}
    try:
        check_allowed(problem)
        made = _made(problem, function, method, options, asked, greedy=greedy or target is not None)
        rivals = [made, *as_candidates(begun, before)]
        if refine:
            tell("refine", problem.objective.seconds(made.verdict), made.problem)
            rivals = [_refined(one) for one in rivals]
            options["refine"] = True
        if constraints.contiguous:
            tell("contiguous stages", problem.objective.seconds(made.verdict), made.problem)
            rivals = _in_stages([*rivals, *_rivals_in_stages(problem, method)])
    except InfeasibleError as error:
        if constraints.is_empty:
            raise
        raise InfeasibleError(f"{error} Constraints: {constraints}.", error.shortfall) from error
    candidate = _confirmed(problem.objective.best(rivals), tell)
    if made.bound is not None and (made.space != WHOLE_OPS or made.problem is problem):
        candidate = replace(candidate, bound=made.bound, space=made.space, offers=made.offers)
    if warm_start is not None:
        candidate = candidate.noted(_began_with(problem, warm_start))
    plan = _plan(binding, candidate, method, options, time.perf_counter() - began)
    left_out = made.left_out if target is None else limits_of(target)
    plan = replace(plan, target=target, left_out=left_out)
    told("bound", Incumbent(problem.objective.seconds(plan.verdict), plan.lower_bound))
    return plan


def _planner(
    given: Problem, method: str, target: str | None, options: dict[str, Any]
) -> tuple[Callable[..., Candidate], Problem]:
    """What plans, and the problem at the prices that it plans by."""
    if target is None:
        check_no_target(method)
        return function_of(method, options), given
    system = target_of(target)
    system.check_framework(given.model)
    return system.plan, system.priced(given)


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
    found = replace(one, verdict=verdict)
    if one.fits and not found.fits and not one.problem.best_effort:
        short = one.problem.cluster.shortfall(verdict.peak)
        devices = ", ".join(f"{device} by {format_bytes(size)}" for device, size in short.items())
        raise InfeasibleError(
            f"a step fits, but steps one after another do not: short on {devices}. Give more "
            "memory, or place with objective='step'",
            short,
        )
    return found


def _search_whole_ops(problem: Problem, **options: Any) -> Candidate:
    """What methods that start from a search are given: they place ops whole."""
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


def _made(
    problem: Problem,
    function: Callable[..., Candidate],
    method: str,
    options: dict[str, Any],
    asked: dict[str, Any],
    *,
    greedy: bool,
) -> Candidate:
    """The placement that a method makes.

    If the method finds nothing that fits: its placement with best effort, if that fits after all,
    else the placement that the search for the least overflow finds.
    """
    try:
        return function(problem, **options, **asked)
    except InfeasibleError as error:
        # The papers' own constraint is not the simulator's.
        is_static = options.get("memory") == "static"
        if greedy or problem.best_effort or is_static or is_final(method) or proof(problem):
            raise
        closest: Candidate | None = None
        tried = [method]
        if takes(function, "memory"):
            tried.append("the same with best effort")
            with suppress(InfeasibleError):
                closest = function(replace(problem, best_effort=True), **options, **asked)
                closest = replace(closest, problem=replace(closest.problem, best_effort=False))
        if closest is not None and closest.fits:
            return closest
        if closest is not None and closest.problem.program is not problem.program:
            closest = None
        tried.append("a search for the least overflow")
        try:
            return least_overflow.place(problem, closest)
        except InfeasibleError:
            raise InfeasibleError(f"{error} Tried: {', '.join(tried)}.", error.shortfall) from error


def _in_stages(rivals: list[Candidate]) -> list[Candidate]:
    """The candidates with contiguous stages. Candidates that cannot have them are left out."""
    found: list[Candidate] = []
    refused: InfeasibleError | None = None
    for one in rivals:
        try:
            found.append(contiguous(one))
        except InfeasibleError as error:
            refused = refused or error
    if not found:
        assert refused is not None
        raise refused
    return found


def _rivals_in_stages(problem: Problem, method: str) -> Iterator[Candidate]:
    """Placements by the methods that compete with ``method`` where stages must be contiguous."""
    for rival in rivals_in_stages(method):
        with suppress(InfeasibleError):
            yield rival(problem)


def _beside_bound(given: Problem, told: Progress | None) -> Callable[..., None]:
    """Tells step times as incumbents, if there is somebody to tell.

    What a transform made of a problem stands beside the bound of plans that may split ops: that of
    whole ops does not hold for it. An incumbent that has a bound keeps it.
    """
    least: dict[bool, float] = {}

    def tell(stage: str, makespan: float | None, problem: Problem = given) -> None:
        if told is None:
            return
        if makespan is None:
            told(stage, None)
            return
        if isinstance(makespan, Incumbent) and makespan.lower_bound:
            told(stage, makespan)
            return
        is_whole = problem.program is given.program
        if is_whole not in least:
            least[is_whole] = (bound if is_whole else split_bound)(given).seconds
        told(stage, Incumbent(makespan, least[is_whole]))

    return tell


def _plan(
    binding: Binding, candidate: Candidate, method: str, options: dict[str, Any], seconds: float
) -> Plan:
    """The plan on the user's cluster, not on the constrained one."""
    placed = binding.released(candidate.problem)
    bounds = _bounds(binding.problem, candidate)
    searched = candidate.space if placed.program is binding.given.program else SPLIT_OPS
    found = bounds[searched]
    return Plan(
        problem=placed,
        assignment=candidate.assignment,
        verdict=candidate.verdict.within(placed.cluster.memory),
        method=method,
        # A recipe is kept with the program that was made by it.
        options={key: value for key, value in options.items() if key != "recipe"},
        lower_bound=found.seconds,
        bound_source=found.source,
        space=searched,
        bounds={space: one.seconds for space, one in bounds.items()},
        offers=candidate.offers,
        notes=candidate.notes,
        planning_seconds=seconds,
        constraints=binding.constraints,
        parallelism=candidate.parallelism,
    )


def _bounds(problem: Problem, candidate: Candidate) -> dict[str, Bound]:
    """The bound of each space of plans for a problem, that of the candidate's maker among them."""
    bounds = {WHOLE_OPS: bound(problem), SPLIT_OPS: split_bound(problem)}
    came = candidate.bound
    if came is not None:
        bounds[came.space] = max(bounds[came.space], came, key=lambda one: one.seconds)
    return bounds


def compare(
    graph: GraphLike,
    cluster: ClusterLike,
    methods: Iterable[Method | str] = (),
    costs: CostsLike | None = None,
    seed: int = 0,
    *,
    targets: Iterable[str] = (),
    time_limit: float | None = None,
    on_oom: OnOom = "error",
    constraints: Constraints | None = None,
    objective: Goal = "step",
    progress: Progress | None = None,
    **options: Any,
) -> Comparison:
    """Places the same graph by several methods, and for several targets, under the same
    constraints.

    A method gets those of the ``options`` that it takes, and the ``time_limit`` if it takes one. A
    target that is named ``ddp`` is called ``"target ddp"`` in what is returned, and has its default
    options. A method or target that finds no placement that fits or is for other graphs, and a
    method whose extra is not installed, are listed with their reason.

    Raises
    ------
    InputError
        Bad input, or an option that none of the methods takes.

    Examples
    --------
    >>> import loadmaster as lm
    >>> g, c = lm.read("example:lenet"), lm.Cluster.preset("2xV100-NVLink")
    >>> sorted(lm.compare(g, c, ["celeritas", "single"], targets=["ddp"]).plans)
    ['celeritas', 'single', 'target ddp']
    """
    graph, cluster = as_graph(graph), as_cluster(cluster)
    plans: dict[str, Plan] = {}
    failures: dict[str, str] = {}
    wrong: list[InputError] = []
    shared = as_costs(costs, graph, cluster)
    methods = list(methods)
    for method in methods:
        check_no_target(method)
    takes = {Planner(method): [option.name for option in options_of(method)] for method in methods}
    for name in options:
        if not any(name in known for known in takes.values()):
            raise InputError(f"none of the methods {', '.join(methods)} has an option {name!r}")
    takes |= {Planner(target_of(target).name, is_target=True): [] for target in targets}
    for i, (planner, known) in enumerate(takes.items(), start=1):
        name = str(planner)
        try:
            plans[name] = place(
                graph,
                cluster,
                costs=shared,
                seed=seed,
                time_limit=time_limit,
                on_oom=on_oom,
                constraints=constraints,
                objective=objective,
                progress=of_case(progress, f"{name}, {i} of {len(takes)}"),
                **planner.arguments,
                **{option: value for option, value in options.items() if option in known},
            )
        except (InfeasibleError, MissingExtraError, InputError) as error:
            failures[name] = str(error)
            wrong += [error] if isinstance(error, InputError) else []
    if len(wrong) == len(takes) > 0 and len(set(failures.values())) == 1:
        raise wrong[0]  # It is no method's: the input itself is wrong.
    return Comparison(plans, failures)
