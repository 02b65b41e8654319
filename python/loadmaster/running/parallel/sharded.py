"""A tape of shards: each device of a mesh calls its part of every op, on the pieces that it has.

Where a tensor lies, and what turns one spec into another, is what the layout says that the program
was made of. What a collective's member brings is the least that all others need of it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import loadmaster.fast as fast
from loadmaster.base.errors import InputError
from loadmaster.dimensions.form import (
    ANY,
    OWNER,
    PARTIAL,
    PICKED,
    REPLICATE,
    Cut,
    Form,
)
from loadmaster.model.program import Program
from loadmaster.running.devices.turns import in_turn
from loadmaster.running.parallel import members
from loadmaster.running.parallel.halos import Halo
from loadmaster.running.parallel.part_call import PartCall
from loadmaster.running.parallel.parts import Argument, counted, works_on_slices
from loadmaster.running.parallel.pieces import (
    ElsewhereError,
    Move,
    Piece,
    Shown,
    Taking,
    common,
    union,
)
from loadmaster.running.parallel.spec_pieces import Specs
from loadmaster.running.parallel.statistics import Exchange, exchange_of
from loadmaster.running.parallel.statistics import Part as Share
from loadmaster.running.tape.calls import Call, Ref, runner
from loadmaster.running.tape.slots import Joint, Placeholder, Slot
from loadmaster.running.tape.tape import Tape
from loadmaster.transforms.conversions import UPDATED
from loadmaster.transforms.layout import Layout
from loadmaster.transforms.lowering import Lowering
from loadmaster.transforms.shards import Expansion
from loadmaster.transforms.specs import specs_of

Ints = NDArray[np.int64]

#: Kinds of collectives whose members put together what they bring. Those of others add it up.
_JOINS = ("all_gather", "all_to_all")


def sharded(
    program: Program, tape: Tape, layout: Layout, given: Mapping[int, torch.Tensor] | None = None
) -> Tape:
    """The tape of a program of shards. Its outputs have the names of the tape's, and are whole.

    Parameters
    ----------
    program
        Of the layout.
    tape
        Of the layout's graph.
    layout
    given
        Inputs and targets that are not those of the recording, by slot.

    Raises
    ------
    InputError
        The program has been changed since it was made of the layout; a part that needs rows that
        no neighbour sends; rows that a router picks for the experts of a device; parts that
        exchange sums of an op that is not known to do so.
    """
    picked = np.flatnonzero((layout.made == PICKED).any(axis=0))
    if len(picked):
        op = tape.graph.names[layout.maker[picked[0]]]
        raise InputError(
            f"op {op!r} picks rows for the experts of each device, which are as many as a router "
            "says: no run does so yet. Label it whole, or cut it otherwise"
        )
    try:
        return _Sharded(program, tape, layout, given or {}, of_parts=True).tape()
    except ElsewhereError:
        return _Sharded(program, tape, layout, given or {}, of_parts=False).tape()


@dataclass(frozen=True, slots=True)
class _Kept:
    """What a device has of a tensor: the slot, and the piece that it is."""

    slot: int
    piece: Piece


class _Sharded:
    """The way from a tape to the calls of all devices."""

    def __init__(
        self,
        program: Program,
        tape: Tape,
        layout: Layout,
        given: Mapping[int, torch.Tensor],
        of_parts: bool,
    ) -> None:
        self._source, self._layout = tape, layout
        self._graph, self._d = program.graph, layout.dimensions
        self._k, self._places = layout.mesh.size, layout.ways.places
        self._lowering = Lowering(layout)
        self._expansion = expansion = Expansion.of(self._lowering)
        made = expansion.program
        if made.graph.names != program.graph.names:
            pairs = zip(made.graph.names, program.graph.names, strict=False)
            other = next((b for a, b in pairs if a != b), program.graph.names[-1])
            raise InputError(
                f"op {other!r} is not of the program that the recipe makes: plan again with this "
                "version, or without splitting ops of shards"
            )
        self._conversions = self._lowering.conversions
        self._specs = Specs(layout, of_parts)
        self._copy = {
            (op, device): at
            for device, row in enumerate(expansion.copies.tolist())
            for op, at in enumerate(row)
            if at >= 0
        }
        self._halos = _halos_of(expansion)
        self._tensors = {p.op: given.get(p.slot, p.tensor) for p in tape.placeholders}
        self._slot_of: dict[tuple[int, int], int] = {}  # of the tape, by op and output
        for placed in tape.placeholders:
            self._slot_of[placed.op, 0] = placed.slot
        for call in tape.calls:
            for i, slot in enumerate(call.results):
                self._slot_of[call.op, i] = slot
        self._slots: dict[int, Slot] = {}
        self._numbers = {slot: i for i, slot in enumerate(tape.numbers)}
        self._n, self._n_storages = len(tape.numbers), 0
        self._storage: dict[tuple[int, int], int] = {}
        #: By op, output and device.
        self._made: dict[tuple[int, int, int], _Kept] = {}
        #: By conversion and device, what the conversion gives.
        self._converted: dict[tuple[int, int], _Kept] = {}
        #: By parameter or buffer that no collective updates: the op that writes it last.
        graph, c = tape.graph, self._conversions
        writers = np.flatnonzero((graph.alias_of >= 0) & ~graph.view).tolist()
        self._last_write = {int(graph.alias_of[op]): op for op in writers}
        for tensor in c.tensor[c.traffic == UPDATED].tolist():
            self._last_write.pop(int(graph.alias_of[layout.maker[tensor]]), None)
        #: By op, output and device: what lies in the memory of a placeholder.
        self._at_home: set[tuple[int, int, int]] = set()
        self._calls: list[Call] = []
        self._placeholders: list[Placeholder] = []
        #: By slot of the tape, the view that gives it; and the op that makes it, with its output.
        self._views: dict[int, tuple[Call, int]] = {}
        self._maker: dict[int, tuple[int, int]] = {p.slot: (p.op, 0) for p in tape.placeholders}
        for call in tape.calls:
            for i, slot in enumerate(call.results):
                if tape.graph.view[call.op]:
                    self._views[slot] = call, i
                else:
                    self._maker[slot] = call.op, i

    # -- slots and pieces

    def _new(self, op: int, like: Slot, storage: int | None = None) -> int:
        """A slot for what an op gives."""
        if storage is None:
            storage, self._n_storages = self._n_storages, self._n_storages + 1
        self._slots[self._n] = replace(like, op=op, storage=storage, offset=0)
        self._n += 1
        return self._n - 1

    def _storage_at(self, slot: int, device: int) -> int:
        """The storage that a device has for one of the tape's."""
        key = self._source.slots[slot].storage, device
        if key not in self._storage:
            self._storage[key], self._n_storages = self._n_storages, self._n_storages + 1
        return self._storage[key]

    def _form(self, op: int) -> Form:
        found: Form = self._d.forms[self._d.form_of[op]]
        return found

    def _piece_of(self, op: int, which: int, device: int) -> Piece:
        """What a device makes of an output."""
        layout = self._layout
        tensor = int(layout.first_output[op]) + which
        sizes = self._source.slots[self._slot_of[op, which]].sizes
        factors = self._form(op).outputs[which]
        return self._specs.piece(
            sizes, factors, layout.made[:, tensor].tolist(), layout.owner[:, op].tolist(), device
        )

    def _on(self, op: int) -> list[int]:
        """Devices that have a copy of an op."""
        return [device for device in range(self._k) if (op, device) in self._copy]

    # -- the tape

    def tape(self) -> Tape:
        """The whole."""
        for placed in self._source.placeholders:
            self._place(placed)
        for call in self._source.calls:
            if not self._source.graph.view[call.op]:
                self._reserve(call)
        self._convert()
        exchanged: dict[int, list[tuple[int, Ints]]] = defaultdict(list)
        sums = self._lowering.sums
        rows = zip(sums.axis.tolist(), sums.op.tolist(), self._expansion.sums, strict=True)
        for axis, op, member in rows:
            exchanged[op].append((axis, member))
        for call in self._source.calls:
            if not self._source.graph.view[call.op]:
                self._calls += self._parts(call, exchanged.get(call.op, []))
        source = self._source
        return Tape(
            graph=self._graph,
            calls=in_turn(self._graph, self._calls, self._slots),
            slots=self._slots,
            placeholders=tuple(self._placeholders),
            outputs={},
            joints={name: self._joint(name, slot) for name, slot in source.outputs.items()},
            numbers=tuple(range(len(source.numbers))),
            host=source.host,
        )

    def _place(self, placed: Placeholder) -> None:
        """The pieces of a placeholder. Where steps change it, each device has its own."""
        source, tensor = self._source.slots[placed.slot], self._tensors[placed.op]
        is_written = source.storage in self._source.written
        for device in self._on(placed.op):
            if self._d.form_of[placed.op] < 0:
                piece = Piece.whole(tuple(tensor.shape))
            else:
                piece = self._piece_of(placed.op, 0, device)
            cut = Move.of(Piece.whole(tuple(tensor.shape)), piece).taken(tensor)
            cut = cut.reshape(piece.shape)
            cut = cut.clone(memory_format=torch.contiguous_format) if is_written else cut
            op = self._copy[placed.op, device]
            slot = self._new(op, source, self._storage_at(placed.slot, device))
            self._made[placed.op, 0, device] = _Kept(slot, piece)
            self._at_home.add((placed.op, 0, device))
            self._placeholders.append(replace(placed, slot=slot, op=op, tensor=cut.contiguous()))

    def _reserve(self, call: Call) -> None:
        """Slots for what the parts of a call give."""
        for device in self._on(call.op):
            for which, slot in enumerate(call.results):
                if slot < 0:
                    continue
                source = self._source.slots[slot]
                op = self._copy.get((source.op, device), self._copy[call.op, device])
                if self._d.form_of[call.op] >= 0 and which < len(self._form(call.op).outputs):
                    piece = self._piece_of(call.op, which, device)
                else:
                    piece = Piece.whole(source.sizes)
                mine = self._new(op, source, self._storage_at(slot, device))
                self._made[call.op, which, device] = _Kept(mine, piece)

    # -- collectives

    def _convert(self) -> None:
        """The calls of the members of conversions."""
        steps = self._conversions.steps
        by_row: dict[int, list[int]] = defaultdict(list)
        for step, row in enumerate(steps.conversion.tolist()):
            by_row[row].append(step)
        brought: dict[int, list[tuple[int, Any, int]]] = defaultdict(list)
        given: dict[int, list[tuple[Any, list[int], int]]] = defaultdict(list)
        written: dict[int, list[int]] = defaultdict(list)
        for row in range(len(self._conversions)):
            self._convert_row(row, by_row[row], brought, given, written)
        for member, all_of_it in brought.items():
            refs = [Ref(slot) if slot >= 0 else None for slot, _, _ in all_of_it]
            function = partial(members.brings, [what for _, what, _ in all_of_it])
            made = tuple(slot for *_, slot in all_of_it)
            self._calls.append(Call(member, function, (refs,), {}, made, True, brings=True))
        for member, gifts in given.items():
            lists = [[Ref(slot) for slot in slots] for _, slots, _ in gifts]
            own = [Ref(slot) for slot in written[member]]
            function = partial(members.gives, [what for what, _, _ in gifts])
            made = tuple(slot for *_, slot in gifts)
            self._calls.append(
                Call(member, function, (lists, own), {}, made, True,
                     writes=tuple(written[member]), shares=True)
            )  # fmt: skip

    def _group(self, axis: int) -> list[list[int]]:
        """Per device, those that differ from it on an axis alone, itself too."""
        others = [i for i in range(len(self._places)) if i != axis]
        same = [
            (self._places[others] == self._places[others, device][:, None]).all(axis=0)
            for device in range(self._k)
        ]
        return [np.flatnonzero(each).tolist() for each in same]

    def _convert_row(
        self,
        row: int,
        steps: Sequence[int],
        brought: dict[int, list[tuple[int, Any, int]]],
        given: dict[int, list[tuple[Any, list[int], int]]],
        written: dict[int, list[int]],
    ) -> None:
        """What the steps of a conversion bring and give."""
        c, layout, devices = self._conversions, self._layout, range(self._k)
        tensor = int(c.tensor[row])
        op = int(layout.maker[tensor])
        which = tensor - int(layout.first_output[op])
        want, have = c.want[:, row], layout.made[:, tensor]
        owner = np.where(want == OWNER, c.owner[:, row], layout.owner[:, op]).tolist()
        source = self._source.slots[self._slot_of[op, which]]
        factors = self._form(op).outputs[which]
        final = [
            self._specs.piece(source.sizes, factors, want.tolist(), owner, device)
            for device in devices
        ]
        start = [self._piece_of(op, which, device) for device in devices]
        axes = [int(c.steps.axis[step]) for step in steps]
        kinds = [fast.COLLECTIVES[int(c.steps.kind[step])] for step in steps]
        groups = [self._group(axis) for axis in axes]
        stages = members.least_pieces(start, final, groups, [kind in _JOINS for kind in kinds])
        now: list[_Kept | None] = [self._made.get((op, which, device)) for device in devices]
        is_zero = (have == REPLICATE) & (want == PARTIAL)
        state = int(self._source.graph.alias_of[op]) if c.traffic[row] == UPDATED else -1
        for i, step in enumerate(steps):
            member = self._expansion.members[:, step].tolist()
            zero = [not i and any(is_zero & (self._places[:, d] > 0)) for d in devices]
            now_or_none = [None if zero[d] else now[d] for d in devices]
            brings = zip(member, stages[i], now_or_none, strict=True)
            slots = [self._bring(*each, source, brought) for each in brings]
            after, is_last = stages[i + 1], i + 1 == len(steps)
            for device in devices:
                group = groups[i][device]
                moves = [Move.of(stages[i][other], after[device]) for other in group]
                from_ = [slots[other] for other in group]
                if is_last and state >= 0:
                    home = self._made.get((state, 0, device))
                    if home is not None:
                        what = partial(
                            members.put, moves, len(written[member[device]]), kinds[i] in _JOINS
                        )
                        written[member[device]].append(home.slot)
                        given[member[device]].append((what, from_, -1))
                    continue
                what = partial(
                    members.joined if kinds[i] in _JOINS else members.summed,
                    moves,
                    after[device].shape,
                )
                slot = self._new(member[device], source)
                given[member[device]].append((what, from_, slot))
                now[device] = _Kept(slot, after[device])
        if state < 0:
            for device in devices:
                if (kept := now[device]) is not None:
                    self._converted[row, device] = kept

    def _bring(
        self,
        member: int,
        piece: Piece,
        kept: _Kept | None,
        source: Slot,
        brought: dict[int, list[tuple[int, Any, int]]],
    ) -> int:
        """The slot in which a member brings a piece: of what its device has, or zeros."""
        slot = self._new(member, source)
        if kept is None or not piece.numel:
            brought[member].append((-1, partial(members.zeros, piece.shape, source.dtype), slot))
        else:
            what = partial(members.moved, Move.of(kept.piece, piece), piece.shape)
            brought[member].append((kept.slot, what, slot))
        return slot

    # -- parts of ops

    def _parts(self, call: Call, exchanges: Sequence[tuple[int, Ints]]) -> Iterator[Call]:
        """The calls of all devices in the place of one."""
        part_calls = {
            device: self._part_call(call, device, bool(exchanges)) for device in self._on(call.op)
        }
        if not exchanges:
            for device, part_call in part_calls.items():
                yield self._part(call, device, part_call)
            return
        exchange = self._exchange(call)
        like = self._source.slots[call.results[0]]
        fraction, known = dict.fromkeys(part_calls, 1.0), dict[int, list[int]]()
        for axis, added in exchanges:
            member = added.tolist()
            shares = {
                device: Share(self._fraction(call, device, axis), box=part_call.box)
                for device, part_call in part_calls.items()
            }
            slots = {d: [self._new(member[d], like) for _ in range(exchange.n)] for d in part_calls}
            for device, part_call in part_calls.items():
                yield self._brought(call, member[device], part_call, shares[device],
                                    slots[device], known.get(device, ()))  # fmt: skip
            groups = self._group(axis)
            known = {d: [self._new(member[d], like) for _ in range(exchange.n)] for d in part_calls}
            for device in part_calls:
                total = partial(exchange.total, [shares[other] for other in groups[device]])
                refs = [[Ref(slot) for slot in slots[other]] for other in groups[device]]
                yield Call(
                    member[device], total, (refs,), {}, tuple(known[device]), True, shares=True
                )
                fraction[device] *= shares[device].fraction
        for device, part_call in part_calls.items():
            ends = partial(exchange.ends, Share(fraction[device], box=part_call.box))
            yield self._part(replace(call, function=ends), device, part_call, known[device])

    def _exchange(self, call: Call) -> Exchange:
        found = exchange_of(call.function)
        if found is None:
            graph = self._source.graph
            raise InputError(
                f"op {graph.names[call.op]!r} ({graph.kinds[call.op]}) is cut so that its parts "
                "exchange sums, which is not known of such an op: label it whole, or cut it "
                "otherwise"
            )
        return found

    def _brought(
        self,
        call: Call,
        member: int,
        part_call: PartCall,
        share: Share,
        slots: Sequence[int],
        known: Sequence[int],
    ) -> Call:
        """What a part brings to others on an axis: of an op with several, what is known so far."""
        if known:
            refs = [Ref(slot) for slot in known]
            return Call(member, members.same, (refs,), {}, tuple(slots), True, brings=True)
        function = partial(self._exchange(call).brings, share)
        brings = replace(call, op=member, function=function, several=True)
        made = part_call.called(brings, slots, ())
        return replace(made, brings=True, writes=())

    def _fraction(self, call: Call, device: int, axis: int) -> float:
        """Part of what an op sums over on an axis that a device has."""
        form, label = self._form(call.op), int(self._layout.labels[axis, call.op])
        _, slots = counted(call)
        tensors = [slot for slot in slots if slot not in self._numbers]
        for i, spec in enumerate(specs_of(form, label)[0]):
            if spec >= 0:
                sizes = self._source.slots[tensors[i]].sizes
                specs = [spec if a == axis else REPLICATE for a in range(len(self._places))]
                piece = self._specs.piece(sizes, form.inputs[i], specs, [0] * len(specs), device)
                return piece.numel / Piece.whole(sizes).numel
        return 1.0

    def _part(
        self, call: Call, device: int, part_call: PartCall, known: Sequence[int] = ()
    ) -> Call:
        """The call of a device in the place of one; ``known`` is handed to it before all else."""
        op = self._copy[call.op, device]
        results = [
            self._made[call.op, which, device].slot if slot >= 0 else -1
            for which, slot in enumerate(call.results)
        ]
        parts = tuple(
            self._copy.get((part, device), -1) if part >= 0 else -1 for part in call.parts
        )
        made = part_call.called(replace(call, op=op), results, known)
        return replace(made, parts=parts, random=call.random, seeded=call.op)

    def _part_call(self, call: Call, device: int, exchanges: bool) -> PartCall:
        """How a device calls its part of an op."""
        op, layout, source = call.op, self._layout, self._source
        labels = layout.labels[:, op].tolist()
        numbered, slots = counted(call)
        if self._d.form_of[op] < 0:
            return self._plain(numbered, slots, device)
        form = self._form(op)
        kinds = source.graph.kinds[op]
        cuts = [form.cuts[label - 1] for label in labels if label > 0]
        made = [
            self._piece_of(op, which, device) for which in range(len(form.outputs))
            if which < len(call.results) and call.results[which] >= 0
        ]  # fmt: skip
        words = [cut.name for cut in cuts if any(spec >= 0 for spec in (*cut.inputs, *cut.outputs))]
        slices = exchanges or works_on_slices(call, kinds, words, made)
        halos = {axis: self._halo(call, device, form.cuts[label - 1])
                 for axis, label in enumerate(labels)
                 if label > 0 and any(map(any, form.cuts[label - 1].halos))}  # fmt: skip
        part_call = PartCall(
            numbered, slices and not halos, scale=self._scale(call, device, labels)
        )
        if halos and kinds.startswith("aten.convolution_backward"):
            part_call.own_rows = self._own(op, 0, source.slots[slots[0]].sizes, device)
        i = 0
        for slot in slots:
            if slot in self._numbers:
                part_call.add(self._numbers[slot], None)
                continue
            self._argument(part_call, call, device, (i, slot), halos)
            i += 1
        assert i == self._d.first[op + 1] - self._d.first[op], source.graph.names[op]
        self._finish(part_call, call, device)
        return part_call

    def _own(self, op: int, i: int, sizes: tuple[int, ...], device: int) -> Piece:
        """What a part has of an argument, without what it needs of its neighbours."""
        form, owner = self._form(op), self._layout.owner[:, op].tolist()
        specs = [specs_of(form, label)[0][i] for label in self._layout.labels[:, op].tolist()]
        return self._specs.piece(sizes, form.inputs[i], specs, owner, device)

    def _halo(self, call: Call, device: int, cut: Cut) -> Halo:
        """What a part needs along a dimension whose windows reach over parts."""
        form, op = self._form(call.op), call.op
        _, slots = counted(call)
        tensors = [slot for slot in slots if slot not in self._numbers]
        inputs = [
            self._own(op, i, self._source.slots[slot].sizes, device) if cut.inputs[i] >= 0 else None
            for i, slot in enumerate(tensors)
        ]
        outputs = [
            self._made[op, which, device].piece
            if which < len(call.results) and call.results[which] >= 0
            else None
            for which in range(len(form.outputs))
        ]
        return Halo.of(form, cut, inputs, outputs)

    def _plain(self, numbered: Call, slots: Sequence[int], device: int) -> PartCall:
        """A call of an op without tensors that are cut."""
        part_call = PartCall(numbered, True)
        for slot in slots:
            if slot in self._numbers:
                part_call.add(self._numbers[slot], None)
                continue
            root, which, shown = self._root(slot)
            kept = self._made[root, which, device]
            want = Piece.whole(shown.sizes)
            taking = Taking.of(kept.piece, shown, want)
            part_call.add(kept.slot, Argument(taking, want.shape, self._source.slots[slot].dtype))
        part_call.kept = [None] * len(numbered.results)
        return part_call

    def _scale(self, call: Call, device: int, labels: Sequence[int]) -> float:
        """What a part counts by, of an op that divides by the length of what is cut."""
        form, found = self._form(call.op), 1.0
        for axis, label in enumerate(labels):
            cut = form.cuts[label - 1] if label > 0 else None
            if cut is not None and cut.is_mean and not self._layout.exchanged[axis, call.op]:
                found *= self._fraction(call, device, axis)
        return found

    def _chain(self, slot: int) -> tuple[int, list[tuple[Call, int]]]:
        """The slot that views show, and these, the last one first."""
        chain: list[tuple[Call, int]] = []
        while slot in self._views:
            chain.append(self._views[slot])
            slot = chain[-1][0].reads[0]
        return slot, chain

    def _root(self, slot: int) -> tuple[int, int, Shown]:
        """The op, its output and how a tensor of the tape shows that, through views."""
        at, chain = self._chain(slot)
        return *self._maker[at], self._show(at, chain)

    def _show(self, root: int, chain: Sequence[tuple[Call, int]]) -> Shown:
        """How views show the elements of a tensor."""
        sizes = self._source.slots[root].sizes
        if not chain:
            return Shown.whole(sizes)
        tensor = torch.empty(sizes, device="meta")
        shown = tensor
        for call, i in reversed(chain):
            part, slots = counted(call)
            values: list[Any] = [shown] * len(slots) + [None] * len(call.results)
            results = tuple(len(slots) + j for j in range(len(call.results)))
            runner(replace(part, results=results))(values)
            shown = values[len(slots) + i]
        if shown.untyped_storage()._cdata != tensor.untyped_storage()._cdata:
            name = self._source.graph.names[self._source.slots[root].op]
            raise InputError(
                f"a view of what op {name!r} gives shows a copy where parts of it are taken: label "
                "the op whole"
            )
        return Shown(tuple(shown.shape), shown.stride(), shown.storage_offset())

    def _argument(
        self,
        part_call: PartCall,
        call: Call,
        device: int,
        which: tuple[int, int],
        halos: Mapping[int, Halo],
    ) -> None:
        """Adds an argument: its place among the op's and its slot are given."""
        (i, slot), op, layout, d = which, call.op, self._layout, self._d
        form, at = self._form(op), int(d.first[op]) + i
        source = self._source.slots[slot]
        specs = [specs_of(form, label)[0][i] for label in layout.labels[:, op].tolist()]
        is_written = slot in call.writes
        root, output, shown = self._root(slot)
        row = int(self._conversions.of_argument[at])
        kept = (
            self._converted.get((row, device))
            if row >= 0
            else self._made.get((root, output, device))
        )
        if not is_written and (kept is None or ANY in specs):
            part_call.add_stand_in(source.sizes, source.dtype)
            return
        assert kept is not None, self._source.graph.names[op]
        have = self._conversions.want[:, row] if row >= 0 else layout.made[:, layout.tensor[at]]
        is_zero = any(
            a == REPLICATE and b == PARTIAL and self._places[axis][device]
            for axis, (a, b) in enumerate(
                zip(have.tolist(), layout.wanted[:, at].tolist(), strict=True)
            )
        )
        for axis in halos:
            if have[axis] == REPLICATE:
                specs[axis] = REPLICATE
        owner = layout.owner[:, op].tolist()
        if is_written and ANY in specs:
            want = self._piece_of(op, 0, device)
        else:
            want = self._specs.piece(source.sizes, form.inputs[i], specs, owner, device)
        reach = [halo for axis, halo in halos.items() if specs[axis] >= 0]
        if reach:
            self._with_rows(part_call, call, device, (i, slot), (root, output, shown, row), reach)
            return
        taking = Taking.of(kept.piece, shown, want)
        inside = None
        if not part_call.slices and want.shape != source.sizes:
            inside = Move.of(want, Piece.whole(source.sizes))
        if is_zero:
            shape = source.sizes if inside is not None else want.shape
            part_call.add(-1, Argument(None, shape, source.dtype))
            return
        shape = source.sizes if inside is not None else want.shape
        in_rows = not is_written and Shown.whole(source.sizes).strides == source.strides
        argument = Argument(taking, shape, source.dtype, inside, in_rows=in_rows)
        part_call.add(kept.slot, argument, want)
        if is_written:
            is_view = row < 0 and inside is None and taking.is_view
            self._written(part_call, op, device, (kept, want, is_view), (root, output))

    def _with_rows(
        self,
        part_call: PartCall,
        call: Call,
        device: int,
        which: tuple[int, int],
        of: tuple[int, int, Shown, int],
        halos: Sequence[Halo],
    ) -> None:
        """Adds an argument of which neighbours send rows: they cut out what the part needs."""
        (i, slot), (root, output, shown, row), op = which, of, call.op
        source = self._source.slots[slot]
        own = self._own(op, i, source.sizes, device)
        wider = own
        for halo in halos:
            wider = halo.wider(i, wider)
        pieces, moves, slots = [own], [], []
        at = int(self._d.first[op]) + i
        for neighbour, added in self._halos.get((at, device), ()):
            kept = (
                self._converted[row, neighbour] if row >= 0 else self._made[root, output, neighbour]
            )
            piece = common(self._own(op, i, source.sizes, neighbour), wider)
            cutter, cut = added, Taking.of(kept.piece, shown, piece)
            slots.append(self._new(cutter, source))
            self._calls.append(
                Call(cutter, partial(members.cut_out, cut), (Ref(kept.slot),), {}, (slots[-1],))
            )
            pieces.append(piece)
            moves.append(Move.of(piece, Piece.whole(source.sizes)))
        if common(union(pieces), wider).numel < wider.numel:
            cuts = ", ".join(repr(halo.cut.name) for halo in halos)
            raise InputError(
                f"op {self._source.graph.names[op]!r} is cut along {cuts} so that a part needs "
                "rows that no neighbour sends: lengths before and after it are not cut at the same "
                "places, or parts are shorter than a window. Label it otherwise"
            )
        kept = self._converted[row, device] if row >= 0 else self._made[root, output, device]
        inside = Move.of(own, Piece.whole(source.sizes))
        taking = Taking.of(kept.piece, shown, own)
        argument = Argument(taking, source.sizes, source.dtype, inside, more=tuple(moves))
        part_call.add(kept.slot, argument, own, slots)

    def _written(
        self,
        part_call: PartCall,
        op: int,
        device: int,
        of: tuple[_Kept, Piece, bool],
        root: tuple[int, int],
    ) -> None:
        """Notes that a part changes its last argument: its piece is taken ``of`` what the device
        has, as a view or not. What changes a copy of a placeholder is written back.
        """
        (kept, piece, is_view), source = of, self._source.graph
        state = int(source.alias_of[op]) if source.alias_of[op] >= 0 else root[0]
        is_home = (*root, device) in self._at_home
        if is_view and (is_home or not source.placeholder[state]):
            part_call.writes.append(kept.slot)
            part_call.written.append(len(part_call.refs) - 1)
            if is_home:
                self._at_home.add((op, 0, device))
            return
        home = self._made.get((state, 0, device))
        if not source.placeholder[state] or home is None:
            return
        has_all = common(piece, home.piece).numel == home.piece.numel
        if not has_all and self._last_write.get(state) == op:
            raise ElsewhereError
        if has_all:
            part_call.back.append((len(part_call.refs) - 1, Move.of(piece, home.piece), home.slot))
            part_call.writes.append(home.slot)

    def _finish(self, part_call: PartCall, call: Call, device: int) -> None:
        """What is kept of results, and the sizes among the arguments of a part."""
        op, source = call.op, self._source
        form, sizes = self._form(op), {}
        for which, slot in enumerate(call.results):
            if slot < 0 or which >= len(form.outputs):
                part_call.kept.append(None)
                continue
            piece, whole = self._made[op, which, device].piece, source.slots[slot].sizes
            move = None
            if not part_call.slices and piece.shape != whole:
                move = Move.of(Piece.whole(whole), piece)
            part_call.kept.append(move)
            if part_call.slices and piece.flat is None and piece.shape != whole:
                sizes[whole] = piece.shape
        part_call.fit(sizes)

    # -- outputs

    def _joint(self, name: str, slot: int) -> Joint:
        """What puts an output together from what all devices have of it."""
        source = self._source
        storage = source.slots[slot].storage
        if name.startswith("parameter."):
            slot = next(
                (p.slot for p in source.placeholders if source.slots[p.slot].storage == storage),
                slot,
            )
        at, chain = self._chain(slot)
        root, which = self._maker[at]
        specs = self._layout.made[:, int(self._layout.first_output[root]) + which]
        sizes = source.slots[at].sizes
        slots, moves = [], []
        for device in self._on(root):
            is_same = (specs == REPLICATE) & (self._places[:, device] > 0)
            kept = self._made[root, which, device]
            if not is_same.any() and kept.piece.numel:
                slots.append(kept.slot)
                moves.append(Move.of(kept.piece, Piece.whole(sizes)))
        return Joint(tuple(slots), partial(members.whole, moves, sizes, tuple(reversed(chain))))


def _halos_of(expansion: Expansion) -> dict[tuple[int, int], list[tuple[int, int]]]:
    """By argument and device, the neighbours that send rows, and the op that cuts them out."""
    found: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    halos = expansion.lowering.halos
    rows = zip(halos.argument.tolist(), halos.receiver, expansion.slices, strict=True)
    for argument, receiver, slices in rows:
        for sender in np.flatnonzero(receiver >= 0).tolist():
            found[argument, int(receiver[sender])].append((sender, int(slices[sender])))
    return found
