"""A solver's lower bound for a graph as it is.

Memory is left out, and channels that CP-SAT models serve in any order, so that it holds for every
plan there can be.
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from importlib.util import find_spec

import numpy as np

import loadmaster.fast as fast
from loadmaster.judge.bounds import Bound
from loadmaster.judge.problem import Problem, by_start
from loadmaster.milp import cpsat, ilp
from loadmaster.milp.instance import MilpInstance, instance_of
from loadmaster.milp.timing import Timed, settled
from loadmaster.strategies.deciders import deciders
from loadmaster.strategies.exact.ilp import MAX_ROWS
from loadmaster.strategies.exact.programs import by_program
from loadmaster.strategies.exact.solving import GROUPS


def raised(problem: Problem, known: Bound, seconds: float) -> Bound:
    """The bound, or a solver's if that is larger: CP-SAT's where it is installed, else that of the
    program ``ilp`` by CBC. A graph with more ops or rows than ``ilp`` takes keeps its bound.
    """
    if problem.graph.n_ops > max(GROUPS) or seconds == 0:
        return known
    none = np.zeros(problem.graph.n_ops, dtype=np.uint64)
    instance = instance_of(problem, none, known.seconds)
    if ilp.estimated_rows(instance) > MAX_ROWS:
        return known
    source, least = _solved(instance, _listed(problem, instance), seconds)
    if least <= known.seconds:
        return known
    return replace(known, seconds=least, source=source, parts={**known.parts, source: least})


def _listed(problem: Problem, instance: MilpInstance) -> Timed:
    """A list schedule, for which memory is no matter."""
    graph = problem.graph
    _, rank = fast.levels(problem.weights)
    most = np.full(problem.cluster.n_devices, np.iinfo(np.uint64).max)
    order = fast.priority_order(graph, rank)
    free = np.zeros(graph.n_ops, dtype=np.uint64)
    devices, begin, finish = fast.schedule(
        problem.core.led_by(deciders(graph)[0]).within(op_bytes=free, capacity=most), order
    )
    return settled(instance, instance.canonical(devices), by_start(graph, begin, finish))


def _solved(instance: MilpInstance, start: Timed, seconds: float) -> tuple[str, float]:
    """Who proved a bound, and its seconds; where the solver failed with a warning."""
    if find_spec("ortools") is not None:
        solution = cpsat.solve(cpsat.CpsatTask(instance, start, seconds, is_fcfs=False))
        if solution.failure is not None:
            warnings.warn(solution.failure, stacklevel=3)
        return "CP-SAT", instance.seconds(solution.bound)
    answer = by_program("ilp", ilp.formulate, "cbc")(
        instance, start, seconds, lambda best, bound, cpu: None
    )
    if answer.trouble is not None:
        warnings.warn(answer.trouble, stacklevel=3)
    return answer.by, instance.seconds(answer.bound)
