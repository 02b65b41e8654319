"""Comparison: one graph placed by several methods, and for several targets."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import Any

from loadmaster.base.errors import InfeasibleError, InputError, MissingExtraError
from loadmaster.base.progress import Progress, of_case
from loadmaster.judge.objective import Goal
from loadmaster.judge.simulation import CostsLike, as_costs
from loadmaster.plans.comparison import Comparison
from loadmaster.plans.plan import Plan
from loadmaster.plans.planner import Planner
from loadmaster.rules.constraints import Constraints
from loadmaster.strategies.options import no_option
from loadmaster.strategies.registry import Method, options_of
from loadmaster.systems.registry import check_no_target, target_of
from loadmaster.tasks.given import ClusterLike, GraphLike, OnOom, as_cluster, as_graph
from loadmaster.tasks.place import place


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
            begun = f"none of the methods {', '.join(methods)} has an option {name!r}"
            raise no_option(begun, name, [*dict.fromkeys(chain.from_iterable(takes.values()))])
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
