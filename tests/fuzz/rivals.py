"""``auto`` beside every method and every system, on captured models where memory is tight or ample.

A finding is a plan of another that is shorter by more than ``BEHIND``, a refusal by ``auto`` where
another plans, and an exception that is not this project's. Searches that go on for as long as they
are given are no rivals, nor are systems whose launches are paid for by others than in the case. A
case takes a minute: continuous integration has one, in ``tests/tasks/test_portfolio.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from random import Random

from folders import DATA

import loadmaster as lm
from loadmaster.base.errors import InfeasibleError, InputError
from loadmaster.judge.objective import OBJECTIVES, Goal
from loadmaster.judge.problem import Problem
from loadmaster.plans.planner import Planner
from loadmaster.strategies.registry import DEFAULT
from loadmaster.systems.shared.launches import by_nobody
from loadmaster.tasks.planning import PlanRequest, plan_for
from loadmaster.tasks.portfolio import planners

from .frame import target

#: The share by which the plan of another may be shorter.
BEHIND = 0.001

MODELS = sorted((DATA / "models").glob("*.json.gz"))

CLUSTERS = (
    "2xV100-NVLink",
    "4xV100-PCIe",
    "4xV100-NVLink",
    "4xL4-PCIe",
    "8xV100-NVLink",
    "8xH100-NVLink",
    "2x4xV100-25GbE",
    "moirai-inter",
)


@dataclass(frozen=True)
class Case:
    """A model on a cluster, with so much memory and an objective.

    Attributes
    ----------
    model : str
    problem : Problem
    words : str
    """

    model: str
    problem: Problem
    words: str


@target("auto-rivals", in_ci=0, seconds=300)
def one(random: Random) -> None:
    """A case, which ends as it should beside every method and every system."""
    case = drawn(random)
    found = list(findings(case))
    assert not found, f"{case.words}: {'; '.join(found)}"


def drawn(random: Random) -> Case:
    """A case. The memory of a device is a multiple of an equal part of what one device needs."""
    model, name = random.choice(MODELS), random.choice(CLUSTERS)
    graph, cluster = read(str(model)), lm.Cluster.preset(name)
    share = 0.7 * 4.5 ** random.random()
    needs = peak(str(model), name)
    memory = int(share * needs / cluster.n_devices)
    cluster = cluster.with_memory(memory)
    if random.random() < 0.2:
        cluster = cluster.with_memory(memory // 2, random.randrange(cluster.n_devices))
    goal: Goal = random.choice(("step", "step", "throughput"))
    problem = Problem.make(graph, cluster, lm.costs.estimate(graph, cluster))
    problem = replace(problem, objective=OBJECTIVES[goal])
    paid = random.random() < 0.8
    words = f"{model.name.split('.')[0]} on {name} of {cluster.memory}, {goal}"
    words += "" if paid else ", launches for nothing"
    return Case(model.name, problem if paid else by_nobody(problem), words)


@cache
def read(path: str) -> lm.OpGraph:
    """The graph of a file."""
    return lm.read(path)


@cache
def peak(path: str, cluster: str) -> int:
    """Bytes that one device of a cluster would need."""
    plan = lm.place(read(path), cluster, "single", on_oom="best_effort")
    return int(plan.memory.peak.max())


def seconds(case: Case, planner: Planner) -> float | None:
    """Seconds of the plan of a planner; None: it refuses the case."""
    try:
        plan = plan_for(case.problem, PlanRequest(planner=planner))
    except (InputError, InfeasibleError, lm.MissingExtraError):
        return None
    return case.problem.objective.seconds(plan.verdict)


def findings(case: Case) -> Iterator[str]:
    """Whatever is wrong with ``auto``."""
    own = seconds(case, Planner(DEFAULT))
    for planner in planners(case.problem):
        other = seconds(case, planner)
        if other is None:
            continue
        if own is None:
            yield f"auto refuses, {planner.name} takes {other:.6g} s"
        elif other < own * (1 - BEHIND):
            yield f"auto is {own / other - 1:.2%} behind {planner.name}"
