"""The front door: places a graph on a cluster by a method, or for a target."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np

from loadmaster.base import checks
from loadmaster.base.errors import InputError
from loadmaster.base.progress import Progress
from loadmaster.costs.runtimes.priced import at_runtime, on_hosts
from loadmaster.judge.objective import OBJECTIVES, Goal
from loadmaster.judge.problem import Problem
from loadmaster.judge.simulation import CostsLike, as_costs
from loadmaster.model.recipe import Recipe, imbalance
from loadmaster.plans.plan import Plan
from loadmaster.plans.planner import Planner
from loadmaster.rules.constraints import Constraints, as_constraints
from loadmaster.strategies.registry import DEFAULT, Method
from loadmaster.systems.registry import target_of
from loadmaster.tasks.given import ClusterLike, GraphLike, OnOom, as_cluster, as_graph
from loadmaster.tasks.planning import PlanRequest, check_planner, plan_for


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
    runtime: str | None = None,
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
    runtime : "eager", "compiled" or "graphs", optional
        What runs the ops: one kernel an op; kernels fused as ``torch.compile`` does; the same,
        replayed as CUDA graphs (:data:`loadmaster.costs.runtimes.priced.RUNTIMES`). A host for each
        device launches kernels ahead of it. If absent: one kernel an op, and a device waits for
        each of its launches.
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
    graph, cluster, rules = as_graph(graph), as_cluster(cluster), as_constraints(constraints)
    if on_oom not in ("error", "best_effort"):
        raise InputError(f"on_oom is {on_oom!r}: wants 'error' or 'best_effort'")
    # A plan keeps its options as JSON, which has no numpy numbers.
    options = {k: v.item() if isinstance(v, np.generic) else v for k, v in options.items()}
    if target is not None:
        others = _others(method, recipe, refine, warm_start, rules)
        target_of(target).decides_alone(others)
    if expert_imbalance is not None:
        expert_imbalance = imbalance(expert_imbalance)
    if recipe is not None:
        options["recipe"] = recipe = _checked(recipe, expert_imbalance)
        expert_imbalance = recipe.expert_imbalance
        if method == DEFAULT:
            method = "sharded" if recipe.is_open else "recipe"
    planner = Planner(method) if target is None else Planner(target, is_target=True)
    check_planner(planner, options)  # Refuses the impossible before any work.
    checks.one_of("objective", objective, tuple(OBJECTIVES))
    began = time.perf_counter()
    if progress is not None:
        progress("costs", None)
    if runtime is not None:
        graph, cluster = at_runtime(graph, runtime), on_hosts(cluster, runtime)
    problem = Problem.make(
        graph,
        cluster,
        as_costs(costs, graph, cluster),
        seed=checks.seed(seed),
        best_effort=on_oom == "best_effort",
        expert_imbalance=1.0 if expert_imbalance is None else expert_imbalance,
    )
    return plan_for(
        replace(problem, objective=OBJECTIVES[objective]),
        PlanRequest(
            planner=planner,
            options=options,
            time_limit=time_limit,
            refine=refine,
            warm_start=warm_start,
            constraints=rules,
            progress=progress,
        ),
        began=began,
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
    constraints: Constraints,
) -> dict[str, bool]:
    """Arguments that would decide beside a target, by name; True where one is given."""
    return {
        f"method {method!r}": method != DEFAULT,
        "recipe": recipe is not None,
        "refine": refine,
        "warm_start": warm_start is not None,
        "contiguous": constraints.contiguous,
    }
