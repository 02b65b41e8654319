"""What half and twice of each constant of ``auto`` do to its plans.

    python benches/tuning.py [--graphs NAME ...] [--cluster '4 PCIe'] [--effort 0.75]

For each field of ``Tuning`` (``python/loadmaster/strategies/auto/tuning.py``): the step time with
half of its value, and with twice of it, over that with the value itself; geometric means over the
graphs. Above 1 is worse. A share stays below 1. Of a list of numbers, halves and doubles of all
are taken; of the ways of refinement, the list without its last, and without its first. Work is
counted, so the figures are the same on any machine. A second or two per figure and graph.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

from quality import CLUSTERS, model_problem

from loadmaster.base.effort import Budget
from loadmaster.judge.problem import Problem
from loadmaster.strategies.auto.auto import _of_whole_ops
from loadmaster.strategies.auto.run import Run
from loadmaster.strategies.auto.tuning import TUNING, Tuning

GRAPHS = (
    "alexnet_train_b256",
    "rnnlm_2x2048_train_b128",
    "inception_v3_train_b512",
    "mixtral_8x7b_infer_b4_s2048",
    "gpt3_330m_train_b8",
    "nasneta_large_train_b32",
)


def scaled(value: Any, factor: float) -> Any:
    """A value times a factor, of its own kind; a share stays a share."""
    if isinstance(value, tuple):
        return tuple(scaled(one, factor) for one in value)
    if isinstance(value, int):
        return max(round(value * factor), 1)
    return min(value * factor, 0.999) if value < 1 else value * factor


def variants(tuning: Tuning) -> Iterator[tuple[str, Tuning, Tuning]]:
    """Each field's name, with the tuning that has half of it and the one that has twice."""
    for one in fields(Tuning):
        value = getattr(tuning, one.name)
        if one.name == "ways":
            kept = tuning.handicaps
            shorter = replace(tuning, ways=value[:-1], handicaps=kept[:-1])
            yield one.name, shorter, replace(tuning, ways=value[1:], handicaps=kept[1:])
        elif one.name == "polish":
            continue  # Of refine=True alone: auto does not use it.
        else:
            half, twice = (replace(tuning, **{one.name: scaled(value, f)}) for f in (0.5, 2.0))
            yield one.name, half, twice


def step(problem: Problem, tuning: Tuning, effort: float) -> float:
    """Seconds of the step that ``auto`` finds for whole ops."""
    run = Run(problem, Budget.make(effort, None), tuning=tuning)
    return _of_whole_ops(run, None).verdict.step_time


def main() -> None:
    """Prints a row per constant."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--graphs", nargs="+", default=list(GRAPHS))
    parser.add_argument("--cluster", default="4 PCIe", choices=CLUSTERS)
    parser.add_argument("--effort", type=float, default=0.75)
    arguments = parser.parse_args()
    problems = [model_problem(name, arguments.cluster) for name in arguments.graphs]
    known = [step(problem, TUNING, arguments.effort) for problem in problems]
    print(f"{'constant':<24}{'half':>9}{'twice':>9}")
    for name, *both in variants(TUNING):
        cells = []
        for tuning in both:
            try:
                steps = [step(problem, tuning, arguments.effort) for problem in problems]
            except (ValueError, ZeroDivisionError, IndexError) as error:
                cells.append(type(error).__name__[:8])
                continue
            ratios = [a / b for a, b in zip(steps, known, strict=True)]
            cells.append(f"{statistics.geometric_mean(ratios):.4f}")
        print(f"{name:<24}" + "".join(f"{cell:>9}" for cell in cells), flush=True)


if __name__ == "__main__":
    main()
