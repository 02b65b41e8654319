"""Call of a part: arguments, results and writes of one device, as they are collected."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from loadmaster.running.parallel.halos import of_own_rows
from loadmaster.running.parallel.parts import Argument, Part, fitted
from loadmaster.running.parallel.pieces import Piece, PieceMove
from loadmaster.running.tape.calls import Call, Ref, renumbered

Ints = NDArray[np.int64]


@dataclass
class PartCall:
    """The call of a device's part of an op, as it is collected."""

    call: Call
    slices: bool
    scale: float = 1.0
    refs: list[int] = field(default_factory=list)
    arguments: list[Argument | None] = field(default_factory=list)
    kept: list[PieceMove | None] = field(default_factory=list)
    writes: list[int] = field(default_factory=list)
    written: list[int] = field(default_factory=list)
    back: list[tuple[int, PieceMove, int]] = field(default_factory=list)
    box: tuple[Ints, ...] = ()
    own_rows: Piece | None = None
    _stand_ins: list[int] = field(default_factory=list)
    _rows: dict[int, Sequence[int]] = field(default_factory=dict)

    def add(
        self,
        slot: int,
        argument: Argument | None,
        piece: Piece | None = None,
        rows: Sequence[int] = (),
    ) -> None:
        """Adds an argument, and what neighbours send of it; the slot -1: there is none."""
        if rows:
            self._rows[len(self.refs)] = rows
        if piece is not None and not self.box:
            self.box = piece.box
        self.refs.append(slot)
        self.arguments.append(argument)

    def add_stand_in(self, sizes: tuple[int, ...], dtype: torch.dtype) -> None:
        """Adds an argument whose values do not matter."""
        self._stand_ins.append(len(self.refs))
        self.add(-1, Argument(None, sizes, dtype, is_read=False))

    def fit(self, sizes: Mapping[tuple[int, ...], tuple[int, ...]]) -> None:
        """Fits arguments to what the part makes, by the sizes of the whole."""
        args = tuple(fitted(argument, sizes) for argument in self.call.args)
        kwargs = {name: fitted(value, sizes) for name, value in self.call.kwargs.items()}
        self.call = replace(self.call, args=args, kwargs=kwargs)
        for i in self._stand_ins:
            argument = self.arguments[i]
            assert argument is not None
            shape = sizes.get(argument.shape, argument.shape)
            self.arguments[i] = replace(argument, shape=shape)

    def called(self, call: Call, results: Sequence[int], known: Sequence[int]) -> Call:
        """The call, with other slots for its results and with what is ``known`` before all else."""
        n = len(known)
        args, kwargs = self.call.args, self.call.kwargs
        if n:
            bare = replace(self.call, parts=(), writes=())
            shifted = renumbered(bare, 0, lambda slot: slot + n, int, ())
            args = ([Ref(i) for i in range(n)], *shifted.args)
            kwargs = shifted.kwargs
        inner = replace(call, args=args, kwargs=kwargs, results=tuple(range(len(results))))
        if self.own_rows is not None:
            inner = replace(inner, function=of_own_rows(call.function, self.own_rows), several=True)
        part = Part(
            inner,
            [*(None for _ in known), *self.arguments],
            self.kept,
            self.scale,
            [i + n for i in self.written],
            [(i + n, move) for i, move, _ in self.back],
        )
        refs: list[Any] = [Ref(slot) if slot >= 0 else None for slot in (*known, *self.refs)]
        for i, rows in self._rows.items():
            refs[i + n] = [refs[i + n], *map(Ref, rows)]
        return replace(
            call,
            function=part,
            args=(refs, [Ref(slot) for *_, slot in self.back]),
            kwargs={},
            results=tuple(results),
            several=True,
            writes=tuple(dict.fromkeys(self.writes)),
            parts=(),
        )
