"""Tape of shards: each device of a mesh calls its part of every op, on the pieces that it has.

The lowering (:mod:`loadmaster.transforms.lowering`) says which collectives, sums and halos there
are between the parts.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np
import torch

from loadmaster.base.errors import InputError
from loadmaster.dimensions.form import PICKED, REPLICATE
from loadmaster.dimensions.routing import GROUPED
from loadmaster.model.program import Program
from loadmaster.running.devices.turns import in_turn
from loadmaster.running.parallel import members
from loadmaster.running.parallel.collective_calls import conversion_calls
from loadmaster.running.parallel.device_tensors import DeviceTensors
from loadmaster.running.parallel.part_arguments import PartArguments
from loadmaster.running.parallel.pieces import ElsewhereError, Piece, PieceMove
from loadmaster.running.parallel.source_tape import SourceTape
from loadmaster.running.parallel.spec_pieces import Specs
from loadmaster.running.parallel.sum_calls import summed_calls, sums_of_ops
from loadmaster.running.tape.calls import Call
from loadmaster.running.tape.slots import Joint
from loadmaster.running.tape.tape import Tape
from loadmaster.transforms.layout import Layout
from loadmaster.transforms.lowering import Lowering
from loadmaster.transforms.shards import Expansion


def sharded(
    program: Program,
    tape: Tape,
    lowering: Lowering,
    inputs: Mapping[int, torch.Tensor] | None = None,
) -> Tape:
    """The tape of a program of shards. Its outputs have the names of the tape's, and are whole.

    Parameters
    ----------
    program : Program
        Of the lowering.
    tape : Tape
        Of the graph of the lowering's layout.
    lowering : Lowering
    inputs : mapping of int to tensor, optional
        Inputs and targets that are not those of the recording, by slot.

    Raises
    ------
    InputError
        The program has been changed since it was made of the lowering; a part needs rows that no
        neighbour sends; a router picks rows for the experts of a device; parts exchange sums of an
        op that is not known to do so.
    """
    layout = lowering.layout
    picked = np.flatnonzero((layout.made == PICKED).any(axis=0))
    if len(picked):
        op = tape.graph.names[layout.maker[picked[0]]]
        raise InputError(
            f"op {op!r} picks rows for the experts of each device, which are as many as a router "
            "says: no run does so yet. Label it whole, or cut it otherwise"
        )
    _refuse_sorted_rows(layout)
    expansion = Expansion.of(lowering)
    _refuse_changed(program, expansion.program)
    source = SourceTape(tape, layout.dimensions, inputs or {})
    try:
        return _tape(program, DeviceTensors(source, expansion, Specs(layout, of_parts=True)))
    except ElsewhereError:
        return _tape(program, DeviceTensors(source, expansion, Specs(layout, of_parts=False)))


def _refuse_sorted_rows(layout: Layout) -> None:
    """Refuses to share out rows that are sorted by expert."""
    graph, dimensions = layout.graph, layout.dimensions
    for op in (op for op, kind in enumerate(graph.kinds) if kind in GROUPED):
        cuts = dimensions.forms[dimensions.form_of[op]].cuts
        names = [cuts[label - 1].name for label in layout.labels[:, op].tolist() if label > 0]
        if any(name.startswith(("expert", "row")) for name in names):
            raise InputError(
                f"op {graph.names[op]!r} has rows that are sorted by expert, as many of each as a "
                "router says: no run shares these out yet. Label it whole, or cut its columns"
            )


def _refuse_changed(program: Program, expected: Program) -> None:
    if expected.graph.names == program.graph.names:
        return
    pairs = zip(expected.graph.names, program.graph.names, strict=False)
    other = next((b for a, b in pairs if a != b), program.graph.names[-1])
    raise InputError(
        f"op {other!r} is not of the program that the recipe makes: plan again with this "
        "version, or without splitting ops of shards"
    )


def _tape(program: Program, tensors: DeviceTensors) -> Tape:
    """The calls of all devices, and their tensors."""
    source = tensors.source
    placeholders = [piece for placed in source.tape.placeholders for piece in tensors.place(placed)]
    for call in source.runs:
        tensors.reserve(call)
    calls = conversion_calls(tensors)
    arguments, sums = PartArguments(tensors), sums_of_ops(tensors)
    for call in source.runs:
        calls += (
            _parts(arguments, call)
            if call.op not in sums
            else [*summed_calls(arguments, call, sums[call.op])]
        )
    outputs = source.tape.outputs
    return Tape(
        graph=program.graph,
        calls=in_turn(program.graph, [*calls, *arguments.calls], tensors.slots),
        slots=tensors.slots,
        placeholders=tuple(placeholders),
        outputs={},
        joints={name: _joint(tensors, name, slot) for name, slot in outputs.items()},
        numbers=tuple(range(len(source.tape.numbers))),
        host=source.tape.host,
    )


def _parts(arguments: PartArguments, call: Call) -> list[Call]:
    """The calls of all devices in the place of one."""
    devices = arguments.tensors.on(call.op)
    parts = {device: arguments.of(call, device, exchanges=False) for device in devices}
    return [arguments.part(call, device, part) for device, part in parts.items()]


def _joint(tensors: DeviceTensors, name: str, slot: int) -> Joint:
    """The way to put an output together from what all devices have of it."""
    source, layout = tensors.source, tensors.layout
    tape = source.tape
    if name.startswith("parameter."):
        storage = tape.slots[slot].storage
        of_storage = (p.slot for p in tape.placeholders if tape.slots[p.slot].storage == storage)
        slot = next(of_storage, slot)
    at, chain = source.chain(slot)
    op, output = source.maker[at]
    specs = layout.made[:, int(layout.first_output[op]) + output]
    sizes, slots, moves = tape.slots[at].sizes, [], []
    for device in tensors.on(op):
        is_same = (specs == REPLICATE) & (layout.ways.places[:, device] > 0)
        held = tensors.results[op, output, device]
        if not is_same.any() and held.piece.numel:
            slots.append(held.slot)
            moves.append(PieceMove.of(held.piece, Piece.whole(sizes)))
    return Joint(tuple(slots), partial(members.whole, moves, sizes, tuple(reversed(chain))))
