"""Checks of a plan for continuous integration: limits, the plan's figures, whether they hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from loadmaster.base.errors import InputError
from loadmaster.base.text import Printed, in_lines
from loadmaster.base.units import counted, format_bytes, format_seconds, parse_bytes, parse_seconds
from loadmaster.judge.objective import STEP
from loadmaster.plans.plan import Plan
from loadmaster.rules.binding import bind
from loadmaster.rules.constraints import EVERY, Constraints, as_constraints, selected


@dataclass(frozen=True)
class Finding:
    """True if a plan keeps one limit.

    Attributes
    ----------
    what : str
        The limit, in words.
    found : str
        The plan's own figure or state, in words.
    ok : bool
    limit, value : float or None
        The limit and the plan's value in bytes or seconds, if the limit is a figure.
    """

    what: str
    found: str
    ok: bool
    limit: float | None = None
    value: float | None = None

    def __str__(self) -> str:
        return f"{'ok  ' if self.ok else 'FAIL'}  {self.what}: {self.found}"


@dataclass(frozen=True)
class Check(Printed):
    """The result of checking a plan: ``verdicts``, one per limit."""

    verdicts: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """True if all limits are kept."""
        return all(verdict.ok for verdict in self.verdicts)

    def to_document(self) -> dict[str, Any]:
        """As plain data for JSON."""
        return {"ok": self.ok, "verdicts": [asdict(verdict) for verdict in self.verdicts]}

    def __str__(self) -> str:
        return in_lines(map(str, self.verdicts))


def check(
    plan: Plan,
    *,
    max_peak: int | str | Mapping[Any, int | str] | None = None,
    max_step: float | str | None = None,
    forbid: str | int | Sequence[str | int] = (),
    constraints: Constraints | None = None,
) -> Check:
    """Checks a plan against limits. The memory of the plan's cluster is always one of them.

    Parameters
    ----------
    plan : Plan
    max_peak : bytes, or mapping of device selector to bytes, optional
        Most that a device may hold at any time, on every device or on some.
    max_step : seconds, optional
        Longest step time: a number, or a string such as ``"120ms"``.
    forbid : device selector or several
        Devices that must run nothing. A device that the cluster does not have runs nothing.
    constraints : Constraints, optional
        Constraints that the plan must obey besides those that it was made with.

    Raises
    ------
    InputError
        A limit of another form; a peak of no device; a pattern that matches nothing.

    Examples
    --------
    >>> import loadmaster as lm
    >>> plan = lm.place(lm.read("example:lenet"), lm.Cluster.preset("2xV100-NVLink"), "single")
    >>> print(lm.check(plan, max_peak={"gpu0": "1GiB"}, forbid="gpu0"))
    ok    memory: fits
    ok    peak of gpu0 <= 1 GiB: 37.8 MiB
    FAIL  gpu0 runs nothing: 51 ops
    """
    verdicts = [_memory(plan)]
    if max_peak is not None:
        limits = max_peak if isinstance(max_peak, Mapping) else {EVERY: max_peak}
        verdicts += _peaks(plan, limits)
    if max_step is not None:
        limit = parse_seconds(max_step, "max_step")
        rule, seen = f"step <= {format_seconds(limit)}", plan.makespan
        is_kept = STEP.reaches(plan.verdict, limit)
        verdicts.append(Finding(rule, format_seconds(seen), is_kept, limit, seen))
    forbidden = [forbid] if isinstance(forbid, (str, int)) else list(forbid)
    verdicts += [verdict for selector in forbidden for verdict in _forbidden(plan, str(selector))]
    return Check((*verdicts, *_obeyed(plan, constraints)))


def _memory(plan: Plan) -> Finding:
    short = plan.cluster.shortfall(plan.memory.peak)
    over = ", ".join(f"{device} by {format_bytes(size)}" for device, size in short.items())
    return Finding("memory", (f"short on {over}" if over else "fits") + _told(plan), not over)


def _told(plan: Plan) -> str:
    return ", as predicted: the run did not measure it" if plan.memory.is_predicted else ""


def _peaks(plan: Plan, limits: Mapping[Any, int | str]) -> list[Finding]:
    verdicts = []
    for selector, size in limits.items():
        limit = parse_bytes(size, f"max_peak of {selector}")
        for d in np.flatnonzero(selected(plan.cluster, str(selector))).tolist():
            peak = int(plan.memory.peak[d])
            rule = f"peak of {plan.cluster.devices[d].name} <= {format_bytes(limit)}"
            held = format_bytes(peak) + _told(plan)
            verdicts.append(Finding(rule, held, peak <= limit, limit, peak))
    return verdicts


def _forbidden(plan: Plan, selector: str) -> list[Finding]:
    try:
        devices = np.flatnonzero(selected(plan.cluster, selector)).tolist()
    except InputError:
        return [Finding(f"{selector} runs nothing", "the cluster has no such device", True)]
    verdicts = []
    for d in devices:
        here = plan.problem.reduced.op_of[plan.assignment.devices == d]
        ops = len(np.unique(plan.graph.reduced.map[plan.program.serves[here]]))
        rule = f"{plan.cluster.devices[d].name} runs nothing"
        verdicts.append(Finding(rule, counted(ops, "op") if ops else "true", not ops))
    return verdicts


def _obeyed(plan: Plan, constraints: Constraints | None) -> list[Finding]:
    """A finding on the constraints that the plan was made with, and one on ``constraints``.

    Constraints that are empty have none.
    """
    verdicts = []
    extra = bind(plan.problem, as_constraints(constraints))
    asked = [("its constraints", plan.binding), ("constraints", extra)]
    for rule, binding in asked:
        if not binding.constraints.is_empty:
            broken = binding.broken(plan.assignment.devices, plan.memory.peak)
            verdicts.append(Finding(rule, "; ".join(broken) or "obeyed", not broken))
    return verdicts
