"""PyTorch in one process, without and with graphs: whole ops, and who pays for launches.

``eager``: one thread of Python launches every op, of all devices, one after another
(:class:`~loadmaster.model.runtime.Dispatch`). A device runs ahead of nothing: where ops are short,
the thread is what limits the step, and a second device gains less than its share.

``graph``: kernels were captured before (CUDA graphs, ``torch.compile`` with
``mode="reduce-overhead"``), so that launching costs no op anything.

Both place whole ops, by the search of ``auto``.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from loadmaster.base.effort import Effort
from loadmaster.base.errors import InputError
from loadmaster.base.progress import Progress
from loadmaster.costs.roofline import PROVENANCES, Costs
from loadmaster.judge.problem import Problem
from loadmaster.model.cluster import Cluster
from loadmaster.model.runtime import Dispatch
from loadmaster.strategies.auto import auto
from loadmaster.strategies.candidate import Candidate
from loadmaster.systems.registry import Semantics, target


def _one_thread(problem: Problem) -> Problem:
    """The problem where one host pays for the launches, instead of each device."""
    cluster = problem.cluster
    if cluster.dispatch is not None and cluster.dispatch.one_host:
        return problem
    launch = cluster.dispatch.launch if cluster.dispatch else max(t.launch for t in cluster.types)
    if not launch:
        raise InputError(
            "target 'eager' prices launches, but no device type has a launch time, nor has the "
            "cluster a dispatch: give one (launch = \"5 us\"), or plan for target 'graph'"
        )
    source = "the launch of the device types, paid by the one thread of eager PyTorch"
    return _priced(problem, cluster.with_dispatch(Dispatch(launch, source=source)))


def no_launches(problem: Problem) -> Problem:
    """The problem where launches cost nothing."""
    cluster = problem.cluster
    if cluster.dispatch is None and not any(t.launch for t in cluster.types):
        return problem
    # A dispatch takes the launches out of the types; without one nobody pays them.
    return _priced(problem, cluster.with_dispatch(Dispatch(1.0)).with_dispatch(None))


def _priced(problem: Problem, cluster: Cluster) -> Problem:
    """The problem on another cluster, where the types' launches are no part of the ops' times."""
    before = problem.costs
    launch = np.array([t.launch for t in problem.cluster.types])
    estimated = (before.provenance == PROVENANCES.index("roofline"))[:, None] & (before.time > 0)
    time = np.where(estimated, np.maximum(before.time - launch, 0.0), before.time)
    made = Problem.make(
        problem.model,
        cluster,
        Costs(time, before.types, before.provenance),
        seed=problem.seed,
        best_effort=problem.best_effort,
        expert_imbalance=problem.expert_imbalance,
    )
    return replace(made, objective=problem.objective)


def _semantics(system: str, launches: str) -> Semantics:
    """Semantics that both have in common, with those that each has of its own."""
    return Semantics(
        system=system,
        models="any model",
        splits="nothing: every op is whole, on one device",
        unit="an op",
        moves="a tensor goes once to each device that reads it, while devices go on",
        launches=launches,
        memory="weights, activations and copies, per device",
    )


EAGER = _semantics(
    "PyTorch, eager, several devices in one process",
    "one thread launches the ops of all devices, one after another",
)
GRAPH = _semantics(
    "PyTorch with CUDA graphs, several devices in one process",
    "nobody, at the time of the step: kernels were captured before",
)


@target("eager", EAGER, priced=_one_thread, framework="torch")
@target("graph", GRAPH, priced=no_launches, framework="torch")
def whole_ops(
    problem: Problem,
    *,
    effort: Effort | float | None = None,
    time_limit: float | None = None,
    progress: Progress | None = None,
) -> Candidate:
    """Whole ops at the target's prices of launches; options as those of ``auto``."""
    return auto.place(
        problem, effort=effort, split="none", time_limit=time_limit, progress=progress
    )
