"""FastT's loop on real models, and what it gains; ``truth.py adapt`` runs it.

Each model of ``truth_models.py``, for inference and for a step of SGD, on two worker processes: op
times are measured while both cores are busy (``lm.measure_ops``), ``auto`` places by them, whole
ops, and ``lm.adapt`` goes on from that plan: run, learn, place again, so many times at most. In the
end all plans that ran, the start among them, run in the same rounds, and the least 10th percentile
wins. The page has all of these, so that it shows what wins and what would have been lost without
going back. Where workers waited for a core for more than 2 % of the time a case is refused.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from quality import table
from truth_models import MODELS, step_of
from truth_real import ON, BusyError, cpus, refuse_if_busy, resting

import loadmaster as lm
from loadmaster.running.runners import running

PAGE = Path(__file__).parent / "results" / "truth-adapt.md"


def adapted(model: str, train: bool, rounds: int, urgent: Callable[[], None] | None) -> lm.Adapted:
    """The loop on one model."""
    tape = lm.record(**step_of(model, train))
    ready = resting(running(tape, on=ON), urgent)
    cluster = cpus(2)
    if urgent is not None:
        urgent()
    costs = lm.measure_ops(tape, cluster, on=ON)
    if urgent is not None:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    plan = lm.place(tape.graph, cluster, "auto", costs, split="none")
    return lm.adapt(plan, ready, rounds)


def cells(name: str, found: lm.Adapted) -> list[str]:
    """A row: what each plan measured in the last run."""
    start, best = found.candidates[0].step, found.best.step
    steps = [
        f"**{1e3 * run.step:.2f}**" if i == found.which else f"{1e3 * run.step:.2f}"
        for i, run in enumerate(found.candidates)
    ]
    waited = max(run.delay for run in found.candidates)
    return [name, steps[0], ", ".join(steps[1:]), f"{start / best - 1:+.1%}", f"{waited:.1%}"]


def page(rows: Sequence[Sequence[str]], refused: Sequence[str], won: int, command: str) -> str:
    """The page ``truth-adapt.md``."""
    head = ["case", "start, ms", "placed again, ms", "faster by", "waited for a core"]
    return "\n".join(
        [
            "# The loop on real models",
            "",
            f"    {command}",
            "",
            f"A plan that was placed again won in {won} of {len(rows)} cases; else the start stays."
            " Bold: the least 10th percentile of the last run, whose plan the loop returns.",
            "",
            *table(head, rows),
            *(f"* {line}" for line in refused),
        ]
    )


def main(
    names: Sequence[str], rounds: int, urgent: Callable[[], None] | None, command: str
) -> bool:
    """Measures, prints, and writes the page if no case is refused; whether it was written."""
    torch.set_num_threads(1)
    rows, refused, won = [], [], 0
    for model in names or MODELS:
        for train in (False, True):
            name = f"{model}, {'SGD' if train else 'inference'}"
            found = adapted(model, train, rounds, urgent)
            try:
                refuse_if_busy(found.candidates)
            except BusyError as error:
                refused.append(f"{name}: {error}")
            rows.append(cells(name, found))
            won += found.which > 0
            print(f"{name}: {found.ended}", flush=True)
    text = page(rows, refused, won, command)
    print(text)
    if refused:
        print("the machine was too busy: nothing is written; run it again when it is idle")
        return False
    PAGE.write_text(text)
    return True
