"""Lower bounds on the seconds of any plan of a space (design section 7; computed in Rust): on its
step time, or where the objective is throughput, on its period.

A *space* of plans is what may be done to ops: :data:`WHOLE_OPS` places each on one device,
:data:`SPLIT_OPS` may also replicate them or cut them into parts. A bound holds for its own space.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

import loadmaster.fast as fast
from loadmaster.base.text import Printed, aligned, in_lines
from loadmaster.base.units import format_seconds
from loadmaster.judge.problem import Problem
from loadmaster.model.cluster import Cluster

#: Plans that run every op whole, on one device.
WHOLE_OPS = "whole ops"

#: Plans that may also replicate ops, or cut them into parts.
SPLIT_OPS = "split ops"

SPACES = (WHOLE_OPS, SPLIT_OPS)


@dataclass(frozen=True)
class Bound(Printed):
    """A lower bound on the step time, or the period, of any plan of a space.

    Attributes
    ----------
    seconds : float
        The largest of ``parts``.
    source : str
        Name of that part.
    parts : dict of str to float
        "critical path" (fastest allowed types, free transfers), "work over capacity" (a linear
        program over device types), "critical path with forced transfers" (at joins and forks),
        "work between heads and tails", and where launches cost hosts time, "launches over hosts".
        Of a period: "work over capacity", "launches over hosts", and "heaviest ops that stay
        together", on the fastest type that they may run on.
    space : str
        The space of plans that it holds for.
    launches : str
        The launches that it counts, in words.
    """

    seconds: float
    source: str
    parts: dict[str, float]
    space: str = WHOLE_OPS
    launches: str = ""

    def __str__(self) -> str:
        why = ", ".join(filter(None, (self.source, self.launches)))
        head = f"at least {format_seconds(self.seconds)} for plans of {self.space} ({why})"
        rows = [(f"  {part}", format_seconds(seconds)) for part, seconds in self.parts.items()]
        return in_lines([head, *aligned([("  argument", "at least"), *rows])])


def bound(problem: Problem) -> Bound:
    """The bound of placing the ops of a problem's graph whole."""
    bounds_by_name = fast.bounds(problem.core)
    if problem.objective.goal == "throughput":
        together = {"heaviest ops that stay together": _heaviest(problem)}
        return _largest(problem, {**_of_any_period(problem, bounds_by_name), **together}, WHOLE_OPS)
    parts = {
        "critical path": bounds_by_name["critical_path"],
        "work over capacity": bounds_by_name["work"],
        "critical path with forced transfers": bounds_by_name["forced_transfers"],
        "work between heads and tails": bounds_by_name["heads_and_tails"],
        **_launches(problem, bounds_by_name["launches"]),
    }
    counted = launches_in_words(problem.cluster)
    return Bound(
        bounds_by_name["best"], bounds_by_name["source"], parts, WHOLE_OPS, launches=counted
    )


def split_bound(problem: Problem) -> Bound:
    """The bound of plans that may also replicate the problem's ops, or cut them.

    The parts of an op take as long as the op at least, all together: they do its work, and each is
    launched. So what all devices together must work is a bound all the same, and so is what all
    hosts must launch. That an op must run before another one says little: with enough parts every
    op could be short.

    The same holds of a period: each batch is work that is done somewhere, on whole samples or on
    parts of them.
    """
    return _largest(problem, _of_any_period(problem, fast.bounds(problem.core)), SPLIT_OPS)


def launches_in_words(cluster: Cluster) -> str:
    """The launches that the times of a cluster's plans, and bounds on them, count.

    >>> import loadmaster as lm
    >>> launches_in_words(lm.Cluster.preset("2xV100-NVLink"))
    '5 us a launch'
    """
    if cluster.dispatch is not None:
        host = "one host" if cluster.dispatch.one_host else "a host for each device"
        return f"{format_seconds(cluster.dispatch.launch)} a launch by {host}"
    seconds = sorted({kind.launch for kind in cluster.types})
    if not any(seconds):
        return "no launches"
    least, most = format_seconds(seconds[0]), format_seconds(seconds[-1])
    return f"{least} a launch" if least == most else f"{least} to {most} a launch"


def _largest(problem: Problem, parts: dict[str, float], space: str) -> Bound:
    source = max(parts, key=lambda name: parts[name])
    return Bound(parts[source], source, parts, space, launches_in_words(problem.cluster))


def _of_any_period(problem: Problem, parts: fast._Bounds) -> dict[str, float]:
    """The least work of devices and hosts in a period, shared out as well as can be."""
    return {"work over capacity": parts["work"], **_launches(problem, parts["launches"])}


def _heaviest(problem: Problem) -> float:
    """Seconds of the ops that share a device, of those that take longest on their fastest type."""
    sets, seconds = problem.graph.colocation, problem.compute_time
    allowed = np.where(problem.allowed_types, seconds, np.inf)
    together = [np.bincount(sets, column) for column in allowed.T]
    return float(np.min(together, axis=0).max(initial=0.0))


def _launches(problem: Problem, seconds: float) -> dict[str, float]:
    return {} if problem.dispatch is None else {"launches over hosts": seconds}
