"""Hugging Face accelerate: modules on GPUs in order, and weights that are streamed where they must.

A device map sends whole modules to devices (:mod:`.module_units`). GPUs compute. A module that the
map has on ``cpu`` or ``disk`` is only *stored* there. It runs on the main GPU, the first: before
each module with weights of its own runs, these are copied to it, behind what the GPU is doing, and
dropped afterwards (:mod:`loadmaster.transforms.weight_streaming`; accelerate's ``AlignDevicesHook``
with ``offload=True``). Buffers stay on the GPU.

Modules fill one GPU after the other, in the order in which they run: that keeps one step shortest,
as each further GPU is one more transfer. Work in even shares, and bytes in even shares of the
memory, are judged beside it. Of plans whose steps are as good as equal, a GPU that is nearly full
gives way to the plan that leaves most free: real inputs are longer, and allocators waste some.
Where the GPUs do not hold the weights, the last ones are filled from the end. The first keeps as
much as it can beside what a step needs when everything of its part is streamed, and streams the
rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

import loadmaster.fast as fast
from loadmaster.base.errors import InfeasibleError
from loadmaster.base.units import counted, format_bytes
from loadmaster.judge.assignment import Assignment
from loadmaster.judge.problem import Problem, ranks
from loadmaster.model.families import families
from loadmaster.model.graph import PARAMETER
from loadmaster.strategies.attempts import SHARES, Outcome, accepted, attempts, charged
from loadmaster.strategies.candidate import Candidate
from loadmaster.systems.accelerate.module_units import Units, units_of
from loadmaster.systems.accelerate.semantics import NAME
from loadmaster.systems.registry import refused
from loadmaster.transforms.weight_streaming import above, stream_weights

#: Halvings of the load that the busiest or the fullest GPU may have, where it is shared out evenly.
_HALVINGS = 30

#: A GPU with less than this share of its memory free is nearly full, and steps that differ by less
#: than the other share are as good as equal.
_FULL, _EQUAL = 0.1, 0.005

#: Most times that fewer weights are kept, where what was kept did not fit after all.
_FEWER = 8


def place(problem: Problem, *, root: str = "") -> Candidate:
    """Modules on GPUs, or streamed.

    Parameters
    ----------
    problem : Problem
    root : str
        What the model is called in the graph's module paths; empty: they are the model's own.

    Raises
    ------
    InputError
        The graph has no module paths.
    InfeasibleError
        Weights, even streamed, do not fit.
    """
    if not any(problem.model.modules):
        raise refused(NAME, f"{problem.model.name or 'the graph'!r} has no module paths")
    return _Placing(problem, units_of(problem, root), root).best()


#: Shares modules out to some devices within their capacity.
_Way = Callable[[Sequence[int], NDArray[np.uint64]], NDArray[np.int32]]


@dataclass(frozen=True)
class _Placing:
    """A problem, its units, and the devices that compute and store."""

    problem: Problem
    units: Units
    root: str

    @cached_property
    def family(self) -> list[str]:
        """Of each device."""
        return [name for name, _ in families(self.problem.cluster)]

    @cached_property
    def computes(self) -> list[int]:
        """Devices that run modules: the GPUs; without any, NPUs, else the first CPU."""
        for name in ("gpu", "npu"):
            if name in self.family:
                return [d for d, one in enumerate(self.family) if one == name]
        return [self.family.index("cpu")] if "cpu" in self.family else []

    @cached_property
    def stores(self) -> list[int]:
        """Devices that only store: the CPU, then the disk, where GPUs or NPUs compute."""
        if not self.computes or self.family[self.computes[0]] == "cpu":
            return [d for d, one in enumerate(self.family) if one == "disk"][:1]
        return [self.family.index(name) for name in ("cpu", "disk") if name in self.family]

    @cached_property
    def seconds(self) -> NDArray[np.float64]:
        """Seconds of each unit on each device type, [n, n_types]."""
        return self.units.sums(self.problem.time)

    @cached_property
    def bytes(self) -> NDArray[np.float64]:
        """Bytes of each unit at the peak of a run on one device, weights among them, [n]."""
        return self.units.sums(charged(self.problem, "dynamic").astype(np.float64))

    @cached_property
    def may(self) -> NDArray[np.bool_]:
        """Mask of the devices that each unit may be on, [n, n_devices]."""
        types = self.problem.allowed_types.astype(np.float64)
        forbidden = self.units.sums(1.0 - types) > 0
        return ~forbidden[:, self.problem.cluster.device_types]

    def best(self) -> Candidate:
        """The best that fits; streamed only where nothing else does."""
        if not self.computes:
            raise InfeasibleError("a device map needs a GPU, an NPU or a CPU: the cluster has none")
        candidates = list(self._resident())
        why_not = ""
        if not any(one.fits for one in candidates):
            why_not = self._why_not_streamed()
            if not why_not:
                return self._told(self._streamed())
        best = self._with_most_free(candidates) if candidates else self._least_over()
        try:
            return self._told(accepted(self.problem, Outcome(best, 1.0)))
        except InfeasibleError as error:
            raise InfeasibleError(f"{error} {why_not}", error.shortfall) from error

    def _with_most_free(self, candidates: list[Candidate]) -> Candidate:
        """The best; if it leaves a GPU nearly full, of those as good as equal the one that leaves
        most free on the fullest.
        """
        objective = self.problem.objective
        best = objective.best(candidates)
        if best.overfull <= 1 - _FULL or not best.fits:
            return best
        most = objective.seconds(best.verdict) * (1 + _EQUAL)
        equal = [one for one in candidates if one.fits and objective.reaches(one.verdict, most)]
        return min(equal, key=lambda one: one.overfull)

    def _told(self, one: Candidate) -> Candidate:
        """The plan, with what the fullest of the devices that compute has left."""
        cluster = self.problem.cluster
        left = {d: cluster.memory[d] - int(one.verdict.peak[d]) for d in self.computes}
        least = min(left, key=lambda d: left[d] / max(cluster.memory[d], 1))
        size, whole = format_bytes(max(left[least], 0)), format_bytes(cluster.memory[least])
        return one.noted(
            f"the fullest device, {cluster.devices[least].name}, has {size} of {whole} left"
        )

    def _why_not_streamed(self) -> str:
        """Why no weights can be streamed, in a sentence; empty: some can."""
        if {"b", "o"} & set(self.problem.model.phases):
            return "Weights are streamed in inference only, and this is a training step."
        if not self.stores:
            return "There is no CPU or disk beside the GPUs to store weights on."
        if not self.streamable.any():
            return (
                "No weights can be streamed: of every module, code of another module reads some, "
                "so that no hook loads them."
            )
        return ""

    # -- all weights on the GPUs ---------------------------------------------------------------

    def _resident(self) -> Iterator[Candidate]:
        """Modules that fill GPUs, and in even shares of work and of memory; of those, what fits or
        is least over.
        """
        problem = self.problem
        kinds: dict[tuple[int, int], int] = {}
        for device in self.computes:
            kind = problem.cluster.device_types[device], problem.cluster.memory[device]
            kinds.setdefault(kind, device)
        bytes_ = charged(problem, "dynamic")
        for used in (*([one] for one in kinds.values()), self.computes):
            ways = (self._filled, self._evenly_busy, self._evenly_full)
            for way in ways if len(used) > 1 else ways[:1]:

                def attempt(
                    capacity: NDArray[np.uint64],
                    used: Sequence[int] = used,
                    way: _Way = way,
                ) -> Assignment:
                    return self._in_order(way(used, capacity))

                outcome = attempts(problem, attempt, bytes_, SHARES)
                if outcome.candidate is not None:
                    yield _as_launched(outcome.candidate)

    def _filled(self, used: Sequence[int], capacity: NDArray[np.uint64]) -> NDArray[np.int32]:
        """The device of each unit: in order, within the capacity of each device.

        Raises
        ------
        InfeasibleError
            A unit has no room.
        """
        return self._within(used, capacity, float("inf"))

    def _evenly_busy(self, used: Sequence[int], capacity: NDArray[np.uint64]) -> NDArray[np.int32]:
        """The same, with the busiest device as little busy as can be."""
        most = float(self.seconds[:, self._types[used]].sum(axis=0).max())
        return _halved(lambda share: self._within(used, capacity, share * most))

    def _evenly_full(self, used: Sequence[int], capacity: NDArray[np.uint64]) -> NDArray[np.int32]:
        """The same, with the fullest device as little full as can be."""

        def within(share: float) -> NDArray[np.int32]:
            return self._filled(used, (capacity * share).astype(np.uint64))

        return _halved(within)

    @property
    def _types(self) -> NDArray[np.int64]:
        return np.array(self.problem.cluster.device_types)

    def _within(
        self, used: Sequence[int], capacity: NDArray[np.uint64], seconds: float
    ) -> NDArray[np.int32]:
        devices = np.empty(self.units.n, dtype=np.int32)
        at, held, busy = 0, 0.0, 0.0
        # What is where the inputs are comes first, wherever it stands in the order.
        order = sorted(range(self.units.n), key=lambda unit: unit != self.units.with_inputs)
        for unit in order:
            while at < len(used):
                device = used[at]
                more = float(self.seconds[unit, self._types[device]])
                fits = held + self.bytes[unit] <= float(capacity[device])
                if fits and busy + more <= seconds and self.may[unit, device]:
                    break
                at, held, busy = at + 1, 0.0, 0.0
            if at == len(used) or (at and unit == self.units.with_inputs):
                raise InfeasibleError(f"{self._named(unit)} has no room on the GPUs")
            devices[unit], held, busy = device, held + self.bytes[unit], busy + more
        return devices

    def _named(self, unit: int) -> str:
        """A unit by the module that it is or begins with."""
        op = int(self.problem.reduced.op_of[np.flatnonzero(self.units.of_op == unit)[0]])
        module = self.problem.model.modules[op]
        return f"module {module!r}" if module else f"op {self.problem.model.names[op]!r}"

    def _in_order(self, device_of_unit: NDArray[np.int32]) -> Assignment:
        """Every op on its unit's device, in the model's order."""
        return Assignment(device_of_unit[self.units.of_op], _priority(self.problem))

    def _least_over(self) -> Candidate:
        """Everything on the GPU with most memory: what says how much is short."""
        device = max(self.computes, key=lambda d: (self.problem.cluster.memory[d], -d))
        where = np.full(self.units.n, device, dtype=np.int32)
        return _judged(self.problem, self._in_order(where))

    # -- weights that are streamed -----------------------------------------------------------

    @cached_property
    def parameters(self) -> list[list[int]]:
        """The parameters of each unit."""
        of_units: list[list[int]] = [[] for _ in range(self.units.n)]
        graph = self.problem.model
        for op in np.flatnonzero(graph.stands_for == PARAMETER).tolist():
            if self.size[op]:
                of_units[int(self.units.of_op[self.problem.reduced.map[op]])].append(op)
        return of_units

    @cached_property
    def size(self) -> NDArray[np.uint64]:
        """Bytes of each op's weights."""
        graph = self.problem.model
        return np.maximum(graph.param_bytes, graph.output_bytes)

    @cached_property
    def streamable(self) -> NDArray[np.bool_]:
        """Mask of the units of which a hook loads every parameter where it is read, [n].

        It does where a module that stays whole holds it, or one below that, and nothing outside of
        the module that holds it reads it.
        """
        graph = self.problem.model
        prefix = f"{self.root}." if self.root else ""
        whole = {f"{prefix}{path}" for path in self.units.whole}
        readers: dict[int, set[int]] = {}
        owner = self.problem.reduced.shows[graph.src].tolist()
        for a, b in zip(owner, graph.dst.tolist(), strict=True):
            if self.problem.reduced.runs[b]:
                readers.setdefault(a, set()).add(b)

        def is_loaded(op: int) -> bool:
            holder, read = graph.modules[op], readers.get(op, set())
            inside = all(holder in above(graph.modules[r]) for r in read)
            return bool(read) and inside and any(path in whole for path in above(holder))

        return np.array(
            [bool(own) and all(map(is_loaded, own)) for own in self.parameters], dtype=bool
        )

    def _streamed(self) -> Candidate:
        """The last GPUs full from the end, and the rest on the first, as much as it can kept.

        Raises
        ------
        InfeasibleError
            It does not fit even if everything on the first GPU is streamed.
        """
        refusal: InfeasibleError | None = None
        for share in SHARES if len(self.computes) > 1 else (1.0,):
            try:
                return self._on_first(self._tail(share))
            except InfeasibleError as error:
                refusal = refusal or error
        assert refusal is not None
        raise refusal

    def _tail(self, share: float) -> NDArray[np.int32]:
        """The device of each unit, with GPUs but the first filled from the end."""
        main, *others = self.computes
        devices = np.full(self.units.n, main, dtype=np.int32)
        todo = [unit for unit in range(self.units.n) if unit != self.units.with_inputs]
        for device in reversed(others):
            left = share * self.problem.cluster.memory[device]
            while todo and left >= self.bytes[todo[-1]] and self.may[todo[-1], device]:
                left -= self.bytes[todo[-1]]
                devices[todo.pop()] = device
        return devices

    def _on_first(self, where: NDArray[np.int32]) -> Candidate:
        main = self.computes[0]
        could = [u for u in range(self.units.n) if where[u] == main and self.streamable[u]]
        all_of_them = self._with_loads(where, could)
        if not all_of_them.fits:
            return accepted(all_of_them.problem, Outcome(all_of_them, 1.0))
        room = self.problem.cluster.memory[main] - int(all_of_them.verdict.peak[main])
        for _ in range(_FEWER):
            left, away = room, []
            for unit in could:
                kept = int(self.size[self.parameters[unit]].sum())
                if kept <= left:
                    left -= kept
                else:
                    away.append(unit)
            candidate = self._with_loads(where, away)
            over = int(candidate.verdict.peak[main]) - self.problem.cluster.memory[main]
            if candidate.fits or over <= 0:
                break
            room -= over
        best = candidate if candidate.fits else all_of_them
        return best

    def _with_loads(self, where: NDArray[np.int32], units: Sequence[int]) -> Candidate:
        """The plan that streams some units, judged. What is over the CPU's memory, where tensors
        take whole blocks, goes to the disk.
        """
        memory = [self.problem.cluster.memory[d] for d in self.stores]
        room = memory
        for _ in range(_FEWER):
            candidate = self._loaded(where, units, self._homes(units, room))
            peaks = candidate.verdict.peak[self.stores].tolist()
            over = [max(0, peak - size) for peak, size in zip(peaks, memory, strict=True)]
            if candidate.fits or not any(over[:-1]):
                break
            room = [left - more for left, more in zip(room, over, strict=True)]
        return candidate

    def _loaded(
        self, where: NDArray[np.int32], units: Sequence[int], homes: dict[int, int]
    ) -> Candidate:
        """The plan that streams units from where they are stored."""
        loaded = [op for unit in units for op in self.parameters[unit]]
        problem = self.problem.transformed(stream_weights(self.problem.model, loaded))
        devices = np.empty(problem.graph.n_ops, dtype=np.int32)
        before = self.units.of_op[self.problem.reduced.map]
        devices[:] = where[before[problem.reduced.op_of]]
        for unit in units:
            devices[problem.reduced.map[self.parameters[unit]]] = homes[unit]
        return _judged(
            problem, Assignment(devices, _priority(problem)), (self._note(units, homes),)
        )

    def _homes(self, units: Sequence[int], room: Sequence[int]) -> dict[int, int]:
        """Homes of streamed units: the CPU's memory until that is full, then the disk."""
        homes, left = {}, list(room)
        for unit in units:
            size = int(self.size[self.parameters[unit]].sum())
            at = next((i for i, room in enumerate(left) if size <= room), len(left) - 1)
            left[at] -= size
            homes[unit] = self.stores[at]
        return homes

    def _note(self, units: Sequence[int], homes: dict[int, int]) -> str:
        cluster = self.problem.cluster
        size = int(sum(int(self.size[self.parameters[unit]].sum()) for unit in units))
        on = " and ".join(dict.fromkeys(cluster.devices[homes[u]].name for u in units))
        main = cluster.devices[self.computes[0]].name
        return (
            f"{format_bytes(size)} of weights, of {counted(len(units), 'module')}, are stored on "
            f"{on} and copied to {main} whenever they run; accelerate copies from memory that is "
            "not pinned, so the link should have the bandwidth of such copies"
        )


def _halved(within: Callable[[float], NDArray[np.int32]]) -> NDArray[np.int32]:
    """The devices that a function finds within the smallest share, up to 1, that has room.

    Raises
    ------
    InfeasibleError
        It finds none within 1.
    """
    devices, low, high = within(1.0), 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        try:
            devices, high = within(middle), middle
        except InfeasibleError:
            low = middle
    return devices


def _priority(problem: Problem) -> NDArray[np.int32]:
    """Ops in the model's order: the order in which its code calls them."""
    src, dst, _, _ = problem.graph.flows()
    if bool((src < dst).all()):
        return np.arange(problem.graph.n_ops, dtype=np.int32)
    return ranks(fast.m_topo(problem.graph))


def _judged(problem: Problem, assignment: Assignment, notes: tuple[str, ...] = ()) -> Candidate:
    """A placement in the order in which the one thread launches."""
    launched = replace(assignment, policy="fixed")
    return Candidate(problem, launched, problem.verdict(launched), notes)


def _as_launched(one: Candidate) -> Candidate:
    """The same, in the order of launches, where that fits."""
    launched = _judged(one.problem, one.assignment, one.notes)
    return launched if launched.fits or not one.fits else one
