"""Step times on changed hardware: a plan for each scenario, beside a plan for today's cluster.

Of a plan that was made for throughput it is periods that are compared.
The result is a table for buyers of hardware. It has a line per scenario, with its step time against
today's. ``auto`` plans every scenario, and today's cluster too, from the same plan and with
the same effort. A plan that was made for a target is made again for that target, with its options.
So a gain comes from the hardware, not from a longer search.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from loadmaster.base import checks
from loadmaster.base.effort import Effort
from loadmaster.base.errors import InfeasibleError, InputError
from loadmaster.base.files import naming
from loadmaster.base.progress import Progress, of_case
from loadmaster.base.text import Printed, aligned, in_lines, meant
from loadmaster.base.units import format_bytes, format_seconds
from loadmaster.costs import Costs
from loadmaster.judge.assignment import Assignment
from loadmaster.judge.problem import Problem
from loadmaster.judge.streaming import judge
from loadmaster.judge.verdict import Verdict
from loadmaster.model.cluster import Cluster
from loadmaster.model.graph import OpGraph
from loadmaster.plans.plan import Plan
from loadmaster.plans.planner import Planner
from loadmaster.plans.streams import busy_shares, rate_in_words
from loadmaster.plans.summary import document
from loadmaster.plans.words import title
from loadmaster.rules.binding import bind
from loadmaster.strategies.warm import NOWHERE, carried_over
from loadmaster.tasks.planning import PlanRequest, plan_for

#: Name of the scenario that all others are compared with: today's cluster.
TODAY = "today"

Change = Mapping[str, Any]


@dataclass(frozen=True)
class Prospect:
    """One scenario and its result.

    Attributes
    ----------
    name : str
        The changes.
    cluster : Cluster
        The cluster after the changes.
    plan : Plan or None
        The plan made for this cluster. None: no plan that fits was found.
    kept : float or None
        Seconds per step (or of a period, if the plan was made for throughput) with the old
        placement and order. None: they cannot run here, or do not
        fit.
    why_not : str
        Why there is no plan.
    """

    name: str
    cluster: Cluster
    plan: Plan | None
    kept: float | None
    why_not: str = ""

    def to_document(self) -> dict[str, Any]:
        """As plain data for JSON: seconds, bytes, shares."""
        return {
            "scenario": self.name,
            "devices": self.cluster.n_devices,
            "kept": self.kept,
            "why_not": self.why_not,
            "plan": None if self.plan is None else document(self.plan),
        }


@dataclass(frozen=True)
class WhatIf(Printed):
    """Scenarios side by side.

    Attributes
    ----------
    before : Plan
        The plan that was asked about.
    prospects : tuple of Prospect
        Today's cluster planned anew first, then each scenario in the order given.
    """

    before: Plan
    prospects: tuple[Prospect, ...]

    @property
    def today(self) -> Prospect:
        """The cluster as it is, planned with the same effort as the others."""
        return self.prospects[0]

    def gain(self, prospect: Prospect) -> float | None:
        """Today's step time (or period) over that of a prospect; None if either has no plan."""
        if prospect.plan is None or self.today.plan is None or not _seconds(prospect.plan):
            return None
        return _seconds(self.today.plan) / _seconds(prospect.plan)

    def moved_ops(self, prospect: Prospect) -> float | None:
        """Share of the user's ops that are on a device of another name than before.

        All ops with parts count as being on one.
        """
        if prospect.plan is None:
            return None
        # An op with parts is on no single device: the name after the last.
        placed = [
            np.array([*(d.name for d in plan.cluster.devices), ""])[plan.devices]
            for plan in (self.before, prospect.plan)
        ]
        return float((placed[0] != placed[1]).mean())

    def to_document(self) -> dict[str, Any]:
        """As plain data for JSON: seconds, bytes, shares."""
        return {
            "graph": self.before.graph.name,
            "cluster": self.before.cluster.name,
            "objective": self.before.objective.goal,
            "before": _seconds(self.before),
            "scenarios": [
                {**p.to_document(), "gain": self.gain(p), "moved_ops": self.moved_ops(p)}
                for p in self.prospects
            ],
        }

    def __str__(self) -> str:
        is_step = self.before.objective.goal == "step"
        figures = ("step time", "x as fast") if is_step else ("period", "x as often")
        head = ("scenario", *figures, "plan kept", "bound", "busy", "moved", "peaks")
        every = f"{format_seconds(_seconds(self.before))} per {'step' if is_step else 'batch'}"
        said = "" if is_step else f" ({rate_in_words(self.before)})"
        lines = [
            f"{title(self.before)}: {every}{said} by {self.before.made_by}",
            *aligned([head, *(self._row(p) for p in self.prospects)]),
        ]
        return in_lines([*lines, *(f"{p.name}: {p.why_not}" for p in self.prospects if p.why_not)])

    def _row(self, prospect: Prospect) -> tuple[str, ...]:
        plan, gain = prospect.plan, self.gain(prospect)
        kept = "-" if prospect.kept is None else format_seconds(prospect.kept)
        if plan is None:
            return (prospect.name, "does not fit", "-", kept, "-", "-", "-", "-")
        peaks = zip(plan.memory.peak.tolist(), plan.cluster.memory, strict=True)
        return (
            prospect.name,
            format_seconds(_seconds(plan)) + ("" if plan.fits else " (does not fit)"),
            "-" if gain is None else f"{gain:.2f}",
            kept,
            format_seconds(plan.lower_bound),
            f"{busy_shares(plan).mean():.0%}",
            format_bytes(plan.schedule.bytes_moved),
            " ".join(f"{peak / max(size, 1):.0%}" for peak, size in peaks),
        )


def what_if(
    plan: Plan,
    *scenarios: Change,
    add_device: Any = None,
    remove_device: Any = None,
    scale_link: Any = None,
    scale_device: Any = None,
    memory: Any = None,
    time_limit: float | None = None,
    effort: Effort | float | None = None,
    progress: Progress | None = None,
) -> WhatIf:
    """Plans again for changed clusters, from a plan as warm start, and says what changes.

    Each keyword is a scenario of its own, or several scenarios if it is a list. A mapping given as
    a scenario has several changes at once, which are made in its order. Times are the plan's own:
    those given or measured for a device type hold for it. On a device that is faster by a factor,
    they are divided by the factor.

    Ctrl-C ends the search of one scenario, which keeps the best plan found.

    Parameters
    ----------
    plan : Plan
    scenarios : mapping
        The names below to values, such as ``{"add_device": "gpu3", "memory": "80GiB"}``.
    add_device : str or {device: number}
        A device to copy (:meth:`Cluster.with_device`), and how often.
    remove_device : str
        A device to take out.
    scale_link : float or {(device, device): float}
        Bandwidth of all links, or of those between two devices both ways, times a factor.
    scale_device : float or {device: float}
        Speed of all devices, or of one, times a factor (:meth:`Cluster.with_speed`).
    memory : int or str, or {device: int or str}
        Bytes of all devices, or of one.
    time_limit : float, optional
        Seconds of search per scenario. If absent: the default of ``auto``.
    effort : "fast", "normal", "max" or a number, optional
        Work that ``auto`` may do per scenario. It is counted, so every run has the same result. A
        plan for a target takes it only if the target does.
    progress : callable, optional
        Called with the scenario and its stage, and the best makespan so far.

    Returns
    -------
    WhatIf
        Prints as a table.

    Raises
    ------
    InputError
        No scenario; an unknown change; no such device or link; a value out of range.

    Examples
    --------
    >>> import loadmaster as lm
    >>> plan = lm.place(lm.read("example:lenet"), lm.Cluster.preset("2xV100-NVLink"), "heft")
    >>> seen = lm.what_if(plan, scale_device=2, memory=["8GiB", "64GiB"], effort=0.05)
    >>> [prospect.name for prospect in seen.prospects]
    ['today', 'scale_device=2', 'memory=8GiB', 'memory=64GiB']
    >>> seen.gain(seen.prospects[1]) > 1.5
    True
    """
    changes = [_checked(scenario) for scenario in scenarios]
    alone = {
        "add_device": add_device,
        "remove_device": remove_device,
        "scale_link": scale_link,
        "scale_device": scale_device,
        "memory": memory,
    }
    for word, value in alone.items():
        values = value if isinstance(value, list) else [] if value is None else [value]
        changes += [{word: one} for one in values]
    if not changes:
        raise InputError(f"no scenario: give at least one of {', '.join(CHANGES)}")
    todo = [(TODAY, Hardware.of(plan, {}))]
    todo += [(_name(change), Hardware.of(plan, change)) for change in changes]
    search = PlanRequest(
        options={} if effort is None else {"effort": effort}, time_limit=time_limit
    )

    def prospect(name: str, hardware: Hardware) -> Prospect:
        of_this = of_case(progress, name)
        return _prospect(plan, name, hardware, replace(search, progress=of_this))

    prospects = [prospect(*one) for one in todo]
    return WhatIf(plan, _shared(plan, prospects, [hardware for _, hardware in todo]))


def _prospect(plan: Plan, name: str, hardware: Hardware, search: PlanRequest) -> Prospect:
    kept = _seen(plan, hardware.problem(plan))
    step = None if kept is None or not kept[1].fits else plan.objective.seconds(kept[1])
    try:
        made_again = plan_for(hardware.whole_problem(plan), _request(plan, search))
    except InfeasibleError as error:
        return Prospect(name, hardware.cluster, None, step, str(error))
    return Prospect(name, hardware.cluster, made_again, step)


def _request(plan: Plan, search: PlanRequest) -> PlanRequest:
    """The request that makes a plan again: for its target, with the target's options, or else by
    auto. A search has the effort, the limit and the progress.

    Raises
    ------
    InputError
        An effort, where planning for the target counts none.
    """
    search = replace(search, constraints=plan.constraints)
    if plan.target is None:
        # Only a plan of whole ops places the ops that are to be placed anew.
        return replace(search, warm_start=plan if plan.program.is_plain else None)
    options = {**plan.options, **search.options}
    return replace(search, planner=Planner(plan.target, is_target=True), options=options)


def _shared(
    before: Plan, prospects: Sequence[Prospect], hardware: Sequence[Hardware]
) -> tuple[Prospect, ...]:
    """The prospects, each with the best plan that can run on its cluster: any scenario's, or the
    one before.

    A plan that was found for less hardware also runs on more hardware. Without this step, an
    unlucky search could make additional hardware look harmful. One simulation per pair.
    """
    plans = [(f"found for the scenario {p.name}", p.plan) for p in prospects if p.plan is not None]
    plans.append(("the plan before, as it is", before))
    return tuple(
        replace(p, plan=_best(p.plan, one.whole_problem(before), plans)) if p.plan else p
        for p, one in zip(prospects, hardware, strict=True)
    )


def _best(own: Plan, whole: Problem, plans: Sequence[tuple[str, Plan]]) -> Plan:
    """The best of plans for a problem of placing whole ops; ``own`` is the one made for it."""
    best = own
    for note, plan in plans:
        plain = plan.program.is_plain
        problem = whole if plain else whole.transformed(plan.program)
        seen = _seen(plan, problem)
        if seen is None or not seen[1].fits:
            continue
        assignment, verdict = seen
        if bind(problem, own.constraints).broken(assignment.devices, verdict.peak):
            continue
        rival = replace(
            best,
            problem=problem,
            assignment=replace(assignment, estimate=own.estimate),
            verdict=verdict,
            notes=(note,),
            parallelism=plan.parallelism,
            for_writer=plan.for_writer,
        )
        best = problem.objective.better(best, rival)
    return best


def _seen(plan: Plan, problem: Problem) -> tuple[Assignment, Verdict] | None:
    """A plan's placement on another cluster, judged; None: a device that it uses is gone."""
    assignment = carried_over(plan, problem)
    if (assignment.devices == NOWHERE).any():
        return None
    return assignment, judge(problem, assignment)


def _seconds(plan: Plan) -> float:
    """Of a step, or of a period, as the plan was made for."""
    return plan.objective.seconds(plan.verdict)


# -- hardware ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hardware:
    """A changed cluster, and the types that its device types are copies of.

    Attributes
    ----------
    cluster : Cluster
    like : mapping of type name to (type name, float)
        For each type of the cluster, a type whose times the plan knows, and how many times as fast
        as that known type it is.
    """

    cluster: Cluster
    like: Mapping[str, tuple[str, float]]

    @classmethod
    def of(cls, plan: Plan, change: Change) -> Hardware:
        """A plan's cluster after a scenario's changes, in their order.

        Raises
        ------
        InputError
            A change that cannot be made; it is named.
        """
        types = {t.name: (t.name, 1.0) for t in plan.cluster.types}
        hardware = cls(plan.cluster, types)
        for word, value in change.items():
            with naming(_name({word: value})):
                hardware = CHANGES[word](hardware, value)
        return hardware

    def faster(self, factor: Any, device: Any) -> Hardware:
        """The hardware with one device, or every device (None), a factor faster."""
        cluster = self.cluster.with_speed(factor, device)
        like = dict(self.like)
        for old, new in zip(self.cluster.devices, cluster.devices, strict=True):
            if old.type != new.type:
                known, times = self.like[old.type]
                like[new.type] = known, times * factor
        return Hardware(cluster, like)

    def problem(self, plan: Plan) -> Problem:
        """The plan's program on this cluster, with times for its device types.

        An op that names the types that it may run on may also run on faster copies of these types.
        """
        program = plan.program
        copies = {n: known for n in self._types if (known := self.like[n][0]) != n}
        allowing = _allowing(program.source, copies)
        if not program.is_plain:
            program = program.with_graph(allowing, _allowing(program.graph, copies))
        changed = Problem.make(
            allowing if program.is_plain else program,
            self.cluster,
            self._costs(plan.problem.costs),
            seed=plan.seed,
            source_costs=self._costs(plan.costs),
        )
        return replace(changed, objective=plan.objective)

    def whole_problem(self, plan: Plan) -> Problem:
        """The same, of the user's ops, whole."""
        copies = {n: known for n in self._types if (known := self.like[n][0]) != n}
        graph = _allowing(plan.graph, copies)
        changed = Problem.make(graph, self.cluster, self._costs(plan.costs), seed=plan.seed)
        return replace(changed, objective=plan.objective)

    @property
    def _types(self) -> tuple[str, ...]:
        return tuple(t.name for t in self.cluster.types)

    def _costs(self, known: Costs) -> Costs:
        """Costs for the cluster's types, from the costs for the types that the plan knows."""
        columns = [known.time[:, known.types.index(self.like[n][0])] for n in self._types]
        time = np.stack(columns, axis=1) / [self.like[n][1] for n in self._types]
        return replace(known, time=time, types=self._types)


def _allowing(graph: OpGraph, copies: Mapping[str, str]) -> OpGraph:
    if not graph.is_restricted or not copies:
        return graph
    allowed = []
    for text in graph.device_types:
        words = [word.strip() for word in text.split(",")] if text else []
        allowed.append(",".join([*words, *(copy for copy, of in copies.items() if of in words)]))
    return graph.with_columns({"device_types": allowed})


def _each(value: Any) -> Mapping[Any, Any]:
    """A value per device or link. A single value for all of them has the key None."""
    return value if isinstance(value, Mapping) else {None: value}


def _add_device(hardware: Hardware, value: Any) -> Hardware:
    cluster = hardware.cluster
    for device, number in (value if isinstance(value, Mapping) else {value: 1}).items():
        if not (checks.is_integer(number) and 1 <= number <= MOST_ADDED):
            raise InputError(f"{number!r} copies of {device!r}: wants 1 to {MOST_ADDED}")
        for _ in range(number):
            cluster = cluster.with_device(device)
    return replace(hardware, cluster=cluster)


def _remove_device(hardware: Hardware, value: Any) -> Hardware:
    return replace(hardware, cluster=hardware.cluster.without_device(value))


def _scale_link(hardware: Hardware, value: Any) -> Hardware:
    cluster = hardware.cluster
    for ends, factor in _each(value).items():
        if ends is not None and not (isinstance(ends, tuple) and len(ends) == 2):
            raise InputError(f"{ends!r} is no pair of devices")
        cluster = cluster.with_link_speed(factor, ends)
    return replace(hardware, cluster=cluster)


def _scale_device(hardware: Hardware, value: Any) -> Hardware:
    for device, factor in _each(value).items():
        hardware = hardware.faster(factor, device)
    return hardware


def _memory(hardware: Hardware, value: Any) -> Hardware:
    cluster = hardware.cluster
    for device, size in _each(value).items():
        cluster = cluster.with_memory(size, device)
    return replace(hardware, cluster=cluster)


#: Most copies of a device in one change.
MOST_ADDED = 1024

#: The changes by name, and the functions that make them.
CHANGES: dict[str, Callable[[Hardware, Any], Hardware]] = {
    "add_device": _add_device,
    "remove_device": _remove_device,
    "scale_link": _scale_link,
    "scale_device": _scale_device,
    "memory": _memory,
}


def _checked(scenario: Any) -> dict[str, Any]:
    if not isinstance(scenario, Mapping) or not scenario:
        raise InputError(f"a scenario is {scenario!r}: wants a mapping of changes to values")
    unknown = [word for word in scenario if word not in CHANGES]
    if unknown:
        raise InputError(f"no change is named {unknown[0]!r}{meant(unknown[0], CHANGES)}")
    return dict(scenario)


def _name(change: Change) -> str:
    """A scenario as a person would write it on the command line."""

    def text(value: Any) -> str:
        if not isinstance(value, Mapping):
            return f"{value}"
        keys = [":".join(map(str, k)) if isinstance(k, tuple) else str(k) for k in value]
        return " ".join(f"{k}={v}" for k, v in zip(keys, value.values(), strict=True))

    return ", ".join(f"{word}={text(value)}" for word, value in change.items())
