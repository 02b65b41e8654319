"""Predictions beside what ran: step times of plans as the judge sees them, and as they pass.

    python benches/truth.py emulated [--graphs NAME ...] [--methods NAME ...] [--seconds S]
                                     [--steps N] [--realtime]
    python benches/truth.py onnx [--models NAME ...] [--rounds N] [--steps N] [--anyway]
                                 [--realtime]
    python benches/truth.py real [--models NAME ...] [--rounds N] [--realtime] [--file FILE]
    python benches/truth.py adapt [--models NAME ...] [--rounds N] [--realtime]
    python benches/truth.py pipelines [--rounds N]
    python benches/truth.py targets [--rounds N] [--write]
    python benches/truth.py public [--models NAME ...] [--rounds N] [--write]

``emulated``: every plan on four emulated devices (``lm.emulate``), no model needed. A row per graph
and method: predicted over measured step time, minus 1, with a bootstrap interval of 90 % of the
steps; how long workers waited for a core; and at last the largest error and Kendall's tau over
pairs of plans that are predicted more than 1 % apart, by graph.

``onnx``: exports to ONNX in a process per core, with real ops (``truth_onnx.py``).

``real``: plans of six models, for inference and a step of SGD, on two worker processes; see
``truth_real.py``. It needs PyTorch. Finished cases are kept in FILE (``.truth.jsonl``), so that a
run that was broken off goes on; those that were refused are run again.

``adapt``: the loop of ``lm.adapt`` on the same models, with at most N placements (4); see
``truth_adapt.py``. It needs PyTorch.

``pipelines``: stages of a transformer, beside PyTorch's own pipelines; see ``truth_pipelines.py``.
It needs PyTorch.

``targets``: DistributedDataParallel and PyTorch's pipelines by files that were written for them;
see ``truth_targets.py``. It needs PyTorch; with ``--write`` the page ``results/truth-targets.md``
is written.

``public``: files of PyTorch targets for the twelve public models of the tests; see
``truth_public.py``. It needs PyTorch and transformers; ``--write`` as of ``targets``.

Times are those of an idle machine or they are none: a row whose workers waited for a core for more
than 2 % of its steps is run again, twice as long, and refused if that does not help either. "All
ops" is what they take one after another as emulated. ``--realtime`` has Linux run
the devices before anything else (SCHED_FIFO, which wants the right to it), for a machine that is
shared. Ends with status 1 where a row was refused, or misses what is wanted.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

import numpy as np

import loadmaster as lm
from loadmaster.running.measured.measured import Measured, typical

#: Three graphs of a few hundred to 2,500 ops, and two large ones, by the names of examples.
GRAPHS = ("alexnet", "googlenet", "rnnlm", "inception-v3", "bert-large")

METHODS = ("single", "auto", "heft", "etf", "m-topo", "random", "data-parallel")

#: The largest error of a prediction that is wanted, and the least tau.
ERROR, TAU = 0.08, 0.95

#: How many times a row is run again, each twice as long as before, until it is refused.
DOUBLED = 3

#: Pairs of plans that are predicted closer than that say nothing of the order.
APART = 1.01


def placed(name: str, method: str) -> lm.Plan | None:
    """A plan for four V100s on PCIe; none, where a method makes no plan of the graph."""
    graph = lm.read(f"example:{name}")
    # GoogLeNet's times are those of four devices of other types.
    costs = next(iter(graph.time.values()))[:, None] if name == "googlenet" else None
    options = {"effort": "fast"} if method == "auto" else {}
    cluster = lm.Cluster.preset("4xV100-PCIe")
    try:
        return lm.place(graph, cluster, method, costs=costs, on_oom="best_effort", **options)
    except lm.InputError:
        return None


def interval(seen: Measured, draws: int = 1000) -> tuple[float, float]:
    """Between which 90 % of the errors lie that these steps could as well have given."""
    chance = np.random.default_rng(0)
    seconds = seen.steps.seconds
    drawn = seconds[chance.integers(0, len(seconds), (draws, len(seconds)))]
    steps = np.array([float(typical(row)) for row in drawn]) / seen.stretch
    low, high = np.quantile(seen.plan.makespan / steps - 1, (0.05, 0.95))
    return float(low), float(high)


def tau(rows: Sequence[Measured]) -> float | None:
    """Kendall's tau of predicted and measured steps, over pairs predicted apart; none: no pair."""
    signs = []
    for a, b in combinations(rows, 2):
        first, second = sorted((a, b), key=lambda seen: seen.plan.makespan)
        if second.plan.makespan > first.plan.makespan * APART:
            signs.append(1 if second.step > first.step else -1)
    return statistics.mean(signs) if signs else None


def ran(plan: lm.Plan, steps: int, seconds: float | None) -> Measured:
    """A run whose workers had their cores, or the last of several that did not."""
    seen = lm.emulate(plan, steps, seconds=seconds)
    for _ in range(DOUBLED):
        if not seen.is_busy:
            break
        seen = lm.emulate(plan, steps, seconds=2 * all_ops(seen))
    return seen


def all_ops(seen: Measured) -> float:
    """Seconds that all ops take one after another, as emulated."""
    return float(seen.plan.problem.compute_time.sum(axis=0).min()) * seen.stretch


def row(seen: Measured, name: str, method: str) -> str:
    """A row of the table."""
    plan = seen.plan
    sent = len(plan.schedule.transfers) + len(plan.schedule.collectives)
    low, high = interval(seen)
    mark = "**" if abs(seen.error) > ERROR else ""
    cells = [
        name,
        method,
        f"{plan.problem.graph.n_ops:,}",
        f"{sent:,}",
        f"{1e3 * plan.makespan:.2f} ms",
        f"refused: {seen.busy}" if seen.is_busy else f"{1e3 * seen.step:.2f} ms",
        "" if seen.is_busy else f"{mark}{100 * seen.error:+.1f} %{mark}",
        "" if seen.is_busy else f"{100 * low:+.1f} to {100 * high:+.1f} %",
        f"{all_ops(seen):.1f} s",
        f"{100 * seen.delay:.1f} %",
        f"{os.getloadavg()[0]:.1f}",
    ]
    return f"| {' | '.join(cells)} |"


def emulated(
    graphs: Sequence[str], methods: Sequence[str], steps: int, seconds: float | None
) -> bool:
    """Prints a table; whether every row is there and as good as wanted."""
    print(
        "| graph | method | ops | sent | predicted | measured | error | 90 % | all ops | waited",
        end="",
    )
    print(" | load |\n" + "|---" * 11 + "|")
    found: dict[str, list[Measured]] = {name: [] for name in graphs}
    for name in graphs:
        for method in methods:
            plan = placed(name, method)
            if plan is not None:
                found[name].append(ran(plan, steps, seconds))
                print(row(found[name][-1], name, method), flush=True)
    kept = {name: [seen for seen in rows if not seen.is_busy] for name, rows in found.items()}
    errors = [abs(seen.error) for rows in kept.values() for seen in rows]
    taus = {name: value for name, rows in kept.items() if (value := tau(rows)) is not None}
    refused = sum(map(len, found.values())) - len(errors)
    if errors:
        print(
            f"\nlargest error {100 * max(errors):.1f} % (wanted {100 * ERROR:.0f} %), median "
            f"{100 * statistics.median(errors):.1f} %, of {len(errors)} plans; tau (wanted {TAU}) "
            + ", ".join(f"{name} {value:.2f}" for name, value in taus.items())
        )
    if refused:
        print(f"{refused} rows refused: run them again on an idle machine")
    good = not refused and max(errors, default=0.0) <= ERROR
    return good and all(value >= TAU for value in taus.values())


def first_of_all() -> None:
    """Has this process, and the threads that it starts, run before all others."""
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(20))
    except (AttributeError, PermissionError) as error:
        sys.exit(f"--realtime: this system or user has no real-time scheduling ({error})")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("emulated")
    command.add_argument("--graphs", nargs="*", default=GRAPHS)
    command.add_argument("--methods", nargs="*", default=METHODS)
    command.add_argument("--seconds", type=float)
    command.add_argument("--steps", type=int, default=5)
    command.add_argument("--realtime", action="store_true")
    command = commands.add_parser("onnx")
    command.add_argument("--models", nargs="*", default=("inception-v3", "experts"))
    command.add_argument("--rounds", type=int, default=10)
    command.add_argument("--steps", type=int, default=3)
    command.add_argument("--anyway", action="store_true")
    command.add_argument("--realtime", action="store_true")
    command = commands.add_parser("real")
    command.add_argument("--models", nargs="*", default=())
    command.add_argument("--rounds", type=int, default=48)
    command.add_argument("--realtime", action="store_true")
    command.add_argument("--file", type=Path, default=Path(__file__).parent / ".truth.jsonl")
    command = commands.add_parser("adapt")
    command.add_argument("--models", nargs="*", default=())
    command.add_argument("--rounds", type=int, default=4)
    command.add_argument("--realtime", action="store_true")
    for name in ("pipelines", "targets"):
        command = commands.add_parser(name)
        command.add_argument("--rounds", type=int, default=10)
    command.add_argument("--write", action="store_true")
    command = commands.add_parser("public")
    command.add_argument("--models", nargs="*", default=())
    command.add_argument("--rounds", type=int, default=10)
    command.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    if asked.command == "pipelines":
        import truth_pipelines

        truth_pipelines.main(asked.rounds)
        return
    said = " ".join(["python benches/truth.py", *sys.argv[1:]])
    if asked.command == "targets":
        import truth_targets

        sys.exit(not truth_targets.main(asked.rounds, asked.write, said))
    if asked.command == "public":
        import truth_public

        sys.exit(not truth_public.main(asked.models, asked.rounds, asked.write, said))
    urgent = first_of_all if "realtime" in asked and asked.realtime else None
    if asked.command == "real":
        import truth_real

        truth_real.main(asked.file, asked.models, asked.rounds, urgent)
        return
    if asked.command == "adapt":
        import truth_adapt

        sys.exit(not truth_adapt.main(asked.models, asked.rounds, urgent, said))
    if urgent:
        urgent()
    if asked.command == "onnx":
        import truth_onnx

        if not truth_onnx.main(asked.models, asked.rounds, asked.steps, asked.anyway, said):
            sys.exit(1)
    elif not emulated(asked.graphs, asked.methods, asked.steps, asked.seconds):
        sys.exit(1)


if __name__ == "__main__":
    main()
