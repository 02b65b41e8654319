"""Launches that somebody else pays for than each device: one thread of the host, or nobody."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from loadmaster.base.errors import InputError
from loadmaster.costs.roofline import Costs, is_estimated
from loadmaster.judge.problem import Problem
from loadmaster.model.cluster import Cluster
from loadmaster.model.runtime import Dispatch


def by_one_thread(problem: Problem, name: str) -> Problem:
    """The problem where one host pays for the launches, instead of each device, for a system.

    Raises
    ------
    InputError
        The cluster does not say what a launch takes.
    """
    cluster = problem.cluster
    if cluster.dispatch is not None and cluster.dispatch.one_host:
        return problem
    launch = cluster.dispatch.launch if cluster.dispatch else max(t.launch for t in cluster.types)
    if not launch:
        raise InputError(
            f"target {name!r} prices launches, but no device type has a launch time, nor has the "
            "cluster a dispatch: give one (launch = \"5 us\"), or plan for target 'graph'"
        )
    source = "the launch of the device types, paid by the one thread of eager PyTorch"
    return _priced(problem, cluster.with_dispatch(Dispatch(launch, source=source)))


def by_nobody(problem: Problem) -> Problem:
    """The problem where launches cost nothing."""
    cluster = problem.cluster
    if cluster.dispatch is None and not any(t.launch for t in cluster.types):
        return problem
    # A dispatch takes the launches out of the types; without one nobody pays them.
    return _priced(problem, cluster.with_dispatch(Dispatch(1.0)).with_dispatch(None))


def _priced(problem: Problem, cluster: Cluster) -> Problem:
    """The problem on another cluster, where the types' launches are no part of the ops' times."""
    before = problem.costs
    launch = np.outer(problem.model.launches, [t.launch for t in problem.cluster.types])
    estimated = is_estimated(before.provenance)[:, None] & (before.time > 0)
    time = np.where(estimated, np.maximum(before.time - launch, 0.0), before.time)
    priced = Problem.make(
        problem.model,
        cluster,
        Costs(time, before.types, before.provenance),
        seed=problem.seed,
        best_effort=problem.best_effort,
        expert_imbalance=problem.expert_imbalance,
    )
    return replace(priced, objective=problem.objective)
