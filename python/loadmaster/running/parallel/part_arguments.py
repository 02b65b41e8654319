"""Arguments of parts: how each device calls its part of an op, on the pieces that it has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from loadmaster.base.errors import InputError
from loadmaster.dimensions.form import ANY, PARTIAL, REPLICATE, Cut
from loadmaster.running.parallel import members
from loadmaster.running.parallel.device_tensors import DeviceTensors, HeldPiece
from loadmaster.running.parallel.halos import Halo
from loadmaster.running.parallel.part_call import PartCall
from loadmaster.running.parallel.parts import Argument, counted, works_on_slices
from loadmaster.running.parallel.pieces import (
    ElsewhereError,
    Piece,
    PieceMove,
    Taking,
    common,
    order_of,
    union,
)
from loadmaster.running.parallel.source_tape import ShownTensor
from loadmaster.running.tape.calls import Call, Ref
from loadmaster.running.tape.slots import Slot
from loadmaster.transforms.specs import specs_of


@dataclass(frozen=True, eq=False)
class _Read:
    """An argument that a device's part of an op reads.

    Attributes
    ----------
    call : Call
    device : int
    i : int
        Which of the call's tensors it is.
    row : int
        Its row among the arguments of the graph's dimensions.
    slot : Slot
        The argument as it was recorded.
    shown : ShownTensor
        The tensor that it is, or is a view of.
    is_written : bool
        Whether the call writes into it.
    halos : mapping of int to Halo
        By axis.
    """

    call: Call
    device: int
    i: int
    row: int
    slot: Slot
    shown: ShownTensor
    is_written: bool
    halos: Mapping[int, Halo]


def _is_workspace(read: _Read, kind: str) -> bool:
    """True for bytes that a kernel keeps for its backward pass: recorded without data they are
    none, and they go on as the part of the forward pass left them.
    """
    return kind.startswith("aten.mkldnn_rnn_layer_backward") and read.slot.sizes == (0,)


class PartArguments:
    """The arguments of the parts of calls.

    Parameters
    ----------
    tensors : DeviceTensors
        With the results of conversions.

    Attributes
    ----------
    calls : list of Call
        Slices that neighbours cut out for halos.
    """

    def __init__(self, tensors: DeviceTensors) -> None:
        self.tensors, self.source, self.layout = tensors, tensors.source, tensors.layout
        self.calls: list[Call] = []
        self._last_write = self.source.last_writes(tensors.lowering.conversions)
        #: By argument and device: the neighbours that send rows, and the ops that cut them out.
        self._senders: dict[tuple[int, int], list[tuple[int, int]]] = {}
        halos = tensors.lowering.halos
        rows = zip(halos.argument.tolist(), halos.receiver, tensors.expansion.slices, strict=True)
        for argument, receiver, slices in rows:
            for sender in np.flatnonzero(receiver >= 0).tolist():
                to = self._senders.setdefault((argument, int(receiver[sender])), [])
                to.append((sender, int(slices[sender])))

    # -- the call of a part

    def part(self, call: Call, device: int, part_call: PartCall, known: Sequence[int] = ()) -> Call:
        """The call of a device in the place of one; ``known`` is handed to it before all else."""
        tensors = self.tensors
        results = [
            tensors.results[call.op, output, device].slot if slot >= 0 else -1
            for output, slot in enumerate(call.results)
        ]
        parts = tuple(tensors.copy(part, device) if part >= 0 else -1 for part in call.parts)
        op = tensors.copy(call.op, device)
        bare = part_call.called(replace(call, op=op), results, known)
        return replace(bare, parts=parts, random=call.random, seeded=call.op)

    def of(self, call: Call, device: int, *, exchanges: bool) -> PartCall:
        """The arguments with which a device calls its part of an op; ``exchanges``: parts exchange
        sums.
        """
        op, layout, source = call.op, self.layout, self.source
        numbered, slots = counted(call)
        if not source.has_form(op):
            return self._uncut(numbered, slots, device)
        form, labels = source.form(op), layout.labels[:, op].tolist()
        cuts = {axis: form.cuts[label - 1] for axis, label in enumerate(labels) if label > 0}
        pieces = [
            self.tensors.piece(op, output, device)
            for output, slot in enumerate(call.results[: len(form.outputs)])
            if slot >= 0
        ]
        words = [
            cut.name
            for cut in cuts.values()
            if any(spec >= 0 for spec in (*cut.inputs, *cut.outputs))
        ]
        kind = source.tape.graph.kinds[op]
        slices = exchanges or works_on_slices(call, kind, words, pieces)
        halos = {
            axis: self._halo(call, device, cut)
            for axis, cut in cuts.items()
            if any(map(any, cut.halos))
        }
        scale = self._scale(call, device, cuts)
        part_call = PartCall(numbered, slices and not halos, scale=scale)
        if halos and kind.startswith("aten.convolution_backward"):
            sizes = source.tape.slots[slots[0]].sizes
            part_call.own_rows = self._own(op, 0, sizes, device)
        is_tensor = [slot not in source.numbers for slot in slots]
        first = int(layout.dimensions.first[op])
        assert sum(is_tensor) == layout.dimensions.first[op + 1] - first, call.op
        for at, slot in enumerate(slots):
            if not is_tensor[at]:
                part_call.add(source.numbers[slot], None)
                continue
            i, recorded = sum(is_tensor[:at]), source.tape.slots[slot]
            is_written = slot in call.writes
            shown = source.shown_by(slot)
            read = _Read(call, device, i, first + i, recorded, shown, is_written, halos)
            self._add(part_call, read)
        self._fit(part_call, call, device)
        return part_call

    def fraction(self, call: Call, device: int, axis: int) -> float:
        """The part that a device has, on an axis, of what an op sums over."""
        form, label = self.source.form(call.op), int(self.layout.labels[axis, call.op])
        slots = self.source.tensor_slots(call)
        for i, spec in enumerate(specs_of(form, label)[0]):
            if spec >= 0:
                sizes, n_axes = self.source.tape.slots[slots[i]].sizes, len(self.layout.mesh.axes)
                specs = [spec if a == axis else REPLICATE for a in range(n_axes)]
                none = [0] * n_axes
                piece = self.tensors.specs.piece(sizes, form.inputs[i], specs, none, device)
                return piece.numel / Piece.whole(sizes).numel
        return 1.0

    def _scale(self, call: Call, device: int, cuts: Mapping[int, Cut]) -> float:
        """The factor of a part's result, of an op that divides by the length of what is cut."""
        scale = 1.0
        for axis, cut in cuts.items():
            if cut.is_mean and not self.layout.exchanged[axis, call.op]:
                scale *= self.fraction(call, device, axis)
        return scale

    def _uncut(self, numbered: Call, slots: Sequence[int], device: int) -> PartCall:
        """The call of an op without tensors that could be cut."""
        part_call = PartCall(numbered, True)
        for slot in slots:
            if slot in self.source.numbers:
                part_call.add(self.source.numbers[slot], None)
                continue
            shown = self.source.shown_by(slot)
            held = self.tensors.results[shown.op, shown.output, device]
            want = Piece.whole(shown.shown.sizes)
            taking = Taking.of(held.piece, shown.shown, want)
            dtype = self.source.tape.slots[slot].dtype
            part_call.add(held.slot, Argument(taking, want.shape, dtype))
        part_call.kept = [None] * len(numbered.results)
        return part_call

    # -- halos

    def _own(self, op: int, i: int, sizes: tuple[int, ...], device: int) -> Piece:
        """The part's own piece of an argument, without rows of its neighbours."""
        form, owner = self.source.form(op), self.layout.owner[:, op].tolist()
        labels = self.layout.labels[:, op].tolist()
        specs = [specs_of(form, label)[0][i] for label in labels]
        return self.tensors.specs.piece(sizes, form.inputs[i], specs, owner, device)

    def _halo(self, call: Call, device: int, cut: Cut) -> Halo:
        """The rows that a part needs along a dimension whose windows reach over parts."""
        form, op = self.source.form(call.op), call.op
        inputs = [
            self._own(op, i, self.source.tape.slots[slot].sizes, device)
            if cut.inputs[i] >= 0
            else None
            for i, slot in enumerate(self.source.tensor_slots(call))
        ]
        outputs = [
            self.tensors.results[op, output, device].piece
            if output < len(call.results) and call.results[output] >= 0
            else None
            for output in range(len(form.outputs))
        ]
        return Halo.of(form, cut, inputs, outputs)

    def _add_with_rows(self, part_call: PartCall, read: _Read, halos: Sequence[Halo]) -> None:
        """Adds an argument of which neighbours send rows: they cut out what the part needs."""
        tensors, op, device, slot = self.tensors, read.call.op, read.device, read.slot
        own = self._own(op, read.i, slot.sizes, device)
        wider, whole = own, Piece.whole(slot.sizes)
        for halo in halos:
            wider = halo.wider(read.i, wider)
        pieces, moves, slots = [own], [], []
        for neighbour, cutter in self._senders.get((read.row, device), ()):
            held = self._held(read, neighbour)
            piece = common(self._own(op, read.i, slot.sizes, neighbour), wider)
            cut = partial(members.cut_out, Taking.of(held.piece, read.shown.shown, piece))
            slots.append(tensors.new(cutter, slot))
            self.calls.append(Call(cutter, cut, (Ref(held.slot),), {}, (slots[-1],)))
            pieces.append(piece)
            moves.append(PieceMove.of(piece, whole))
        if common(union(pieces), wider).numel < wider.numel:
            cuts = ", ".join(repr(halo.cut.name) for halo in halos)
            raise InputError(
                f"op {self.source.tape.graph.names[op]!r} is cut along {cuts} so that a part needs "
                "rows that no neighbour sends: lengths before and after it are not cut at the same "
                "places, or parts are shorter than a window. Label it otherwise"
            )
        held = self._held(read, device)
        inside = PieceMove.of(own, whole)
        taking = Taking.of(held.piece, read.shown.shown, own)
        argument = Argument(taking, slot.sizes, slot.dtype, inside, more=tuple(moves))
        part_call.add(held.slot, argument, own, slots)

    def _held(self, read: _Read, device: int) -> HeldPiece:
        """The piece that a device reads of an argument."""
        held = self.tensors.read(read.row, read.shown, device)
        assert held is not None, self.source.tape.graph.names[read.call.op]
        return held

    # -- arguments

    def _add(self, part_call: PartCall, read: _Read) -> None:
        """Adds an argument to a part's call."""
        op, layout, device, slot = read.call.op, self.layout, read.device, read.slot
        form, labels = self.source.form(op), layout.labels[:, op].tolist()
        specs = [specs_of(form, label)[0][read.i] for label in labels]
        held = self.tensors.read(read.row, read.shown, device)
        if held is not None and _is_workspace(read, self.source.tape.graph.kinds[op]):
            self._check_cut_alike(read)
            part_call.add(held.slot, Argument(Taking(slot.sizes), slot.sizes, slot.dtype))
            return
        if not read.is_written and (held is None or ANY in specs):
            part_call.add_stand_in(slot.sizes, slot.dtype)
            return
        held, have = self._held(read, device), self._specs_before(read.row)
        for axis in read.halos:
            if have[axis] == REPLICATE:
                specs[axis] = REPLICATE
        if halos := [halo for axis, halo in read.halos.items() if specs[axis] >= 0]:
            self._add_with_rows(part_call, read, halos)
            return
        if read.is_written and ANY in specs:
            want = self.tensors.piece(op, 0, device)
        else:
            owner = layout.owner[:, op].tolist()
            want = self.tensors.specs.piece(slot.sizes, form.inputs[read.i], specs, owner, device)
        inside = None
        if not part_call.slices and want.shape != slot.sizes:
            inside = PieceMove.of(want, Piece.whole(slot.sizes))
        shape = slot.sizes if inside is not None else want.shape
        if self._is_zero(read, have):
            part_call.add(-1, Argument(None, shape, slot.dtype))
            return
        taking = Taking.of(held.piece, read.shown.shown, want)
        order = None if read.is_written else order_of(slot.sizes, slot.strides)
        argument = Argument(taking, shape, slot.dtype, inside, order=order)
        part_call.add(held.slot, argument, want)
        if read.is_written:
            is_converted = self.tensors.lowering.conversions.of_argument[read.row] >= 0
            is_view = not is_converted and inside is None and taking.is_view
            self._note_written(part_call, read, replace(held, piece=want), is_view=is_view)

    def _check_cut_alike(self, read: _Read) -> None:
        """Refuses an op whose part would read the workspace of another part."""
        ops = (read.call.op, read.shown.op)
        words = [
            [
                self.source.form(op).cuts[label - 1].name if label > 0 else ""
                for label in self.layout.labels[:, op].tolist()
            ]
            for op in ops
        ]
        if words[0] != words[1]:
            names = [repr(self.source.tape.graph.names[op]) for op in ops]
            raise InputError(
                f"op {names[0]} reads what the kernel of op {names[1]} left in its workspace, and "
                "is cut otherwise: run the plan on GPUs, or plan with both cut alike (a recipe: "
                '"Replicate")'
            )

    def _specs_before(self, row: int) -> list[int]:
        """The specs of what an argument reads: as it was converted, or as it was made."""
        conversions = self.tensors.lowering.conversions
        of = int(conversions.of_argument[row])
        if of >= 0:
            specs: list[int] = conversions.want[:, of].tolist()
            return specs
        specs = self.layout.made[:, self.layout.tensor[row]].tolist()
        return specs

    def _is_zero(self, read: _Read, have: Sequence[int]) -> bool:
        """True where a whole tensor is read as a sum, and another device of the axis has it."""
        wanted = self.layout.wanted[:, read.row].tolist()
        return any(
            a == REPLICATE and b == PARTIAL and not self.tensors.is_first(axis, read.device)
            for axis, (a, b) in enumerate(zip(have, wanted, strict=True))
        )

    def _note_written(
        self, part_call: PartCall, read: _Read, held: HeldPiece, *, is_view: bool
    ) -> None:
        """Notes that a part changes its last argument, a piece of a tensor in the slot ``held``, as
        a view of it or as a copy. A copy of a placeholder is written back.
        """
        graph, op, device, tensors = self.source.tape.graph, read.call.op, read.device, self.tensors
        state = int(graph.alias_of[op]) if graph.alias_of[op] >= 0 else read.shown.op
        is_home = (read.shown.op, read.shown.output, device) in tensors.at_home
        last = len(part_call.refs) - 1
        if is_view and (is_home or not graph.placeholder[state]):
            part_call.writes.append(held.slot)
            part_call.written.append(last)
            if is_home:
                tensors.at_home.add((op, 0, device))
            return
        home = tensors.results.get((state, 0, device))
        if not graph.placeholder[state] or home is None:
            return
        if common(held.piece, home.piece).numel == home.piece.numel:
            part_call.back.append((last, PieceMove.of(held.piece, home.piece), home.slot))
            part_call.writes.append(home.slot)
        elif self._last_write.get(state) == op:
            raise ElsewhereError

    def _fit(self, part_call: PartCall, call: Call, device: int) -> None:
        """Adds what is kept of results, and fits the sizes among the arguments of a part."""
        op, form = call.op, self.source.form(call.op)
        sizes: dict[tuple[int, ...], tuple[int, ...]] = {}
        for output, slot in enumerate(call.results):
            if slot < 0 or output >= len(form.outputs):
                part_call.kept.append(None)
                continue
            piece = self.tensors.results[op, output, device].piece
            whole, move = self.source.tape.slots[slot].sizes, None
            if not part_call.slices and piece.shape != whole:
                move = PieceMove.of(Piece.whole(whole), piece)
            part_call.kept.append(move)
            if part_call.slices and piece.flat is None and piece.shape != whole:
                sizes[whole] = piece.shape
        part_call.fit(sizes)
