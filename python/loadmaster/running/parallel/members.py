"""Members of collectives: the tensors that each brings, and those it makes of all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from loadmaster.running.parallel.parts import counted
from loadmaster.running.parallel.pieces import (
    ElsewhereError,
    Piece,
    PieceMove,
    Taking,
    common,
    union,
)
from loadmaster.running.tape.calls import Call, runner


def least_pieces(
    start: Sequence[Piece],
    final: Sequence[Piece],
    groups: Sequence[Sequence[Sequence[int]]],
    joins: Sequence[bool],
) -> list[list[Piece]]:
    """The least pieces of devices before the first of several collectives, and after each.

    ``groups`` has, of each collective and device, the devices that share it.
    """
    there = [list(start)]
    for group, is_join in zip(groups, joins, strict=True):
        now = there[-1]
        there.append(
            [
                union([now[o] for o in of]) if is_join else p
                for of, p in zip(group, now, strict=True)
            ]
        )
    least = [list(final)]
    for group, before in zip(reversed(groups), reversed(there[:-1]), strict=True):
        after = least[0]
        least.insert(
            0,
            [common(union([after[o] for o in of]), p) for of, p in zip(group, before, strict=True)],
        )
    for group, is_join, before, after in zip(groups, joins, least, least[1:], strict=False):
        for of, piece in zip(group, after, strict=True):
            sources = [before[o] for o in of]
            for source in [union(sources)] if is_join else sources:
                if common(source, piece).numel < piece.numel:
                    raise ElsewhereError
    return least


def brings(functions: Sequence[Any], pieces: Sequence[torch.Tensor | None]) -> list[torch.Tensor]:
    """The tensors that a member brings, of what its device has."""
    return [function(piece) for function, piece in zip(functions, pieces, strict=True)]


def gives(
    functions: Sequence[Any], brought: Sequence[Sequence[torch.Tensor]], own: Sequence[torch.Tensor]
) -> list[torch.Tensor | None]:
    """The tensors that a member makes of those that all have brought."""
    return [function(each, own) for function, each in zip(functions, brought, strict=True)]


def zeros(shape: Sequence[int], dtype: torch.dtype, piece: torch.Tensor | None) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype)


def moved(move: PieceMove, shape: Sequence[int], piece: torch.Tensor) -> torch.Tensor:
    return move.taken(piece).reshape(shape)


def joined(
    moves: Sequence[PieceMove],
    shape: Sequence[int],
    brought: Sequence[torch.Tensor],
    own: Sequence[torch.Tensor],
) -> torch.Tensor:
    tensor = torch.empty(shape, dtype=brought[0].dtype)
    for move, piece in zip(moves, brought, strict=True):
        move.put(piece, tensor)
    return tensor


def summed(
    moves: Sequence[PieceMove],
    shape: Sequence[int],
    brought: Sequence[torch.Tensor],
    own: Sequence[torch.Tensor],
) -> torch.Tensor:
    total = moves[0].taken(brought[0]).reshape(shape).clone()
    for move, piece in zip(moves[1:], brought[1:], strict=True):
        total += move.taken(piece).reshape(shape)
    return total


def put(
    moves: Sequence[PieceMove],
    at: int,
    joins: bool,
    brought: Sequence[torch.Tensor],
    own: Sequence[torch.Tensor],
) -> None:
    """Writes what is brought into what the device has itself."""
    shape = own[at].shape
    tensor = (joined if joins else summed)(moves, shape, brought, own)
    own[at].copy_(tensor)


def cut_out(taking: Taking, piece: torch.Tensor) -> torch.Tensor:
    """Rows that a neighbour needs."""
    return taking.taken(piece).clone(memory_format=torch.contiguous_format)


def same(known: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return list(known)


def whole(
    moves: Sequence[PieceMove],
    sizes: tuple[int, ...],
    chain: Sequence[tuple[Call, int]],
    pieces: Sequence[torch.Tensor],
) -> torch.Tensor:
    """A whole tensor of pieces and of partial sums, and a view of it."""
    tensor = torch.zeros(sizes, dtype=pieces[0].dtype)
    for move, piece in zip(moves, pieces, strict=True):
        move.add(piece, tensor)
    for call, i in chain:
        part, slots = counted(call)
        values: list[Any] = [tensor] * len(slots) + [None] * len(call.results)
        results = tuple(len(slots) + j for j in range(len(call.results)))
        runner(replace(part, results=results))(values)
        tensor = values[len(slots) + i]
    return tensor
