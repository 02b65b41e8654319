"""Calls of the collectives of conversions: one with which a member brings tensors, and one with
which it takes what it gets of what all members have brought.

A member brings no more than the others of its group need of it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

import loadmaster.fast as fast
from loadmaster.dimensions.form import OWNER, PARTIAL, REPLICATE
from loadmaster.running.parallel import members
from loadmaster.running.parallel.device_tensors import DeviceTensors, HeldPiece
from loadmaster.running.parallel.pieces import Piece, PieceMove
from loadmaster.running.tape.calls import Call, Ref
from loadmaster.running.tape.slots import Slot
from loadmaster.transforms.conversions import UPDATED

#: Kinds of collectives whose members put together what they bring. Those of others add it up.
_JOINS = ("all_gather", "all_to_all")


@dataclass(frozen=True, slots=True)
class _Brought:
    """A tensor that a member brings: ``function`` of the slot ``source`` (-1: of nothing)."""

    source: int
    function: Callable[..., Any]
    slot: int


@dataclass(frozen=True, slots=True)
class _Taken:
    """A tensor that a member gets: ``function`` of what the members have ``brought``. The slot -1:
    it is written into a tensor that the device has.
    """

    brought: list[int]
    function: Callable[..., Any]
    slot: int


@dataclass(frozen=True, slots=True)
class _MemberCalls:
    """The tensors of a member: those that it brings, gets, and writes into."""

    brought: list[_Brought] = field(default_factory=list)
    taken: list[_Taken] = field(default_factory=list)
    written: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Stage:
    """A step of a conversion as the devices run it.

    Attributes
    ----------
    axis : int
    is_join : bool
    members : list of int
        The op of the program that runs it on each device; -1: the device has nothing of it.
    before, after : list of Piece
        The piece that each device brings, and the one that it then has.
    home : int
        The parameter that the last step of an update writes into; -1: there is none.
    """

    axis: int
    is_join: bool
    members: list[int]
    before: list[Piece]
    after: list[Piece]
    home: int


def conversion_calls(tensors: DeviceTensors) -> list[Call]:
    """The calls of all conversions. Their results become ``tensors.converted``."""
    of_member: dict[int, _MemberCalls] = defaultdict(_MemberCalls)
    steps = tensors.lowering.conversions.steps
    of_row: dict[int, list[int]] = defaultdict(list)
    for step, row in enumerate(steps.conversion.tolist()):
        of_row[row].append(step)
    for row in range(len(tensors.lowering.conversions)):
        _convert(tensors, row, of_row[row], of_member)
    return [*_bringing(of_member), *_taking(of_member)]


def _bringing(of_member: dict[int, _MemberCalls]) -> Iterator[Call]:
    for member, of in of_member.items():
        refs = [Ref(one.source) if one.source >= 0 else None for one in of.brought]
        function = partial(members.brings, [one.function for one in of.brought])
        results = tuple(one.slot for one in of.brought)
        yield Call(member, function, (refs,), {}, results, True, brings=True)


def _taking(of_member: dict[int, _MemberCalls]) -> Iterator[Call]:
    for member, of in of_member.items():
        if of.taken:
            lists = [[Ref(slot) for slot in one.brought] for one in of.taken]
            own = [Ref(slot) for slot in of.written]
            function = partial(members.gives, [one.function for one in of.taken])
            results, writes = tuple(one.slot for one in of.taken), tuple(of.written)
            args = (lists, own)
            yield Call(member, function, args, {}, results, True, writes=writes, shares=True)


def _convert(
    tensors: DeviceTensors, row: int, steps: Sequence[int], of_member: dict[int, _MemberCalls]
) -> None:
    """Adds a conversion to the calls of its members."""
    c, layout = tensors.lowering.conversions, tensors.layout
    tensor = int(c.tensor[row])
    op = int(layout.maker[tensor])
    output = tensor - int(layout.first_output[op])
    source = tensors.source.slot(op, output)
    now = [tensors.results.get((op, output, device)) for device in tensors.devices]
    # The whole tensor as a sum: the first device of the axis has it, the others bring zeros.
    is_sum = (layout.made[:, tensor] == REPLICATE) & (c.want[:, row] == PARTIAL)
    for axis in np.flatnonzero(is_sum).tolist():
        now = [one if tensors.is_first(axis, device) else None for device, one in enumerate(now)]
    for stage in _stages(tensors, row, steps):
        now = _run(tensors, stage, now, source, of_member)
    if c.traffic[row] != UPDATED:
        for device, held in enumerate(now):
            if held is not None:
                tensors.converted[row, device] = held


def _stages(tensors: DeviceTensors, row: int, steps: Sequence[int]) -> list[_Stage]:
    """The steps of a conversion, with the least pieces that will do."""
    c, layout = tensors.lowering.conversions, tensors.layout
    tensor = int(c.tensor[row])
    op = int(layout.maker[tensor])
    output = tensor - int(layout.first_output[op])
    want = c.want[:, row]
    owner = np.where(want == OWNER, c.owner[:, row], layout.owner[:, op]).tolist()
    final = [
        tensors.piece_under(want.tolist(), op, output, device, owner) for device in tensors.devices
    ]
    start = [tensors.piece(op, output, device) for device in tensors.devices]
    axes = c.steps.axis[steps].tolist()
    joins = [fast.COLLECTIVES[kind] in _JOINS for kind in c.steps.kind[steps].tolist()]
    groups = [[tensors.group(axis, device) for device in tensors.devices] for axis in axes]
    pieces = members.least_pieces(start, final, groups, joins)
    state = int(tensors.source.tape.graph.alias_of[op]) if c.traffic[row] == UPDATED else -1
    run_by = tensors.expansion.members[:, steps].T.tolist()
    homes = [-1] * (len(steps) - 1) + [state]
    columns = zip(axes, joins, run_by, pieces[:-1], pieces[1:], homes, strict=True)
    return [_Stage(*column) for column in columns]


def _run(
    tensors: DeviceTensors,
    stage: _Stage,
    now: Sequence[HeldPiece | None],
    source: Slot,
    of_member: dict[int, _MemberCalls],
) -> list[HeldPiece | None]:
    """Adds a step to the calls of its members; the piece that each device then has."""
    brought = []
    for member, piece, held in zip(stage.members, stage.before, now, strict=True):
        if member < 0:
            brought.append(-1)
            continue
        slot = tensors.new(member, source)
        of_member[member].brought.append(_bring(held, piece, source, slot))
        brought.append(slot)
    after: list[HeldPiece | None] = []
    for device, (member, piece) in enumerate(zip(stage.members, stage.after, strict=True)):
        if member < 0:
            after.append(now[device])
            continue
        group = tensors.group(stage.axis, device)
        moves = [PieceMove.of(stage.before[other], piece) for other in group]
        slots, mine = [brought[other] for other in group], of_member[member]
        if stage.home >= 0:
            home = tensors.results.get((stage.home, 0, device))
            if home is not None:
                put = partial(members.put, moves, len(mine.written), stage.is_join)
                mine.written.append(home.slot)
                mine.taken.append(_Taken(slots, put, -1))
            after.append(now[device])
            continue
        together = members.joined if stage.is_join else members.summed
        result = tensors.new(member, source)
        mine.taken.append(_Taken(slots, partial(together, moves, piece.shape), result))
        after.append(HeldPiece(result, piece))
    return after


def _bring(held: HeldPiece | None, piece: Piece, source: Slot, slot: int) -> _Brought:
    """A piece of what a device has, or zeros."""
    if held is None or not piece.numel:
        return _Brought(-1, partial(members.zeros, piece.shape, source.dtype), slot)
    move = PieceMove.of(held.piece, piece)
    return _Brought(held.slot, partial(members.moved, move, piece.shape), slot)
