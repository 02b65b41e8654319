"""What a verdict takes by each of ``auto``'s seeds: the figures of ``strategies/auto/seeds.py``.

    python benches/seeds.py [--graphs NAME ...] [--clusters NAME ...]

CPU microseconds per op on eight devices, with all that leads up to the simulation: quartiles over
the models on the clusters, and how many simulations each seed asked for where one device would
hold everything, for one and for two ways to decide for colocated ops.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import time

from data import traced_names
from quality import CLUSTERS, model_problem

from loadmaster.base.errors import InfeasibleError
from loadmaster.judge.problem import Problem
from loadmaster.strategies.auto.pace import microsecond_per_op
from loadmaster.strategies.auto.seeds import SEEDS, Seed
from loadmaster.strategies.deciders import deciders
from loadmaster.strategies.simple import single

#: Graphs of fewer ops are planned in milliseconds, whatever that takes per op.
LEAST_OPS = 1000

#: Times that each is planned; the least counts.
TIMES = 2

#: More verdicts than any seed asks for.
MANY = 10**9


def is_loose(problem: Problem) -> bool:
    """Whether one device would hold everything."""
    try:
        return single.place(problem).fits
    except InfeasibleError:
        return False


def measured(problem: Problem, seed: Seed) -> tuple[float, int]:
    """Microseconds per verdict, and verdicts."""
    least = float("inf")
    for _ in range(TIMES):
        began = time.process_time()
        with problem.meter.allowing(MANY) as allowance, contextlib.suppress(InfeasibleError):
            seed.place(problem)
        least = min(least, time.process_time() - began)
    used = max(allowance.used, 1)
    return least / used / microsecond_per_op(problem), used


def main() -> None:
    """Plans by all seeds, then prints a line for each."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--graphs", nargs="+", default=[""], help="names that contain one of these")
    parser.add_argument(
        "--clusters", nargs="+", choices=CLUSTERS, default=["2 NVLink", "8 NVLink", "8 PCIe"]
    )
    arguments = parser.parse_args()
    graphs = [name for name in traced_names() if any(word in name for word in arguments.graphs)]
    each: dict[str, list[float]] = {name: [] for name in SEEDS}
    simulations: dict[str, dict[int, set[int]]] = {name: {1: set(), 2: set()} for name in SEEDS}
    for graph in graphs:
        for cluster in arguments.clusters:
            problem = model_problem(graph, cluster)
            if problem.graph.n_ops < LEAST_OPS or not is_loose(problem):
                continue
            print(f"{graph} on {cluster}", flush=True)
            for name, seed in SEEDS.items():
                cost, used = measured(problem, seed)
                each[name].append(cost)
                simulations[name][len(deciders(problem.graph))].add(used)
    print("seed | quartiles of us per op and simulation | stated | simulations, 1 way | 2 ways")
    for name, costs in each.items():
        quartiles = " ".join(f"{cost:.2f}" for cost in statistics.quantiles(costs))
        one, two = (sorted(simulations[name][ways]) for ways in (1, 2))
        print(f"{name:15} | {quartiles} | {SEEDS[name].each} | {one} | {two}")


if __name__ == "__main__":
    main()
