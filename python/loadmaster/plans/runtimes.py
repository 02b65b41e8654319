"""The runtime of a plan, and what another one would gain."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from loadmaster.costs.program import program_costs
from loadmaster.costs.roofline import (
    PROVENANCES,
    Costs,
    estimate,
    is_of_kernels,
    roofline_costs,
)
from loadmaster.costs.runtimes.priced import RUNTIMES, at_runtime, on_hosts, runtime_of
from loadmaster.judge.problem import Problem
from loadmaster.model.cluster import Cluster
from loadmaster.model.graph import OpGraph
from loadmaster.plans.plan import Plan

#: The least gain that is worth a word.
_WORTH = 1.02

#: Sources of times that hold for one runtime only.
_KNOWN = [PROVENANCES.index(word) for word in ("measured", "regressed", "given", "scaled", "bytes")]


def gains(plan: Plan) -> dict[str, float]:
    """The step of a plan, as it says it, over what it is by other runtimes, by their names.

    The same ops run on the same devices in the same order. Each takes its kernels' time, multiplied
    by that of the user's op in the runtime over what it is now; what the program adds is priced
    anew. Empty where times were measured, where the plan has a runtime already, and where the model
    is not PyTorch's.

    Notes
    -----
    A simulation for each runtime.
    """
    before = plan.problem.user_costs
    is_known = plan.observed is not None or np.isin(before.provenance, _KNOWN).any()
    is_torch = str(plan.graph.meta.get("framework", "")).startswith("torch")
    if is_known or not is_torch or runtime_of(plan.graph) is not None:
        return {}
    names = [name for name in RUNTIMES if name != "eager"]
    return {name: plan.makespan / _seconds(plan, name, before) for name in names}


def _seconds(plan: Plan, runtime: str, before: Costs) -> float:
    """The step of a plan by another runtime."""
    problem = plan.problem
    source = at_runtime(plan.graph, runtime)
    cluster = on_hosts(plan.cluster, runtime)
    by_kernels = is_of_kernels(before.provenance).any()
    after = estimate(source, cluster) if by_kernels else roofline_costs(source, cluster)
    kernels = _without_launches(before.time, plan.graph, plan.cluster)
    ratio = np.divide(after.time, kernels, out=np.ones_like(kernels), where=kernels > 0)
    time = _without_launches(problem.costs.time, problem.model, plan.cluster)
    time *= ratio[problem.program.serves]
    graph: OpGraph = source if problem.program.is_plain else problem.program.graph
    program = replace(problem.program, source=source, graph=graph)
    time[program.own] = program_costs(program, after, cluster).time[program.own]
    costs = replace(problem.costs, time=time)
    other = Problem.make(program, cluster, costs, seed=problem.seed, best_effort=True)
    return float(other.verdict(plan.assignment).step_time)


def _without_launches(
    time: NDArray[np.float64], graph: OpGraph, cluster: Cluster
) -> NDArray[np.float64]:
    """Seconds of ops without the launches that devices wait for."""
    launch = np.outer(graph.launches, [t.launch for t in cluster.types])
    left: NDArray[np.float64] = np.maximum(time - launch, 0.0)
    return left


def in_words(plan: Plan) -> str:
    """The runtime of a plan, or what others gain, as options of a command; empty: neither."""
    runtime = runtime_of(plan.graph)
    if runtime is not None:
        return f"{runtime}: {RUNTIMES[runtime]}"
    some = {name: gain for name, gain in gains(plan).items() if gain >= _WORTH}
    return ", ".join(f"--runtime {name}: {gain:.2f} x" for name, gain in some.items())
