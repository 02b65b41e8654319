"""Replicas among the plans of ``auto``: whole, with a sharded optimizer, and on fewer devices.

Each is judged once. Replicas on fewer devices are left out where their work alone takes longer than
the best of those on more.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from loadmaster.base.errors import InfeasibleError, InputError
from loadmaster.judge.bounds import SPLIT_OPS
from loadmaster.judge.problem import Problem
from loadmaster.strategies.auto.run import Run
from loadmaster.strategies.candidate import Best, Candidate
from loadmaster.strategies.simple import data_parallel
from loadmaster.transforms.shares import batch_size

#: How gradients are added up: the options of ``data-parallel``, and how a person would say it.
WAYS: tuple[tuple[dict[str, Any], str], ...] = (
    ({"aggregation": "all-reduce"}, "gradients all-reduced"),
    ({"aggregation": "reduce-scatter", "shards": "flat"}, "optimizer sharded flat"),
    ({"aggregation": "reduce-scatter", "shards": "parameters"}, "optimizer sharded by parameters"),
)


def can_be_replicated(problem: Problem) -> bool:
    """Whether there are samples to share out, as far as the graph says, and devices for them."""
    several = problem.cluster.n_devices > 1 and (batch_size(problem.model) or 1) > 1
    return several and problem.program.is_plain


def replicas(run: Run) -> Iterator[tuple[Candidate, Best]]:
    """Replicas that fit, each with what it offers, until a time limit is over."""
    problem = run.problem
    best: Candidate | None = None
    ways = WAYS if problem.model.updates.any() else WAYS[:1]
    n = problem.cluster.n_devices
    while n > 1:
        for options, words in ways:
            if best is not None and run.budget.lacks(0.0):
                return
            try:
                found = data_parallel.place(problem, replicas=n, **options)
            except InfeasibleError as error:
                run.lack(f"{n} replicas, {words}", error.shortfall)
                continue
            except InputError:
                continue
            if found.problem.program.is_plain:
                continue
            k = int(found.problem.program.replica.max()) + 1
            summing = f", {words}" if found.problem.has_collectives else ""
            yield found, Best(SPLIT_OPS, f"{k} replicas{summing}", found.verdict.step_time)
            best = found if best is None else problem.objective.better(best, found)
        n //= 2
        types = problem.cluster.device_types
        fastest = float(problem.time[:, types].sum(axis=0).min())
        if best is not None and problem.objective.reaches(best.verdict, fastest / n):
            return
