"""80 % ranges of the times and the peak of a plan, and if the order of two plans is sure.

A class of op takes its predicted seconds times exp(bias + spread x error); plans of one graph
share the errors. ``spreads.json`` has biases and spreads, and a bias of each device type, fitted
to steps of GPUs that others measured (``benches/spreads.py fit``), with the number of steps of
each. So there are ranges for GPUs of the table of device types alone, and none for the part of a
step whose times a user measured. A step that a user observed (:mod:`loadmaster.costs.observed`)
takes out the part of the errors that it has in it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from loadmaster.base.units import format_bytes, format_seconds
from loadmaster.costs.observed import META
from loadmaster.costs.op_classes import OF_OPS
from loadmaster.plans.plan import Plan
from loadmaster.plans.time_classes import ESTIMATED, seconds_by_class
from loadmaster.rules.reserves import default_reserve
from loadmaster.transforms.shares import batch_size

#: The class of what is estimated, all of it.
ALL = "all"

#: Share of a step below which no difference is sure: two frameworks' measurements of one product
#: are 1 to 5 % apart in the median, and times of kernels are rounded to 3 %.
NOISE = 0.02

#: A low and a high end, between which the truth is four times of five.
Range = tuple[float, float]


@dataclass(frozen=True)
class Errors:
    """Errors of the times of a plan, by class, as wide as 80 % ranges ask for.

    Attributes
    ----------
    seconds, biases, spreads, known : mapping of str to float
        By class: seconds of the step as it runs; log of how many times as long they take in the
        middle; its spread; and the part of the spread that an observed step has taken out.
    step : float
        Seconds of the whole step.
    own, shared : float
        Spreads of what is estimated of a step: its own, and that of all recipes of a model.
    """

    seconds: Mapping[str, float]
    biases: Mapping[str, float]
    spreads: Mapping[str, float]
    known: Mapping[str, float]
    step: float
    own: float
    shared: float

    @property
    def shares(self) -> dict[str, float]:
        """Shares of the step by class."""
        return {name: self.seconds.get(name, 0.0) / self.step for name in self.biases}

    @property
    def bias(self) -> float:
        """Log of how many times as long the step takes in the middle."""
        return sum(self.biases[name] * share for name, share in self.shares.items())

    @property
    def variance(self) -> float:
        """Of the log of the step."""
        return self.open(self.shares) + (self.own * sum(self.shares.values())) ** 2

    def open(self, amounts: Mapping[str, float]) -> float:
        """The variance of the sum of amounts by class, less what an observed step has in it."""
        all_of = {**amounts, ALL: sum(amounts.values())}
        spreads = {**self.spreads, ALL: self.shared}
        taken = sum(self.known.get(name, 0.0) * amount for name, amount in all_of.items())
        squares = sum((spreads[name] * amount) ** 2 for name, amount in all_of.items())
        return max(squares - taken**2, 0.0)


def errors_of(plan: Plan) -> Errors | None:
    """Errors of a plan's times; None: no part of a step on known GPUs is estimated."""
    if plan.observed is not None or not _is_known(plan):
        return None
    scale = plan.as_run / plan.makespan if plan.makespan else 1.0
    seconds = {name: one * scale for name, one in seconds_by_class(plan).items()}
    if not any(seconds.get(name) for name in ESTIMATED):
        return None
    table = _table()
    of_types = [table["types"].get(t.name, {"bias": 0.0})["bias"] for t in plan.cluster.types]
    by_type = sum(of_types) / len(of_types)
    biases = {name: table["classes"][name]["bias"] + by_type for name in ESTIMATED}
    spreads = {name: table["classes"][name]["spread"] for name in ESTIMATED}
    observed = plan.graph.meta.get(META)
    known: Mapping[str, float] = {}
    if isinstance(observed, Mapping):
        known = _positive(observed.get("known"), {*biases, ALL})
        factors = _positive(observed.get("factors"), set(biases))
        beside = {name: math.log(factor) for name, factor in factors.items()}
        biases = biases | dict.fromkeys(OF_OPS, 0.0) | beside
    return Errors(
        seconds, biases, spreads, known, sum(seconds.values()), table["own"], table["shared"]
    )


@dataclass(frozen=True)
class Ranges:
    """80 % ranges of a plan.

    Attributes
    ----------
    step : (float, float)
        Seconds of a step as it runs.
    peak : (float, float)
        Bytes on the device that holds most.
    period : (float, float) or None
        Seconds between batches, where the plan was made for throughput.
    """

    step: Range
    peak: Range
    period: Range | None = None

    def __str__(self) -> str:
        low, high = (format_seconds(seconds) for seconds in self.step)
        words = f"step {low} to {high}"
        if self.period is not None:
            words += ", a batch every {} to {}".format(*map(format_seconds, self.period))
        return words + ", peak {} to {}".format(*map(format_bytes, self.peak))


def ranges_of(plan: Plan) -> Ranges | None:
    """The 80 % ranges of a plan; None: its times were measured, or no such steps were.

    Examples
    --------
    >>> import loadmaster as lm
    >>> plan = lm.place(lm.read("example:vgg19"), lm.Cluster.preset("2xV100-NVLink"), "single")
    >>> low, high = ranges_of(plan).step
    >>> 0 < low < high
    True
    """
    errors = errors_of(plan)
    if errors is None:
        return None
    half = math.sqrt(errors.variance)
    low, high = (math.exp(errors.bias + sign * half) for sign in (-1, 1))
    peak = float(plan.verdict.peak.max(initial=0))
    of_peak = (_table()["peak"]["low"] * peak, _table()["peak"]["high"] * peak)
    is_stream = plan.objective.goal == "throughput"
    period = (plan.period * low, plan.period * high) if is_stream else None
    return Ranges((plan.as_run * low, plan.as_run * high), of_peak, period)


def in_words(plan: Plan) -> str:
    """The ranges for a person; empty where no such steps were measured."""
    ranges = ranges_of(plan)
    if ranges is not None:
        return f"{ranges} (four of five published steps lie so); bound and gap are of given times"
    return "none: times were measured" if plan.observed is None and _is_known(plan) else ""


def document(plan: Plan) -> dict[str, list[float]] | None:
    """The ranges as plain data: seconds, bytes, samples/s; None: there are none."""
    ranges = ranges_of(plan)
    if ranges is None:
        return None
    rows = {"step": ranges.step, "peak": ranges.peak}
    rows |= {} if ranges.period is None else {"period": ranges.period}
    low, high = ranges.period or ranges.step
    if (batch := batch_size(plan.graph)) and low:
        rows["samples_per_second"] = batch / high, batch / low
    return {name: list(ends) for name, ends in rows.items()}


def is_order_sure(one: Errors | None, other: Errors | None) -> bool:
    """True if the order of two plans of one graph is sure in four of five cases.

    Seconds that both spend on a class of op err alike, and cancel; only the difference counts, and
    what :data:`NOISE` is of the step. Plans without errors are ordered by their times.
    """
    if one is None or other is None:
        return True
    differences = {
        name: (one.seconds.get(name, 0.0) - other.seconds.get(name, 0.0))
        * math.exp(one.biases.get(name, 0.0))
        for name in {**one.seconds, **other.seconds}
    }
    apart = sum(differences.values())
    estimated = {name: differences.get(name, 0.0) for name in one.spreads}
    own = one.own**2 * sum(difference**2 for difference in estimated.values())
    noise = NOISE * min(one.step, other.step)
    return apart**2 >= one.open(estimated) + own + noise**2


def _positive(values: object, names: set[str]) -> dict[str, float]:
    """The positive numbers of these names among values that a graph's file says."""
    rows = values.items() if isinstance(values, Mapping) else ()
    return {
        name: float(value)
        for name, value in rows
        if name in names and isinstance(value, int | float) and 0 < value < math.inf
    }


def _is_known(plan: Plan) -> bool:
    """True if all devices are GPUs of types like those that were measured."""
    known = default_reserve(plan.cluster)
    return all(kind.name in known for kind in plan.cluster.types)


@cache
def _table() -> dict[str, Any]:
    file = resources.files("loadmaster.plans") / "spreads.json"
    table: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return table
