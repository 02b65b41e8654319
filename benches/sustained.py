"""Factors of kernels under load, fitted to published steps.

    python benches/sustained.py [--captures FOLDER] [--write]

Takes the two thirds of groups of rows that figures may be fitted on (``published.py --split``), of
16-bit steps, and prints errors of these and of the third that checks, before and after. A step is
its kernels by class, each class multiplied by a factor of its device type, and the rest of it:
waiting, other kernels, the optimizer. Factors have the least squares of logarithms, with little
weight on far rows, and are held near 1 where rows say little.
"""

from __future__ import annotations

import argparse
import tempfile
import warnings
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tomli_w
from data import at
from numpy.typing import NDArray
from published import planned
from published_rows import Row, rows
from scipy.optimize import least_squares

import loadmaster as lm
from loadmaster.costs.kernels import sustained
from loadmaster.costs.kernels.kin import Figures
from loadmaster.costs.kernels.works import works_of
from loadmaster.costs.peaks import peaks

Floats = NDArray[np.float64]

#: Where the factors are written.
TABLE = Path(sustained.__file__).with_suffix(".toml")

#: Weight of a factor's logarithm beside that of a row's error.
HELD = 0.15

#: Rows of a device type that are fitted at least.
LEAST = 9


@dataclass(frozen=True)
class Step:
    """A row: seconds of the ops of its busiest device by class, without factors, and the power that
    the factor has in each; seconds of the rest.
    """

    row: Row
    device: str
    by_class: dict[str, tuple[Floats, Floats]]
    rest: float
    update: float

    def ratio(self, factors: dict[str, float]) -> float:
        """Predicted over measured."""
        body = self.rest
        for name, (seconds, power) in self.by_class.items():
            body += float((seconds * factors.get(name, 1.0) ** power).sum())
        update = self.update if self.row.updates else 0.0
        return (self.row.accumulation * body + update) / self.row.measured


def step_of(row: Row, plan: lm.Plan) -> Step:
    """A planned row."""
    problem, on = plan.problem, plan.assignment.devices
    kinds = np.array(plan.cluster.device_types)[on]
    seconds = problem.compute_time[np.arange(len(on)), kinds]
    busiest = on == np.bincount(on, seconds).argmax()
    ops = problem.reduced.op_of
    works = works_of(plan.graph)
    classes = ["" for _ in works.every]
    for i, work in enumerate(works.every):
        if work.dtype == "f16":
            classes[i] = sustained.CLASSES.get(work.family, "")
    of_op = works.of_op[problem.program.serves[ops]]
    updates = np.array([plan.program.graph.phases[op] == "o" for op in ops.tolist()])
    own = problem.program.own[ops]
    device = plan.cluster.types[0]
    figures = Figures(float(peaks(["bf16"], device)[0]), device.memory_bandwidth)
    graph = plan.program.graph
    power = sustained.computing(graph.flops[ops], graph.bytes_accessed[ops], figures)
    known = sustained.factors().get((device.name, "f16"), {})
    by_class: dict[str, tuple[Floats, Floats]] = {}
    spent = 0.0
    for of_class in sorted(set(classes) - {""}):
        which = [i for i, name in enumerate(classes) if name == of_class]
        some = busiest & ~updates & ~own & np.isin(of_op, which)
        alone = seconds[some] / known.get(of_class, 1.0) ** power[some]
        by_class[of_class] = alone, power[some]
        spent += float(seconds[some].sum())
    update = float(seconds[busiest & updates].sum())
    return Step(row, device.name, by_class, max(plan.makespan - spent - update, 0.0), update)


def fitted(steps: list[Step]) -> dict[str, float]:
    """Factors by class."""
    classes = sorted({name for step in steps for name in step.by_class})

    def errors(logs: np.ndarray) -> np.ndarray:
        factors = dict(zip(classes, np.exp(logs).tolist(), strict=True))
        return np.array([*(np.log(step.ratio(factors)) for step in steps), *(HELD * logs)])

    answer = least_squares(errors, np.zeros(len(classes)), loss="soft_l1", f_scale=0.1)
    return dict(zip(classes, np.exp(answer.x).round(2).tolist(), strict=True))


def _said(steps: list[Step], factors: dict[str, float]) -> str:
    error = [abs(step.ratio(factors) - 1) for step in steps]
    if not error:
        return "no rows"
    return f"{np.median(error):.1%}, nine in ten within {np.quantile(error, 0.9):.1%}"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--captures", type=Path, help="folder in which captured steps are kept")
    parser.add_argument("--write", action="store_true", help=f"write {TABLE.name}")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    by_device: dict[str, list[Step]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        for row in rows([at("published")]):
            is_half = row.model is not None and (row.model.autocast or row.model.dtype != "float32")
            if is_half and not row.reason:
                plan, _ = planned(row, arguments.captures or Path(folder))
                step = step_of(row, plan)
                by_device[step.device].append(step)
    table = []
    for device, steps in sorted(by_device.items()):
        fit = [step for step in steps if not step.row.is_check]
        check = [step for step in steps if step.row.is_check]
        if len(fit) < LEAST:
            continue
        factors = fitted(fit)
        print(f"{device}: {len(fit)} rows, {_said(fit, {})}; with {factors} {_said(fit, factors)}")
        print(f"    {len(check)} that check: {_said(check, {})}; then {_said(check, factors)}")
        spread = float(np.quantile([abs(step.ratio(factors) - 1) for step in fit], 0.8))
        row_of = {"device": device, "dtype": "f16", "rows": len(fit), "spread": round(spread, 3)}
        table.append({**row_of, "factors": factors})
    if arguments.write:
        head = "# Written by benches/sustained.py: spread is that of four in five fitted rows.\n\n"
        TABLE.write_text(head + tomli_w.dumps({"sustained": table}), encoding="utf-8")


if __name__ == "__main__":
    main()
