"""Fits how far steps are from what is predicted, by class of op: spreads.json of the package.

    python benches/spreads.py fit --captures FOLDER [--rows FILE]
    python benches/spreads.py check --captures FOLDER [--rows FILE]

Rows are the steps of :mod:`published` that somebody measured. ``fit`` takes two thirds of their
groups, ``check`` prints what share of the other third's rows is within the ranges, by class.
``--rows`` keeps what was predicted in a file, and takes it from there.

The model: a class of op takes its predicted seconds times exp(bias + spread x error), with one
standard normal error a class and step; a device type has a bias, and what is left is partly shared
by the recipes of a model on a device type (the spread between such groups), partly a step's own.
Biases are the ridge regression of log(measured / predicted) on the classes' shares of the chain of
causes, those of types the mean of what is left. Variances are
the nonnegative least squares of what is left, squared, on the shares squared, with a few rows more
that say that classes are alike. Ranges then are as wide as holds for 80 % of the rows.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
from data import at
from published import planned
from published_rows import rows

from loadmaster.base.errors import LoadmasterError
from loadmaster.costs.least_squares import nonnegative
from loadmaster.plans import ranges
from loadmaster.plans.time_classes import ESTIMATED, seconds_by_class

TABLE = Path(ranges.__file__).with_name("spreads.json")

#: Share of steps that a range is to hold.
HELD = 0.8

#: Weight of the priors (bias and variance of all), in rows of one class alone, and the
#: error beyond which a row counts as at it.
RIDGE, MOST = 2.0, 1.0

#: The largest share of the spread that is a step's own. At least half of the variance is taken as
#: shared by what one user runs on the same cards: rows of a group here are of several dtypes.
MOST_OWN = 0.5**0.5


def predicted(captures: Path, kept: Path | None) -> list[dict]:
    """Rows: kind, part, log(measured / predicted), shares by class, the same of the peak."""
    if kept is not None and kept.exists():
        return json.loads(kept.read_text())
    answer = []
    for row in rows([at("published"), at("kernels")]):
        if row.reason:
            continue
        try:
            plan, seconds = planned(row, captures)
        except LoadmasterError as error:
            print(f"{row.name}: {error}", file=sys.stderr)
            continue
        chain = seconds_by_class(plan)
        peak = float(plan.memory.peak.max()) / 2**30
        answer.append(
            {
                "name": row.name,
                "kind": row.kind,
                "group": row.group,
                "type": row.gpus.partition("x")[2],
                "part": "check" if row.is_check else "fit",
                "off": float(np.log(row.measured / seconds)),
                "shares": [chain.get(name, 0.0) / plan.makespan for name in ESTIMATED],
                "peak_off": float(np.log(row.peak / peak)) if row.peak > 0 else None,
                "peak": peak,
                "fits": plan.fits,
            }
        )
        print(f"{row.name} {answer[-1]['off']:+.2f}", file=sys.stderr, flush=True)
    if kept is not None:
        kept.write_text(json.dumps(answer))
    return answer


def fitted(some: list[dict]) -> dict:
    """The table of some rows."""
    off = np.array([row["off"] for row in some])
    shares = np.array([row["shares"] for row in some])
    # The prior of each class is the bias of all.
    alike = np.median(off / shares.sum(axis=1))
    normal = shares.T @ shares + RIDGE * np.eye(len(ESTIMATED))
    bias = alike + np.linalg.solve(normal, shares.T @ (off - alike * shares.sum(axis=1)))
    by_type = defaultdict(list)
    for row, value in zip(some, off - shares @ bias, strict=True):
        by_type[row["type"]].append(value)
    types = {name: sum(v) / (len(v) + RIDGE) for name, v in sorted(by_type.items())}
    left = off - shares @ bias - np.array([types[row["type"]] for row in some])
    left = np.clip(left, -MOST, MOST)
    columns = np.column_stack([shares**2, np.ones(len(some))])
    prior = np.eye(len(ESTIMATED), len(ESTIMATED) + 1) * np.sqrt(RIDGE)
    wanted = np.full(len(ESTIMATED), np.median(left**2) * np.sqrt(RIDGE))
    rows_of = np.vstack([columns, prior]), np.concatenate([left**2, wanted])
    variance = nonnegative(*rows_of)
    spread = np.sqrt(columns @ variance)
    times = float(np.quantile(np.abs(left) / np.maximum(spread, 1e-9), HELD))
    whole = float(np.sqrt(variance[-1]))
    own = whole * within([f"{row['group']} {row['type']}" for row in some], left)
    peaks = np.array([row["peak_off"] for row in some if row["peak_off"] is not None])
    low, high = np.quantile(peaks, [(1 - HELD) / 2, (1 + HELD) / 2])
    return {
        "source": f"{len(some)} steps of GPUs that others measured: benches/spreads.py fit",
        "held": HELD,
        "own": round(own * times, 4),
        "shared": round(float(np.sqrt(whole**2 - own**2)) * times, 4),
        "classes": {
            name: {
                "bias": round(float(b), 4),
                "spread": round(float(np.sqrt(v)) * times, 4),
                "rows": int((s > 0.02).sum()),
            }
            for name, b, v, s in zip(ESTIMATED, bias, variance[:-1], shares.T, strict=True)
        },
        "types": {
            name: {"bias": round(bias, 4), "rows": len(by_type[name])}
            for name, bias in types.items()
        },
        "peak": {
            "low": round(float(np.exp(low)), 3),
            "high": round(float(np.exp(high)), 3),
            "rows": len(peaks),
        },
    }


def within(groups: list[str], left: np.ndarray) -> float:
    """Spread of a row beside the next one of its group, as a share of the spread of all rows."""
    last: dict[str, float] = {}
    apart = []
    for group, value in zip(groups, left.tolist(), strict=True):
        apart += [abs(value - last[group])] if group in last else []
        last[group] = value
    return float(min(np.median(apart) / np.sqrt(2) / np.median(np.abs(left)), MOST_OWN))


def check(table: dict, some: list[dict]) -> None:
    """Prints the share of rows within their ranges, by class of rows."""
    held = defaultdict(list)
    for row in some:
        classes = table["classes"]
        bias = sum(classes[n]["bias"] * s for n, s in zip(ESTIMATED, row["shares"], strict=True))
        bias += table["types"].get(row["type"], {"bias": 0.0})["bias"]
        own = [classes[n]["spread"] * s for n, s in zip(ESTIMATED, row["shares"], strict=True)]
        half = float(np.linalg.norm([table["own"], table["shared"], *own]))
        held[row["kind"]].append((abs(row["off"] - bias) <= half, half))
    held["all"] = [one for each in held.values() for one in each]
    for kind, each in held.items():
        inside, halves = zip(*each, strict=True)
        width = np.exp(np.median(halves))
        print(f"{kind}: {np.mean(inside):.0%} of {len(each)}, ends {width:.2f} x from the middle")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("task", choices=("fit", "check"))
    parser.add_argument("--captures", type=Path, required=True)
    parser.add_argument("--rows", type=Path)
    arguments = parser.parse_args()
    every = predicted(arguments.captures, arguments.rows)
    part = [row for row in every if row["part"] == "fit"]
    if arguments.task == "fit":
        TABLE.write_text(json.dumps(fitted(part), indent=1) + "\n")
        print(TABLE.read_text())
    else:
        check(fitted(part), [row for row in every if row["part"] == "check"])


if __name__ == "__main__":
    main()
