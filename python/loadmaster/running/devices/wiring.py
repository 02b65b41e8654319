"""A tape on the devices of a plan: what each task calls, what it reads, what each transfer carries.

A device has a list of values: one per slot of the tape, and more for what comes from elsewhere.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch

from loadmaster.base.errors import InputError
from loadmaster.model.graph import OpGraph
from loadmaster.plans.plan import Plan
from loadmaster.running.devices.compiled import Compiled, compile_plan
from loadmaster.running.devices.packing import Packed
from loadmaster.running.tape.calls import Call
from loadmaster.running.tape.replay import layouts
from loadmaster.running.tape.tape import Tape


@dataclass(frozen=True, slots=True)
class Copied:
    """A read of an arrival: the value ``index`` is ``slot``, which is all of what is brought of
    ``base``, or a view of that.
    """

    index: int
    arrival: int
    slot: int
    base: int


@dataclass(slots=True)
class Task:
    """A call on a device: where its values are.

    ``source`` gives the index of each slot that it reads, ``copies`` those of them that a transfer
    brings, ``uses`` all that is read.
    """

    call: Call
    source: dict[int, int] = field(default_factory=dict)
    copies: tuple[Copied, ...] = ()

    @property
    def uses(self) -> tuple[int, ...]:
        """Indices of the values that it reads."""
        return tuple(self.source.values())


@dataclass(frozen=True, slots=True)
class Wired:
    """The calls of one device.

    Attributes
    ----------
    device : int
    tasks : Mapping of int to Task
        By number. What calls nothing, such as an op that takes one of several results, has none.
    sends : Mapping of int to tuple of int
        Arrivals by the task after which they are sent; -1: as the step begins.
    uses : Mapping of int to int
        How many tasks and transfers of the device read each value that is freed after them. What
        nothing reads is freed after the task that gives it.
    n_values : int
    homes : tuple of int
        Placeholders of the device, by their place in the tape.
    """

    device: int
    tasks: Mapping[int, Task]
    sends: Mapping[int, tuple[int, ...]]
    uses: Mapping[int, int]
    n_values: int
    homes: tuple[int, ...]


class Wiring:
    """A plan and a tape, joined.

    Raises
    ------
    InputError
        The plan is of another graph; an op changes what another device holds.
    """

    def __init__(
        self, plan: Plan, tape: Tape, inputs: Mapping[int, torch.Tensor] | None = None
    ) -> None:
        check_graph(plan.program.graph, tape.graph)
        self.plan, self.tape = plan, tape
        #: Inputs that are not those of the recording, by slot.
        self.inputs = dict(inputs or {})
        #: Layouts of tensors in memory with these inputs.
        self.slots = layouts(tape, self.inputs)
        self.compiled: Compiled = compile_plan(plan, tape.changes)
        self.home = plan.running_devices.copy()
        # What nobody reads may be anywhere: it is where it is changed.
        is_read = np.bincount(tape.graph.src, minlength=tape.graph.n_ops) > 0
        for call in tape.calls:
            for slot in call.writes:
                op = tape.slots[slot].op
                if tape.graph.placeholder[op] and not is_read[op]:
                    self.home[op] = self.home[call.op]
        self._edges = _ArrivalEdges(tape, self.compiled)
        self._n_values = tape.n_values
        self._copies: dict[tuple[int, int, int], Copied] = {}
        #: By number: ops, and shares of members that bring something of their own.
        self._tasks: dict[int, Task] = {}
        first = self.compiled.n_ops
        share_of = {int(op): first + i for i, op in enumerate(self.compiled.members)}
        #: Slots that each arrival carries, as they lie at its sender.
        self.carried: dict[int, list[int]] = defaultdict(list)
        for call in tape.calls:
            self._tasks[share_of[call.op] if call.brings else call.op] = self._task(call)
        #: Packing of each value of each arrival.
        self.packed = {
            (arrival, slot): Packed(self.slots[slot])
            for arrival, slots in self.carried.items()
            for slot in slots
        }

    def device(self, device: int) -> Wired:
        """The calls of one device."""
        compiled, tape = self.compiled, self.tape
        first, (after, later) = compiled.sent_after(device)
        sends: dict[int, list[int]] = defaultdict(list)
        sends[-1] = first.tolist()
        for task, arrival in zip(after.tolist(), later.tolist(), strict=True):
            sends[task].append(arrival)
        tasks = {n: task for n, task in self._tasks.items() if compiled.device[n] == device}
        uses = Counter(index for task in tasks.values() for index in task.uses)
        uses.update(s for sent in sends.values() for a in sent for s in self.carried.get(a, ()))
        for task in tasks.values():
            uses.update({slot: 0 for slot in task.call.results if slot >= 0})
        kept = {*tape.slots_of(), *tape.numbers, *(p.slot for p in tape.placeholders)}
        return Wired(
            device,
            tasks,
            {task: tuple(arrivals) for task, arrivals in sends.items()},
            {index: n for index, n in uses.items() if index not in kept},
            self._n_values,
            tuple(i for i, p in enumerate(tape.placeholders) if self.home[p.op] == device),
        )

    def _task(self, call: Call) -> Task:
        """Reads of a call on its own device."""
        slots, here = self.slots, self.home[call.op]
        for slot in call.writes:
            if self.home[slots[slot].op] != here:
                raise InputError(
                    f"op {self._name(call.op)} changes what {self._name(slots[slot].op)} gives, "
                    "on another device: keep the two on one (constraints, colocate)"
                )
        task, copies = Task(call), []
        for slot in call.reads:
            is_here = slot not in slots or self.home[slots[slot].op] == here
            if is_here and (not call.shares or slot in call.writes or slot not in slots):
                task.source[slot] = slot
                continue
            copies.append(self._copied(call, slot))
            task.source[slot] = copies[-1].index
        task.copies = tuple(copies)
        return task

    def _copied(self, call: Call, slot: int) -> Copied:
        """Reads of a call from elsewhere: one value for all that read the same of it.

        Of a collective, a member reads what all of them bring, its own too.
        """
        arrival, base = self._edges.brings(call, slot)
        if base not in self.carried[arrival]:
            self.carried[arrival].append(base)
        here = int(self.home[call.op])
        if (arrival, slot, here) not in self._copies:
            self._copies[arrival, slot, here] = Copied(self._n_values, arrival, slot, base)
            self._n_values += 1
        return self._copies[arrival, slot, here]

    def _name(self, op: int) -> str:
        return f"{self.tape.graph.names[op]!r}"


class _ArrivalEdges:
    """The arrival that brings each input of a call."""

    def __init__(self, tape: Tape, compiled: Compiled) -> None:
        self._slots, self._compiled = tape.slots, compiled
        graph = compiled.graph
        self._graph = graph
        self._tensor = graph.src if graph.tensor is None else graph.tensor
        self._into: dict[int, list[int]] = defaultdict(list)
        for edge in np.flatnonzero(self._tensor >= 0).tolist():
            self._into[int(graph.dst[edge])].append(edge)
        self._given: dict[int, int] = {}
        #: The storages of all that each op gives.
        self._storages: dict[int, set[int]] = defaultdict(set)
        for slot, each in tape.slots.items():
            self._given.setdefault(each.op, slot)
            self._storages[each.op].add(each.storage)
        # A view without a slot of its own, as shards have them, gives what it shows.
        for op in np.flatnonzero(graph.view & (graph.alias_of >= 0)).tolist():
            if op not in self._given and (shown := self._shown_by(op)) in self._given:
                self._given[op] = self._given[shown]
                self._storages[op] = self._storages[shown]
        # What a member reads of another's comes with that one's share, by the op that gave it.
        self._share: dict[tuple[int, int], int] = {}
        #: By member, the arrival of its own share.
        self._own: dict[int, int] = {}
        of = compiled.timeline.collectives.of_op(graph.n_ops)
        for share, member in enumerate(compiled.members.tolist()):
            self._own[member] = compiled.n_transfers + share
            for other in np.flatnonzero(of == of[member]).tolist():
                for edge in self._into[member]:
                    key = int(graph.src[edge]), other
                    self._share[key] = compiled.n_transfers + share
        # Of an op with several results, the one that takes a result out has the slot.
        self._shown: dict[int, int] = {}
        for edge in np.flatnonzero(self._tensor >= 0).tolist():
            if int(graph.src[edge]) in self._given:
                self._shown.setdefault(int(self._tensor[edge]), self._given[int(graph.src[edge])])

    def _shown_by(self, op: int) -> int:
        """The op that gives what a view shows: of views of views, the first that has a slot."""
        owner = self._graph.alias_of
        while op >= 0 and op not in self._given:
            read = [int(self._graph.src[edge]) for edge in self._into[op]]
            op = next((s for s in read if owner[op] in (s, owner[s])), -1)
        return op

    def brings(self, call: Call, slot: int) -> tuple[int, int]:
        """The arrival that brings what a call reads, and the slot of all that it brings."""
        if call.shares:
            op = self._slots[slot].op
            return self._own.get(op, self._share.get((op, call.op), -1)), slot
        pieces = self._compiled.pieces
        edge = self._edge(call.op, slot)
        piece = int(pieces.read[edge])
        tensor = int(pieces.tensor[piece])
        whole = int(self._tensor[edge]) == tensor
        base = slot if whole else self._shown[tensor]
        return int(pieces.brought[piece]), base

    def _edge(self, op: int, slot: int) -> int:
        """The edge for what an op reads: from the op that gives it, or from another that shows the
        same memory, where autograd handed on another tensor of it.
        """
        wanted = self._slots[slot]
        shows = [
            edge
            for edge in self._into[op]
            if wanted.storage in self._storages[int(self._graph.src[edge])]
        ]
        own = [edge for edge in shows if self._graph.src[edge] == wanted.op]
        if not shows:
            raise InputError(
                f"op {self._graph.names[op]!r} reads what a collective gives on another device "
                "than the member of it: replicas, and devices of a mesh, run whole on one each"
            )
        return (own or shows)[0]


def check_graph(planned: OpGraph, taped: OpGraph) -> None:
    """Refuses a plan that is not of the tape's graph.

    Raises
    ------
    InputError
        The two differ in ops or edges.
    """
    if planned.names != taped.names:
        pairs = zip(planned.names, taped.names, strict=False)
        other = next((f"{a!r}, the tape {b!r}" for a, b in pairs if a != b), "")
        counts = f"{planned.n_ops} ops, the tape {taped.n_ops}"
        raise InputError(
            f"the plan is of another graph: it has {other or counts}. Place tape.graph"
        )
    if not (_same(planned, taped, "src") and _same(planned, taped, "dst")):
        raise InputError(
            "the plan is of a graph with other edges than the tape's: place tape.graph"
        )


def _same(a: OpGraph, b: OpGraph, column: str) -> bool:
    return np.array_equal(getattr(a, column), getattr(b, column))
