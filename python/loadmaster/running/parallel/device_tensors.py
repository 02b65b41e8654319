"""Device tensors: the slot and the piece that each device of a mesh has of every tensor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from loadmaster.running.parallel.pieces import Piece, PieceMove
from loadmaster.running.parallel.source_tape import ShownTensor, SourceTape
from loadmaster.running.parallel.spec_pieces import Specs
from loadmaster.running.tape.calls import Call
from loadmaster.running.tape.slots import Placeholder, Slot
from loadmaster.transforms.layout import Layout
from loadmaster.transforms.shards import Expansion


@dataclass(frozen=True, slots=True)
class HeldPiece:
    """A piece of a tensor that a device has, and the slot that it is in."""

    slot: int
    piece: Piece


class DeviceTensors:
    """The tensors of all devices. Slots are added as the calls that give them are made.

    Parameters
    ----------
    source : SourceTape
    expansion : Expansion
        The program, of the lowering that the devices follow.
    specs : Specs
        The piece that a device has under a spec.

    Attributes
    ----------
    slots : dict of int to Slot
    results : dict of (op, output, device) to HeldPiece
    converted : dict of (conversion, device) to HeldPiece
    at_home : set of (op, output, device)
        Tensors that lie in the memory of a placeholder.
    """

    def __init__(self, source: SourceTape, expansion: Expansion, specs: Specs) -> None:
        self.source, self.expansion, self.specs = source, expansion, specs
        self.lowering = expansion.lowering
        self.layout: Layout = self.lowering.layout
        self.devices = range(self.layout.mesh.size)
        self.slots: dict[int, Slot] = {}
        self.results: dict[tuple[int, int, int], HeldPiece] = {}
        self.converted: dict[tuple[int, int], HeldPiece] = {}
        self.at_home: set[tuple[int, int, int]] = set()
        self._storage: dict[tuple[int, int], int] = {}
        self._n, self._n_storages = len(source.tape.numbers), 0
        self._copies: list[list[int]] = expansion.copies.tolist()
        self._groups = [self._groups_on(axis) for axis in range(len(self.layout.mesh.axes))]

    # -- the mesh

    def on(self, op: int) -> list[int]:
        """The devices that have a copy of an op."""
        return [device for device in self.devices if self._copies[device][op] >= 0]

    def copy(self, op: int, device: int) -> int:
        """The copy of an op on a device; -1: there is none."""
        return self._copies[device][op]

    def group(self, axis: int, device: int) -> list[int]:
        """The devices that differ from one on an axis alone, itself too, in the axis's order."""
        return self._groups[axis][device]

    def _groups_on(self, axis: int) -> list[list[int]]:
        places = self.layout.ways.places
        others = [i for i in range(len(places)) if i != axis]
        same = [
            (places[others] == places[others, device][:, None]).all(axis=0)
            for device in self.devices
        ]
        return [np.flatnonzero(each).tolist() for each in same]

    def is_first(self, axis: int, device: int) -> bool:
        """True for a device at the first place of an axis."""
        return not self.layout.ways.places[axis, device]

    # -- slots

    def new(self, op: int, like: Slot, storage: int | None = None) -> int:
        """A new slot for a tensor that an op of the program gives."""
        if storage is None:
            storage, self._n_storages = self._n_storages, self._n_storages + 1
        self.slots[self._n] = replace(like, op=op, storage=storage, offset=0)
        self._n += 1
        return self._n - 1

    def _storage_at(self, slot: int, device: int) -> int:
        """The storage that a device has for one of the source's."""
        key = self.source.tape.slots[slot].storage, device
        if key not in self._storage:
            self._storage[key], self._n_storages = self._n_storages, self._n_storages + 1
        return self._storage[key]

    def place(self, placed: Placeholder) -> list[Placeholder]:
        """The pieces of a placeholder. Each device has its own, if the step writes into it."""
        source, tensor = self.source.tape.slots[placed.slot], self.source.tensors[placed.op]
        is_written = source.storage in self.source.tape.written
        whole = Piece.whole(tuple(tensor.shape))
        pieces = []
        for device in self.on(placed.op):
            has_form = self.source.has_form(placed.op)
            piece = self.piece(placed.op, 0, device) if has_form else whole
            cut = PieceMove.of(whole, piece).taken(tensor).reshape(piece.shape)
            cut = cut.clone(memory_format=torch.contiguous_format) if is_written else cut
            op = self.copy(placed.op, device)
            slot = self.new(op, source, self._storage_at(placed.slot, device))
            self.results[placed.op, 0, device] = HeldPiece(slot, piece)
            self.at_home.add((placed.op, 0, device))
            pieces.append(replace(placed, slot=slot, op=op, tensor=cut.contiguous()))
        return pieces

    def reserve(self, call: Call) -> None:
        """Makes slots for the results of the parts of a call."""
        n_outputs = len(self.source.form(call.op).outputs) if self.source.has_form(call.op) else 0
        for device in self.on(call.op):
            for output, slot in enumerate(call.results):
                if slot < 0:
                    continue
                source = self.source.tape.slots[slot]
                maker = self.copy(source.op, device)
                op = maker if maker >= 0 else self.copy(call.op, device)
                is_cut = output < n_outputs
                piece = self.piece(call.op, output, device) if is_cut else Piece.whole(source.sizes)
                mine = self.new(op, source, self._storage_at(slot, device))
                self.results[call.op, output, device] = HeldPiece(mine, piece)

    # -- pieces

    def piece(self, op: int, output: int, device: int) -> Piece:
        """The piece of an output that a device makes."""
        layout = self.layout
        specs = layout.made[:, int(layout.first_output[op]) + output].tolist()
        return self.piece_under(specs, op, output, device)

    def piece_under(
        self,
        specs: Sequence[int],
        op: int,
        output: int,
        device: int,
        owner: Sequence[int] | None = None,
    ) -> Piece:
        """The piece of an output that a device has under other specs. ``owner``: the place on each
        axis of what is OWNER; that of the op, if absent.
        """
        sizes, factors = self.source.slot(op, output).sizes, self.source.form(op).outputs[output]
        places = self.layout.owner[:, op].tolist() if owner is None else owner
        return self.specs.piece(sizes, factors, specs, places, device)

    def read(self, argument: int, shown: ShownTensor, device: int) -> HeldPiece | None:
        """The piece that a device reads of an argument: the result of its conversion, or the tensor
        as the device has made it; None: the device has none.
        """
        row = int(self.lowering.conversions.of_argument[argument])
        if row >= 0:
            return self.converted.get((row, device))
        return self.results.get((shown.op, shown.output, device))
