"""Advice on a graph and a cluster: the best plan of all, and what each system would make of it."""

from __future__ import annotations

import os
from collections.abc import Iterable

from loadmaster.base.errors import InfeasibleError, InputError
from loadmaster.base.progress import Progress, of_case
from loadmaster.base.quoting import command
from loadmaster.costs.runtimes.priced import at_runtime, on_hosts
from loadmaster.judge.problem import Problem
from loadmaster.judge.simulation import CostsLike, as_costs
from loadmaster.model.graph import OpGraph
from loadmaster.plans.advice import Advice, Choice
from loadmaster.plans.apart import in_order
from loadmaster.plans.planner import Planner
from loadmaster.rules.constraints import Constraints, as_constraints
from loadmaster.strategies.registry import DEFAULT
from loadmaster.systems.registry import is_planned_for, target_of
from loadmaster.tasks.given import ClusterLike, GraphLike, as_cluster, as_graph
from loadmaster.tasks.planning import PlanRequest, plan_for

#: Targets that are tried, by the framework that a graph is from: for training, and for inference.
_TRIED = {
    "torch": (
        ("ddp", "fsdp", "dtensor", "pipelining"),
        ("dtensor", "pipelining", "device-map", "vllm"),
    ),
    "onnx": ((), ("onnx", "openvino")),
    **dict.fromkeys(("jax", "stablehlo", "hlo"), (("jax",), ("jax",))),
}


def advise(
    graph: GraphLike,
    cluster: ClusterLike,
    costs: CostsLike | None = None,
    *,
    targets: Iterable[str] | None = None,
    constraints: Constraints | None = None,
    runtime: str | None = None,
    progress: Progress | None = None,
) -> Advice:
    """Advice on a graph and a cluster: plans by ``auto`` and for targets, the fastest first.

    Parameters
    ----------
    graph : OpGraph, path or ``"example:NAME"``
    cluster : Cluster, path of a TOML file, or name of a preset
    costs : optional
        As for :func:`loadmaster.place`.
    targets : iterable of str, optional
        Systems to plan for, by their names in :data:`loadmaster.systems.SYSTEMS`. If absent:
        those that run models of the framework that the graph is from.
    constraints : Constraints, optional
        Constraints that every plan must obey.
    runtime : "eager", "compiled" or "graphs", optional
        As for :func:`loadmaster.place`; a system that has another is refused.
    progress : callable, optional
        As for :func:`loadmaster.place`; stages stand behind the target and its number.

    Raises
    ------
    InputError
        Bad input, or a target of no known name.
    InfeasibleError
        Nothing fits: the message is that of ``auto``.

    Examples
    --------
    >>> import loadmaster as lm
    >>> graph, cluster = lm.read("example:lenet"), lm.Cluster.preset("2xV100-NVLink")
    >>> advice = lm.advise(graph, cluster, targets=["ddp"])
    >>> sorted(choice.name for choice in advice.choices)
    ['auto', 'ddp']
    """
    named = _named(graph, "GRAPH"), _named(cluster, "CLUSTER")
    graph, cluster = as_graph(graph), as_cluster(cluster)
    names = _tried(graph) if targets is None else list(targets)
    for name in names:
        target_of(name)  # Refuses an unknown one before any work.
    if runtime is not None:
        graph, cluster = at_runtime(graph, runtime), on_hosts(cluster, runtime)
    problem = Problem.make(graph, cluster, as_costs(costs, graph, cluster))
    rules = as_constraints(constraints)
    failed: InfeasibleError | None = None
    choices: list[Choice] = []
    refused: dict[str, str] = {}
    of = 1 + len(names)
    try:
        of_this = of_case(progress, f"{DEFAULT}, 1 of {of}")
        request = PlanRequest(constraints=rules, progress=of_this)
        choices.append(Choice(DEFAULT, "", plan_for(problem, request)))
    except InfeasibleError as error:
        failed, refused[DEFAULT] = error, str(error)
    for i, name in enumerate(names, start=2):
        try:
            of_this = of_case(progress, f"{name}, {i} of {of}")
            planner = Planner(name, is_target=True)
            request = PlanRequest(planner, constraints=rules, progress=of_this)
            plan = plan_for(problem, request)
            choices.append(Choice(name, f" {command('--target', name)}", plan))
        except (InputError, InfeasibleError) as error:
            refused[name] = str(error)
    if not choices:
        assert failed is not None
        raise failed
    choices, unsure = in_order(choices, lambda one: one.plan)
    return Advice(tuple(choices), refused, *named, unsure=unsure)


def _named(argument: object, word: str) -> str:
    """The argument of the command line: a name or a path that was given, else a word for
    one.
    """
    return os.fspath(argument) if isinstance(argument, str | os.PathLike) else word


def _tried(graph: OpGraph) -> list[str]:
    """Targets for the framework that a graph says that it is from; none where it does not say."""
    framework = str(graph.meta.get("framework", "")).partition(" ")[0].partition(".")[0]
    training, inference = _TRIED.get(framework, ((), ()))
    return [*filter(is_planned_for, training if graph.updates.any() else inference)]
