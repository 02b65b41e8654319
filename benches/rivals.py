"""What the papers' searches find, beside ours, for the same number of simulated steps.

    python benches/rivals.py [--steps 1000] [--seeds 0 1 2] [--cluster NAME] [--graphs NAME ...]

Step time of each method as a fraction of what one device would take (as if it had the memory),
the geometric mean over the seeds, with the CPU seconds that planning took, all seeds together over
their number. ``auto`` has no steps: it may take a millisecond, as it counts its effort, for each of
theirs: more than ``mcmc`` and ``cross-entropy`` take on small graphs, as the seconds show. ``heft``
simulates a dozen schedules, whatever the number.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

from quality import traced

import loadmaster as lm
from loadmaster.base.errors import InfeasibleError
from loadmaster.strategies import Method

GRAPHS = (
    "nasneta_large_train_b32",
    "inception_v3_train_b512",
    "transformer_12x2048_h16_train_b256",
    "rnnlm_2x2048_train_b128",
)

#: Methods, the option that says how much each may try, if any, and how much that is per step.
METHODS: dict[Method, tuple[str, float] | None] = {
    "heft": None,
    "mcmc": ("steps", 1),
    "cross-entropy": ("steps", 1),
    "policy-gradient": ("steps", 1),
    "auto": ("effort", 0.001),
}


def cell(
    graph: lm.OpGraph, cluster: lm.Cluster, method: Method, steps: int, seeds: list[int]
) -> tuple[float | None, float]:
    """Fraction of one device, None where nothing that fits is found, and CPU seconds."""
    limit = METHODS[method]
    options: dict[str, Any] = {limit[0]: limit[1] * steps} if limit else {}
    fractions = []
    began = time.process_time()
    for seed in seeds:
        try:
            plan = lm.place(graph, cluster, method, seed=seed, **options)
        except InfeasibleError:
            return None, (time.process_time() - began) / (len(fractions) + 1)
        fractions.append(plan.makespan / float(plan.problem.time.sum(axis=0).min()))
    seconds = (time.process_time() - began) / len(seeds)
    return statistics.geometric_mean(fractions), seconds


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--cluster", default="4xV100-PCIe", help="a preset or a TOML file")
    parser.add_argument("--graphs", nargs="+", default=list(GRAPHS))
    arguments = parser.parse_args()
    cluster = lm.Cluster.named(arguments.cluster)
    print(f"| {arguments.steps} steps | " + " | ".join(METHODS) + " |")
    print("|---" * (len(METHODS) + 1) + "|")
    found: dict[Method, list[float]] = {method: [] for method in METHODS}
    for name in arguments.graphs:
        graph = traced(name)
        cells = []
        for method in METHODS:
            fraction, seconds = cell(graph, cluster, method, arguments.steps, arguments.seeds)
            if fraction is not None:
                found[method].append(fraction)
            shown = "short" if fraction is None else f"{fraction:.3f}"
            cells.append(f"{shown} ({seconds:.1f} s)")
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)
    means = [
        f"{statistics.geometric_mean(f):.3f}" if len(f) == len(arguments.graphs) else "-"
        for f in found.values()
    ]
    print("| geometric mean | " + " | ".join(means) + " |")


if __name__ == "__main__":
    main()
