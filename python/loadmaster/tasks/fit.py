"""Tells if a graph fits, on how few devices, and what would help if it does not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np

from loadmaster.base import checks
from loadmaster.base.errors import InfeasibleError, InputError
from loadmaster.base.progress import Incumbent, Progress
from loadmaster.base.text import Printed, aligned, in_lines
from loadmaster.base.units import counted, format_bytes, format_seconds
from loadmaster.costs import Costs
from loadmaster.judge.objective import OBJECTIVES, Goal
from loadmaster.judge.problem import Problem
from loadmaster.judge.simulation import CostsLike, as_costs
from loadmaster.model.batch import ASSUMPTION, batch_of, scaled_batch
from loadmaster.model.cluster import Cluster
from loadmaster.model.graph import OpGraph
from loadmaster.plans import gradients_held
from loadmaster.plans.considered import arguments_of
from loadmaster.plans.footprint import USES, Footprint, footprints, largest_op
from loadmaster.plans.plan import Plan
from loadmaster.plans.planner import Planner
from loadmaster.plans.streams import rate_in_words, stream_document
from loadmaster.rules.binding import Binding, bind
from loadmaster.rules.constraints import EVERY, REGEX, Constraints, as_constraints
from loadmaster.strategies.auto.replicas import WAYS, can_be_replicated
from loadmaster.strategies.kinds import Request
from loadmaster.strategies.registry import DEFAULT, Method
from loadmaster.systems.registry import target_of
from loadmaster.tasks.given import ClusterLike, GraphLike, as_cluster, as_graph
from loadmaster.tasks.place import place
from loadmaster.tasks.planning import PlanRequest, plan_for

#: Methods to try, in this order, until one finds a placement that fits.
METHODS: tuple[Method, ...] = ("order-place", "m-topo", "celeritas", "layers", "m-etf")

#: Precision of the memory that would help, as a share of that memory.
_CLOSE = 1 / 64

#: Most doublings of the added memory until a method finds a placement that fits.
_DOUBLINGS = 8

#: Parts of a batch of unknown size: smaller batches are tried in whole parts.
_PARTS = 64

#: Most devices to add, as a multiple of the cluster's devices.
_MOST_MORE = 4


@dataclass(frozen=True)
class Remedy:
    """The least of something that makes the graph fit.

    Attributes
    ----------
    what : "replicas", "memory", "devices" or "batch"
    amount : int, or float for a batch of unknown size, or None
        More bytes on every device, more devices, or the batch (as a share where its size is
        unknown); of replicas, more bytes on every device, 0 if they fit as it is. None: no amount
        that was tried helps.
    text : str
        The remedy in words, with its assumptions.
    """

    what: str
    amount: int | float | None
    text: str


@dataclass(frozen=True)
class Fit(Printed):
    """The answer to the question if a graph fits a cluster.

    Attributes
    ----------
    plan : Plan
        The plan on the fewest devices that hold the graph. If it does not fit: the placement that
        exceeds memory least.
    fewest : int or None
        Number of devices of the plan; None: no placement that fits was found.
    at_least : int
        Number of devices that any placement needs for the bytes that stay in memory for the whole
        step. It exceeds the cluster's if the largest op alone is too large. Of a target, which may
        keep weights elsewhere: 1.
    footprints : tuple of Footprint
        The contents of each device at its peak.
    remedies : tuple of Remedy
        Changes that would help, if the graph does not fit.
    """

    plan: Plan
    fewest: int | None
    at_least: int
    footprints: tuple[Footprint, ...]
    remedies: tuple[Remedy, ...] = ()

    @property
    def fits(self) -> bool:
        """True if a placement that fits was found."""
        return self.fewest is not None

    def to_document(self) -> dict[str, Any]:
        """As plain data for JSON."""
        return {
            "graph": self.plan.graph.name,
            "cluster": self.plan.cluster.name,
            "fits": self.fits,
            "fewest_devices": self.fewest,
            "at_least_devices": self.at_least,
            "method": self.plan.method,
            "target": self.plan.target,
            "makespan": self.plan.makespan,
            **stream_document(self.plan),
            "devices": [f.to_document() for f in self.footprints],
            **gradients_held.document(self.plan),
            "remedies": [vars(remedy) for remedy in self.remedies],
        }

    def __str__(self) -> str:
        graph, cluster = self.plan.graph.name or "graph", self.plan.cluster.name or "cluster"
        lines = [f"{graph} on {cluster}: {self._verdict()}"]
        rows: list[tuple[str, ...]] = [("device", "capacity", *USES, "left")]
        for f in self.footprints:
            parts = (f.capacity, *(getattr(f, use) for use in USES))
            left = f"{format_bytes(f.free)} free" if f.free >= 0 else ""
            rows.append(
                (f.device, *map(format_bytes, parts), left or f"{format_bytes(-f.free)} SHORT")
            )
        lines += aligned(rows)
        if words := gradients_held.in_words(self.plan):
            lines.append(f"{words}.")
        if self.remedies:
            lines.append("What would help:")
            lines += [f"  {remedy.text}" for remedy in self.remedies]
        return in_lines(lines)

    @property
    def _is_short(self) -> bool:
        """True if the plan does not fit where all gradients are held until the updates."""
        held = gradients_held.peaks_held(self.plan)
        return held is not None and bool((held > np.array(self.plan.binding.room)).any())

    def _verdict(self) -> str:
        n = self.plan.cluster.n_devices
        if self.fewest is None:
            sure = self.at_least > n
            of = "" if self.plan.target is None else f" for target {self.plan.target}"
            placement = f"that fits {'can be' if sure else 'was'} found"
            return f"no placement{of} {placement}; the least over:"
        surely = self.fewest == self.at_least
        fewer = "no fewer can hold it" if surely else "on fewer, no placement was found"
        rate = "" if self.plan.verdict.steady is None else f" at {rate_in_words(self.plan)}"
        if self.plan.target is not None and not rate:
            rate = f" at {format_seconds(self.plan.makespan)} per step"
        order = " if each parameter is updated in the backward pass" if self._is_short else ""
        on = f"{self.fewest} of {n} devices"
        return f"fits {on}{order}{rate}; {fewer}; planned by {self.plan.made_by}:"


def fit(
    graph: GraphLike,
    cluster: ClusterLike,
    costs: CostsLike | None = None,
    *,
    constraints: Constraints | None = None,
    objective: Goal = "step",
    target: str | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> Fit:
    """Finds the fewest devices that hold a graph, and what would help if it does not fit.

    Devices that ops are pinned to are used first, then the largest. A placement that fits proves
    that the graph fits. If :data:`METHODS` find none, only :attr:`Fit.at_least` is a proof. A
    remedy is the least amount with which these methods find a placement; memory is found to within
    1/64.

    Parameters
    ----------
    graph, cluster, costs : see :func:`loadmaster.place`
    constraints : Constraints, optional
        Reserves and other constraints that the placement must obey.
    objective : "step" (default) or "throughput"
        With "throughput", ``auto`` plans for throughput on the fewest devices, and the result says
        how many samples a second they finish.
    target : str, optional
        The system that will run the plan, as for :func:`loadmaster.place`. The fewest devices are
        then the fewest tried on which its plan fits, by bisection, and remedies are what makes its
        plan fit.
    progress : callable, optional
        Called with the devices, the method or the remedy that is tried.
    options
        Of the target.

    Raises
    ------
    InputError
        As :func:`loadmaster.place`, also where a target does not take a model of this kind.
    InfeasibleError
        A target has no plan at all, not even one that is over the memory; it says why.

    Notes
    -----
    O(log devices) placements by up to five methods. If the graph does not fit, O(log memory +
    log devices + log batch) more.

    Examples
    --------
    >>> import loadmaster as lm
    >>> found = lm.fit(lm.read("example:vgg19"), lm.Cluster.preset("4xV100-PCIe"))
    >>> found.fits, found.fewest
    (True, 1)
    >>> lm.fit("example:lenet", "2xV100-NVLink", target="ddp").plan.target
    'ddp'
    """
    graph, cluster = as_graph(graph), as_cluster(cluster)
    checks.one_of("objective", objective, tuple(OBJECTIVES))
    if target is not None:
        target_of(target).checked(options)
    elif options:
        raise InputError(f"option {next(iter(options))!r} is a target's: name the target too")
    trial = _FitTrial(
        graph,
        cluster,
        as_costs(costs, graph, cluster),
        as_constraints(constraints),
        progress or (lambda stage, makespan: None),
        target,
        options,
    )
    fitted = trial.fit()
    return fitted if objective == "step" or not fitted.fits else trial.streaming(fitted)


@dataclass(frozen=True)
class _FitTrial:
    """A graph, a cluster and constraints, with the methods, or the target, tried on them."""

    graph: OpGraph
    cluster: Cluster
    costs: Costs
    constraints: Constraints
    progress: Progress
    target: str | None
    options: Mapping[str, Any]

    def fit(self) -> Fit:
        problem = Problem.make(self.graph, self.cluster, self.costs)
        binding = bind(problem, self.constraints)
        order = _by_size(binding)
        at_least = 1 if self.target is not None else _at_least(binding, order)
        n = self.cluster.n_devices
        self.progress(f"all {n} devices", None)
        whole = self.placed() if at_least <= n else None
        if whole is None:
            closest = self.least_over()
            # Best effort goes on where a method gives up, and may find a placement that fits.
            whole = closest if _most_over(closest) <= 0 else None
        if whole is None:
            more = self.memory(_most_over(closest)), self.devices(), self.batch()
            remedies = (*self.replicas(), *more)
            return Fit(closest, None, at_least, footprints(closest), remedies)
        plans = {n: whole}

        def on(k: int) -> bool:
            best = plans[min(plans)]
            seen = Incumbent(best.makespan, best.lower_bound)
            self.progress(f"{k} of {n} devices", seen)
            plan = self.placed(self.only(order[:k]))
            if plan is not None:
                plans[k] = plan
            return plan is not None

        fewest = _least(on, at_least, n)
        return Fit(plans[fewest], fewest, at_least, footprints(plans[fewest]))

    def streaming(self, fitted: Fit) -> Fit:
        """The same fit, planned for throughput on the same devices."""
        self.progress("throughput", None)
        method: dict[str, Any] = {"method": "auto"}
        if self.target is not None:
            method = {"target": self.target, **self.options}
        binding = bind(Problem.make(self.graph, self.cluster, self.costs), self.constraints)
        assert fitted.fewest is not None, "it fits"
        plan = place(
            self.graph,
            self.cluster,
            costs=self.costs,
            constraints=self.only(_by_size(binding)[: fitted.fewest]),
            objective="throughput",
            progress=self.progress,
            **method,
        )
        return replace(fitted, plan=plan, footprints=footprints(plan))

    def only(self, devices: list[int]) -> Constraints:
        """The constraints, with only these devices allowed."""
        pattern = next(
            p for p in (EVERY, f"{REGEX}.*", f"{REGEX}(.*)") if p not in self.constraints.pin
        )
        names = [self.cluster.devices[d].name for d in devices]
        return self.constraints.merged(Constraints(pin={pattern: names}))

    def placed(
        self,
        constraints: Constraints | None = None,
        *,
        cluster: Cluster | None = None,
        graph: OpGraph | None = None,
    ) -> Plan | None:
        """The first plan found that fits. None: none does, or the constraints contradict."""
        graph, cluster = graph or self.graph, cluster or self.cluster
        problem = Problem.make(graph, cluster, as_costs(self.costs, graph, cluster))
        rules = constraints or self.constraints
        for request in self.requests():
            try:
                return plan_for(problem, replace(request, constraints=rules))
            except InfeasibleError:
                continue
            except InputError:
                # Ops are pinned to devices that are not among those tried.
                if constraints is None:
                    raise
                return None
        return None

    def requests(self) -> Iterator[PlanRequest]:
        """Requests that are tried one after another: one a method, or that for the target.

        Greedy passes are fastest, so they come first. If none finds a plan, one search is enough.
        """
        if self.target is not None:
            yield PlanRequest(Planner(self.target, is_target=True), self.options)
            return
        for method in METHODS:
            yield PlanRequest(Planner(method), greedy=True)
        yield PlanRequest(Planner(METHODS[0]))

    def least_over(self) -> Plan:
        """The placement whose largest excess on a device is smallest."""
        plans = []
        rows = METHODS if self.target is None else (DEFAULT,)
        for method in rows:
            self.progress(f"{self.target or method}, best effort", None)
            plans.append(
                place(
                    self.graph,
                    self.cluster,
                    method,
                    self.costs,
                    on_oom="best_effort",
                    constraints=self.constraints,
                    target=self.target,
                    **self.options,
                )
            )
        return min(plans, key=_most_over)

    def replicas(self) -> tuple[Remedy, ...]:
        """Replicas by the way of summing gradients that needs least, where the batch can be shared
        out: whether they fit, or what they lack on every device.
        """
        if self.target is not None or not can_be_replicated(
            Problem.make(self.graph, self.cluster, self.costs)
        ):
            return ()
        ways: list[tuple[int, str, dict[str, Any]]] = []
        for options, words in WAYS:
            self.progress(f"replicas, {words}", None)
            with suppress(InfeasibleError):
                plan = place(
                    self.graph,
                    self.cluster,
                    "data-parallel",
                    self.costs,
                    on_oom="best_effort",
                    constraints=self.constraints,
                    **options,
                )
                ways.append((max(_most_over(plan), 0), words, options))
        if not ways:
            return ()
        lacking, words, options = min(ways, key=lambda one: one[0])
        arguments = arguments_of(Request("data-parallel", tuple(options.items())))
        if not lacking:
            return (Remedy("replicas", 0, f"replicas: they fit, {words}: {arguments}"),)
        more = f"{format_bytes(lacking)} ({lacking} bytes) more on every device"
        return (Remedy("replicas", lacking, f"replicas: {more}, {words}: {arguments}"),)

    def memory(self, enough: int) -> Remedy:
        """More memory on every device. With ``enough``, the placement of least excess fits."""
        for _ in range(_DOUBLINGS):
            if self.placed(cluster=_larger(self.cluster, enough)) is not None:
                break
            enough *= 2
        needed = largest_op(self.graph)[1] - max(self.cluster.memory)
        step = max(int(enough * _CLOSE), 1)

        def helps(steps: int) -> bool:
            more = min(steps * step, enough)
            self.progress(f"{format_bytes(more)} more on each device", None)
            return self.placed(cluster=_larger(self.cluster, more)) is not None

        most = -(-enough // step)
        least = min(max(needed // step, 1), most)
        amount = min(_least(helps, least, most) * step, enough)
        text = f"memory: {format_bytes(amount)} ({amount} bytes) more on every device"
        return Remedy("memory", amount, text)

    def devices(self) -> Remedy:
        """More devices like the largest one."""
        like = max(range(self.cluster.n_devices), key=lambda d: (self.cluster.memory[d], -d))
        name = self.cluster.devices[like].name
        most = _MOST_MORE * self.cluster.n_devices
        op, alone = largest_op(self.graph)
        if alone > self.cluster.memory[like]:
            needs = f"{self.graph.names[op]!r} alone needs {format_bytes(alone)} ({alone} bytes)"
            return Remedy("devices", None, f"devices: no number would do: {needs} at once")
        clusters = [self.cluster]
        try:
            clusters.append(self.cluster.with_device(like))
        except InputError as error:
            return Remedy("devices", None, f"devices: {error}")

        def helps(more: int) -> bool:
            while len(clusters) <= more:
                clusters.append(clusters[-1].with_device(like))
            self.progress(counted(more, "more device"), None)
            return self.placed(cluster=clusters[more]) is not None

        tried = 1
        while not helps(tried):
            if tried == most:
                text = f"devices: not even {most} more like {name} would do"
                return Remedy("devices", None, text)
            tried = min(2 * tried, most)
        amount = _least(helps, tried // 2 + 1, tried)
        return Remedy("devices", amount, f"devices: {amount} more like {name}")

    def batch(self) -> Remedy:
        """A smaller batch, of the size that the graph's ``meta`` names, or a share of it."""
        known = batch_of(self.graph)
        size = known if known != 1 else None
        parts = size or _PARTS

        def helps(less: int) -> bool:
            self.progress(f"{parts - less} of {parts} parts of the batch", None)
            smaller = scaled_batch(self.graph, Fraction(parts - less, parts))
            return self.placed(graph=smaller) is not None

        if not helps(parts - 1):
            least = "1" if size else f"1/{_PARTS} of it"
            return Remedy("batch", None, f"batch: not even {least} would do, if {ASSUMPTION}")
        left = parts - _least(helps, 1, parts - 1)
        if size:
            return Remedy("batch", left, f"batch: {left} instead of {size}, if {ASSUMPTION}")
        share = left / _PARTS
        return Remedy("batch", share, f"batch: {share:.1%} of what it is, if {ASSUMPTION}")


def _least(holds: Callable[[int], bool], low: int, high: int) -> int:
    """The least number for which ``holds`` is true, by bisection up to ``high``.

    ``holds`` must be true for ``high``, and for all numbers above one for which it is true.
    """
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return high


def _most_over(plan: Plan) -> int:
    """The largest excess over a device's memory, in bytes."""
    return max(int(p) - r for p, r in zip(plan.memory.peak, plan.binding.room, strict=True))


def _by_size(binding: Binding) -> list[int]:
    """Devices in order: first those that are some op's only device, then by usable memory."""
    alone = binding.allowed[binding.allowed.sum(axis=1) == 1]
    needed = alone.any(axis=0) if len(alone) else np.zeros(len(binding.room), dtype=bool)
    return sorted(range(len(binding.room)), key=lambda d: (not needed[d], -binding.room[d], d))


def _at_least(binding: Binding, order: list[int]) -> int:
    """Number of devices, the largest first, that can hold the bytes of the whole step.

    One more than the cluster has, if all devices together are too small, or if every device is too
    small for the largest op.
    """
    if largest_op(binding.original.model)[1] > max(binding.room):
        return len(order) + 1
    resident = int(binding.original.graph.resident.sum())
    largest = sorted((binding.room[d] for d in order), reverse=True)
    total = 0
    for count, room in enumerate(largest, start=1):
        total += room
        if total >= resident:
            return count
    return len(largest) + 1


def _larger(cluster: Cluster, more: int) -> Cluster:
    for d, memory in enumerate(cluster.memory):
        cluster = cluster.with_memory(memory + more, d)
    return cluster
