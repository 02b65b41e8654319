"""Programs of layouts, executed by PyTorch piece by piece, with collectives done by hand.

Each device has every tensor in its whole shape, with not-a-number wherever its spec does not give
it the values. A part of an op gets what its cut needs, found to be there, and other numbers
elsewhere. So a device that reads what it does not have, or a collective that is missing, shows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from loadmaster.dimensions.form import (
    ANY,
    FLAT,
    OWNER,
    PARTIAL,
    PICKED,
    REPLICATE,
    Factor,
    Form,
)
from loadmaster.fast import COLLECTIVES
from loadmaster.running.tape.calls import Call, Ref
from loadmaster.running.tape.tape import Tape
from loadmaster.transforms.conversions import UPDATED, Conversions
from loadmaster.transforms.layout import Layout
from loadmaster.transforms.shards import shard
from loadmaster.transforms.specs import part_weights, specs_of

#: Stands for "not there" among integers.
ABSENT = -(2**40)


def missing(like: torch.Tensor) -> torch.Tensor:
    """Nothing, in the shape of a tensor."""
    if like.dtype.is_floating_point:
        return torch.full_like(like, float("nan"))
    return torch.full_like(like, ABSENT) if like.dtype == torch.int64 else torch.zeros_like(like)


def is_there(value: torch.Tensor) -> torch.Tensor:
    if value.dtype.is_floating_point:
        return ~torch.isnan(value)
    is_index = value.dtype == torch.int64
    return value != ABSENT if is_index else torch.ones_like(value, dtype=torch.bool)


def zero_elsewhere(value: torch.Tensor) -> torch.Tensor:
    """A tensor with zeros for what is not there."""
    return torch.where(is_there(value), value, torch.zeros_like(value))


class Sharded:
    """A step of a tape, as the program of a layout does it."""

    def __init__(self, tape: Tape, layout: Layout) -> None:
        self.tape, self.layout, self.d = tape, layout, layout.dimensions
        self.graph, self.k = tape.graph, layout.mesh.size
        self.places = layout.ways.places
        self.conversions = Conversions.of(layout)
        self.program = shard(tape.graph, layout)
        running = self.program.graph
        self.edges = set(zip(running.src.tolist(), running.dst.tolist(), strict=True))
        self.copy = {
            (int(self.program.serves[i]), int(self.program.rank[i])): i
            for i in np.flatnonzero(~self.program.own).tolist()
        }
        self.random = np.random.default_rng(5)
        #: Per op and device, its outputs.
        self.values: dict[tuple[int, int], list[torch.Tensor | None]] = {}
        self.of_slot: dict[int, tuple[int, int]] = {}
        self.converted: dict[int, list[torch.Tensor]] = {}
        self.call_of = {call.op: call for call in tape.calls}
        #: What the host gives to the step.
        self.numbers = dict(zip(tape.numbers, tape.host(0), strict=True))

    # -- regions -----------------------------------------------------------------------------------

    def parts(self, size: int, axis: int) -> list[np.ndarray]:
        """Per place on an axis, which of so many indices it has: a part of each outer part."""
        blocks = [np.arange(size)]
        for of in range(axis + 1):
            mesh = self.layout.mesh.axes[of]
            shares = mesh.shares or (1.0,) * mesh.size
            cut = [
                np.split(block, np.cumsum(part_weights(len(block), shares))[:-1])
                for block in blocks
            ]
            places = [np.concatenate(of_place) for of_place in zip(*cut, strict=True)]
            blocks = [part for row in cut for part in row]
        return places

    def region(
        self,
        shape: torch.Size,
        factors: tuple[Factor, ...],
        specs: np.ndarray,
        device: int,
        owner: np.ndarray,
        picks: Sequence[int] = (),
    ) -> torch.Tensor:
        """Where a device has a tensor that lies so; ``picks``: per axis, the op by whose index rows
        are picked.
        """
        region = np.ones(tuple(shape), dtype=bool)
        for axis, spec in enumerate(specs.tolist()):
            place = int(self.places[axis][device])
            if spec == OWNER:
                region &= place == owner[axis]
            elif spec == PICKED:
                region &= self.picked(picks[axis], axis, device).numpy()
            elif spec == FLAT:
                flat = np.zeros(region.size, dtype=bool)
                flat[self.parts(region.size, axis)[place]] = True
                region &= flat.reshape(region.shape)
            elif spec >= 0:
                dim, size = factors[spec]
                minor = int(np.prod([n for of, n in factors[spec + 1 :] if of == dim], dtype=int))
                digit = np.arange(shape[dim]) // minor % size
                mine = np.isin(digit, self.parts(size, axis)[place])
                region &= mine.reshape([-1 if i == dim else 1 for i in range(len(shape))])
        return torch.from_numpy(region)

    def picked(self, op: int, axis: int, device: int) -> torch.Tensor:
        """Which elements an index picks of the entries that a device has on an axis."""
        call, form = self.call_of[op], self.d.forms[self.d.form_of[op]]
        slots = self.refs(call)
        shape = self.whole(slots[0]).shape
        specs = np.full(len(self.places), REPLICATE)
        specs[axis] = _needs(form, int(self.layout.labels[axis, op]), 0)
        entries = self.region(shape, form.inputs[0], specs, device, self.layout.owner[:, op])
        dim, index = call.args[1], self.whole(slots[1])
        return entries.index_select(dim, index)

    def made_region(self, op: int, which: int, device: int, shape: torch.Size) -> torch.Tensor:
        layout = self.layout
        tensor = int(layout.first_output[op]) + which
        factors = self.d.forms[self.d.form_of[op]].outputs[which]
        specs, owner = layout.made[:, tensor], layout.owner[:, op]
        return self.region(shape, factors, specs, device, owner, [op] * len(specs))

    # -- collectives -------------------------------------------------------------------------------

    def group(self, device: int, axis: int) -> list[int]:
        others = [i for i in range(len(self.places)) if i != axis]
        same = (self.places[others] == self.places[others, device][:, None]).all(axis=0)
        return np.flatnonzero(same).tolist()

    def convert(self, row: int) -> list[torch.Tensor]:
        """A conversion's tensor on each device, by its collectives."""
        if row in self.converted:
            return self.converted[row]
        c, layout = self.conversions, self.layout
        tensor = int(c.tensor[row])
        op = int(layout.maker[tensor])
        which = tensor - int(layout.first_output[op])
        want, owner = c.want[:, row], c.owner[:, row]
        owners = np.where(want == OWNER, owner, layout.owner[:, op])
        factors = self.d.forms[self.d.form_of[op]].outputs[which]
        like = next(self.values[op, e][which] for e in range(self.k) if (op, e) in self.values)
        assert like is not None
        now = [
            self.values.get((op, e), [missing(like)] * (which + 1))[which] for e in range(self.k)
        ]
        specs = layout.made[:, tensor].copy()
        steps = np.flatnonzero(c.steps.conversion == row).tolist()
        to_do = {int(c.steps.axis[s]): COLLECTIVES[c.steps.kind[s]] for s in steps}
        # What is free comes first: a part of what is whole; zeros on all devices but the first.
        picks = [op] * len(specs)
        for axis in set(range(len(specs))) - set(to_do):
            now = self.sliced(now, int(specs[axis]), int(want[axis]), axis)
            specs[axis], picks[axis] = want[axis], int(c.first[row])
        now, there = self.kept(now, factors, specs, owners, picks)
        for step in steps:
            axis = int(c.steps.axis[step])
            if specs[axis] == PICKED and to_do[axis] in ("all_reduce", "reduce_scatter"):
                now = list(map(zero_elsewhere, now))
            now = [self.joined(d, axis, now, there, to_do[axis]) for d in range(self.k)]
            specs[axis], picks[axis] = want[axis], int(c.first[row])
            now, there = self.kept(now, factors, specs, owners, picks)
        assert (specs == want).all()
        self.converted[row] = now
        return now

    def sliced(self, now: list, have: int, want: int, axis: int) -> list:
        if (have, want) == (PICKED, PARTIAL):
            return list(map(zero_elsewhere, now))
        if have != REPLICATE or want != PARTIAL:
            return now
        return [v if self.places[axis][e] == 0 else torch.zeros_like(v) for e, v in enumerate(now)]

    def kept(self, now: list, factors, specs, owners, picks) -> tuple[list, list]:
        """What specs give each device, and where; all of it must be there."""
        kept, regions = [], []
        for e, value in enumerate(now):
            region = self.region(value.shape, factors, specs, e, owners, picks)
            assert is_there(value)[region].all()
            kept.append(torch.where(region, value, missing(value)))
            regions.append(region)
        return kept, regions

    def joined(self, device: int, axis: int, values, regions, kind: str) -> torch.Tensor:
        """What a collective's members make of what they have, together."""
        group = [e for e in self.group(device, axis) if values[e] is not None]
        if kind in ("all_reduce", "reduce_scatter"):
            return torch.stack([values[e] for e in group]).sum(0).to(values[group[0]].dtype)
        result = missing(values[group[0]])
        for e in group:
            result = torch.where(regions[e], values[e], result)
        return result

    # -- ops ---------------------------------------------------------------------------------------

    def argument(self, op: int, at: int, device: int, slot: int) -> torch.Tensor:
        """A tensor that an op of a device reads: what a conversion gives, through views."""
        layout, row = self.layout, int(self.conversions.of_argument[at])
        root, which = int(self.d.root[at]), int(self.d.output[at])
        if row >= 0:
            value, specs = self.convert(row)[device], self.conversions.want[:, row]
            assert self.comes_by_collective(op, device)
        else:
            source = int(self.graph.src[self.d.edge[at]])
            edge = self.copy.get((source, device), -1), self.copy[op, device]
            if edge not in self.edges:
                assert (layout.wanted[:, at] == ANY).all(), self.graph.names[op]
                return torch.zeros_like(self.whole(slot))
            value, specs = self.values[root, device][which], layout.made[:, layout.tensor[at]]
        assert value is not None
        for axis, (have, need) in enumerate(zip(specs, layout.wanted[:, at], strict=True)):
            if have == REPLICATE and need == PARTIAL and self.places[axis][device]:
                value = torch.zeros_like(value)
            if have == PICKED and need == PARTIAL:
                value = zero_elsewhere(value)
        return self.through_views(slot, root, value, device)

    def comes_by_collective(self, op: int, device: int) -> bool:
        reader, program = self.copy[op, device], self.program
        before = [src for src, dst in self.edges_into(reader) if program.own[src]]
        return any(program.rank[src] == device for src in before)

    def edges_into(self, op: int) -> list[tuple[int, int]]:
        if not hasattr(self, "_into"):
            self._into: dict[int, list[tuple[int, int]]] = {}
            for src, dst in self.edges:
                self._into.setdefault(dst, []).append((src, dst))
        return self._into.get(op, [])

    def through_views(self, slot: int, root: int, value: torch.Tensor, device: int) -> torch.Tensor:
        op, _ = self.of_slot[slot]
        if op == root:
            return value
        call = self.call_of[op]
        assert self.graph.view[op], self.graph.names[op]
        refs = list(call.reads)
        inner = self.through_views(refs[0], root, value, device)
        assert len(refs) == 1
        made = run(call, {refs[0]: inner})
        return made[call.results.index(slot)]

    def refs(self, call: Call) -> list[int]:
        """The slots of a call's tensors, in their order, repeats too."""
        return [slot for slot in refs(call) if slot not in self.numbers]

    def step(self) -> None:
        """Executes all ops, in the order of the graph."""
        for placeholder in self.tape.placeholders:
            self.of_slot[placeholder.slot] = placeholder.op, 0
            for e in self.on(placeholder.op):
                value = placeholder.tensor.detach().clone()
                region = self.made_region(placeholder.op, 0, e, value.shape)
                self.values[placeholder.op, e] = [torch.where(region, value, missing(value))]
        for call in self.tape.calls:
            for i, slot in enumerate(call.results):
                self.of_slot[slot] = call.op, i
            if not self.graph.view[call.op]:
                self.execute(call)

    def on(self, op: int) -> list[int]:
        return [e for e in range(self.k) if (op, e) in self.copy]

    def execute(self, call: Call) -> None:
        op, layout = call.op, self.layout
        form = self.d.forms[self.d.form_of[op]]
        slots = list(dict.fromkeys(self.refs(call)))
        first = int(self.d.first[op])
        assert int(self.d.first[op + 1]) - first == len(self.refs(call)), self.graph.names[op]
        at = {slot: first + self.refs(call).index(slot) for slot in slots}
        made = layout.made[:, layout.first_output[op] : layout.first_output[op + 1]]
        fill = not (made == PARTIAL).any()
        args = {
            e: {slot: self.argument(op, at[slot], e, slot) for slot in slots} for e in self.on(op)
        }
        position = {slot: self.refs(call).index(slot) for slot in slots}
        for axis in range(len(self.places)):
            if layout.exchanged[axis, op]:
                args = self.exchange(op, args, position, axis)
        for e in self.on(op):
            ready = self.ready(op, e, args[e], position, fill)
            outputs = run(call, ready | self.numbers)
            kept = []
            for which, value in enumerate(outputs):
                if value is None or which >= len(form.outputs):
                    kept.append(None)
                    continue
                region = self.made_region(op, which, e, value.shape)
                kept.append(torch.where(region, value, missing(value)))
            self.values[op, e] = kept

    def ready(self, op, device, args, position, fill) -> dict:
        form, layout = self.d.forms[self.d.form_of[op]], self.layout
        ready = {}
        for slot, value in args.items():
            i = position[slot]
            specs = []
            for axis, label in enumerate(layout.labels[:, op].tolist()):
                spec = _needs(form, label, i)
                specs.append(REPLICATE if layout.exchanged[axis, op] and spec >= 0 else spec)
            specs = np.array(specs)
            if (specs == ANY).all():
                ready[slot] = torch.zeros_like(value)
                continue
            owner, picks = layout.owner[:, op], [op] * len(specs)
            region = self.region(value.shape, form.inputs[i], specs, device, owner, picks)
            assert is_there(value)[region].all(), (self.graph.names[op], i, specs)
            other = torch.zeros_like(value)
            if fill and value.dtype.is_floating_point:
                other = torch.from_numpy(self.random.uniform(0.1, 0.9, value.shape)).to(value.dtype)
            ready[slot] = torch.where(region, value, other)
        return ready

    def exchange(self, op: int, args: dict, position: dict, axis: int) -> dict:
        """What parts that exchange sums on an axis know together."""
        form, layout = self.d.forms[self.d.form_of[op]], self.layout
        known: dict[int, dict[int, torch.Tensor]] = {e: {} for e in args}
        for slot, i in position.items():
            specs = np.array([_needs(form, label, i) for label in layout.labels[:, op].tolist()])
            # What was exchanged on outer axes is whole on them by now.
            outer = np.arange(len(specs)) < axis
            specs[outer & (layout.exchanged[:, op] > 0) & (specs >= 0)] = REPLICATE
            values = [args[e][slot] if e in args else None for e in range(self.k)]
            regions = [
                self.region(args[e][slot].shape, form.inputs[i], specs, e, layout.owner[:, op])
                for e in args
            ]
            for e in args:
                known[e][slot] = self.joined(e, axis, values, regions, "all_gather")
        return known

    # -- what comes out ----------------------------------------------------------------------------

    def whole(self, slot: int) -> torch.Tensor:
        """A tensor, put together from what all devices have of it."""
        op, which = self.of_slot[slot]
        call = self.call_of.get(op)
        if call is not None and self.graph.view[op]:
            inner = self.whole(call.reads[0])
            return run(call, {call.reads[0]: inner})[call.results.index(slot)]
        tensor = int(self.layout.first_output[op]) + which
        now = [self.values.get((op, e), [None] * (which + 1))[which] for e in range(self.k)]
        there = [
            None if v is None else self.made_region(op, which, e, v.shape)
            for e, v in enumerate(now)
        ]
        for axis, spec in enumerate(self.layout.made[:, tensor].tolist()):
            kind = "all_reduce" if spec == PARTIAL else "all_gather"
            now = [
                None
                if not any(now[o] is not None for o in self.group(e, axis))
                else self.joined(e, axis, now, there, kind)
                for e in range(self.k)
            ]
            # What another axis cuts is not there yet.
            there = [
                None
                if not any(there[o] is not None for o in self.group(e, axis))
                else torch.stack(
                    [there[o] for o in self.group(e, axis) if there[o] is not None]
                ).any(0)
                for e in range(self.k)
            ]
        return next(v for v in now if v is not None)

    def updated(self, slot: int) -> list[torch.Tensor]:
        """A parameter after the step on each device, as it lies when the next one begins."""
        op, which = self.of_slot[slot]
        tensor = int(self.layout.first_output[op]) + which
        c = self.conversions
        row = np.flatnonzero((c.tensor == tensor) & (c.traffic == UPDATED)).tolist()
        if row:
            return self.convert(row[0])
        return [self.values[op, e][which] for e in self.on(op)]


def _needs(form: Form, label: int, i: int) -> int:
    return specs_of(form, label)[0][i]


def refs(call: Call) -> list[int]:
    """The slots among a call's arguments, in their order, repeats too."""
    found: list[int] = []

    def walk(value: Any) -> None:
        if isinstance(value, Ref):
            found.append(value.slot)
        elif isinstance(value, (list, tuple)):
            for each in value:
                walk(each)
        elif isinstance(value, dict):
            for each in value.values():
                walk(each)

    walk(call.args)
    walk(dict(call.kwargs))
    return found


def run(call: Call, values: dict[int, torch.Tensor]) -> list[torch.Tensor | None]:
    """The results of a call. Nothing that is given is changed; what is random depends on the op."""

    def filled(value: Any) -> Any:
        if isinstance(value, Ref):
            given = values[value.slot]
            return given.clone() if isinstance(given, torch.Tensor) else given
        if isinstance(value, (list, tuple)):
            return type(value)(map(filled, value))
        if isinstance(value, dict):
            return {key: filled(each) for key, each in value.items()}
        return value

    torch.manual_seed(call.op)
    with torch.no_grad():
        made = call.function(*filled(call.args), **filled(dict(call.kwargs)))
    # What was never written may be anything, not-a-number too.
    made = torch.zeros_like(made) if "empty" in str(call.function) else made
    return list(made) if isinstance(made, (tuple, list)) else [made]


def alone(tape: Tape) -> Callable[[int], torch.Tensor]:
    """All tensors of a step that is not sharded, by slot, each op executed in the same way."""
    values: dict[int, Any] = dict(zip(tape.numbers, tape.host(0), strict=True))
    values |= {one.slot: one.tensor.detach().clone() for one in tape.placeholders}
    for call in tape.calls:
        made = run(call, {slot: values[slot] for slot in call.reads})
        values |= dict(zip(call.results, made, strict=True))
    return values.__getitem__
