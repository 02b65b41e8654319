"""Pieces: which elements of a tensor a device has, and how one piece is got of others.

A piece is a *box*, some places along each axis of the whole tensor, or some of a box's elements in
their order, which then lie in one row. Where it can be, a piece is taken from another as a view.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

Ints = NDArray[np.int64]
#: The extent of something along an axis.
Selection: TypeAlias = slice | torch.Tensor


class ElsewhereError(Exception):
    """A piece lacks some of what is to be taken from it."""


@dataclass(frozen=True, eq=False)
class Piece:
    """Some elements of a tensor.

    Attributes
    ----------
    sizes : tuple of int
        Of the whole tensor.
    box : tuple of int64 columns
        Ascending places along each axis.
    flat : int64 column or None
        Ascending places in the box's elements, row-major. None: all of them, in the box's shape.
    """

    sizes: tuple[int, ...]
    box: tuple[Ints, ...]
    flat: Ints | None = None

    @classmethod
    def whole(cls, sizes: Sequence[int]) -> Piece:
        """All of a tensor."""
        return cls(tuple(sizes), tuple(np.arange(size) for size in sizes))

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the piece as a tensor."""
        return tuple(map(len, self.box)) if self.flat is None else (len(self.flat),)

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @cached_property
    def key(self) -> tuple[Any, ...]:
        """The same for equal pieces."""
        columns = [*self.box, *([] if self.flat is None else [self.flat])]
        return self.flat is None, self.sizes, *(column.tobytes() for column in columns)

    @cached_property
    def index(self) -> Ints:
        """Places of the elements in the whole tensor, row-major, in the piece's order."""
        places_of_all = np.zeros(1, dtype=np.int64)
        for size, places in zip(self.sizes, self.box, strict=True):
            places_of_all = (places_of_all[:, None] * size + places).ravel()
        return places_of_all if self.flat is None else places_of_all[self.flat]

    def locate(self, index: Ints) -> Ints:
        """Places in the piece, row-major, of elements of the whole tensor that it has."""
        if self.flat is not None:
            return _found(self.index, index)
        at, rest = np.zeros_like(index), index
        stride = 1
        for size, places in zip(reversed(self.sizes), reversed(self.box), strict=True):
            rest, place = np.divmod(rest, max(size, 1))
            at = at + _found(places, place) * stride
            stride *= len(places)
        return at


def _found(places: Ints, wanted: Ints) -> Ints:
    """The index of each of some places among ascending ones."""
    at = np.searchsorted(places, wanted)
    if wanted.size and not (
        len(places) and (places[np.minimum(at, len(places) - 1)] == wanted).all()
    ):
        raise ElsewhereError
    return at


def union(pieces: Sequence[Piece]) -> Piece:
    """The elements that some piece has."""
    some = list({piece.key: piece for piece in pieces if piece.numel}.values()) or list(pieces[:1])
    if len(some) == 1:
        return some[0]
    boxes = list(zip(*(piece.box for piece in some), strict=True))
    differ = [i for i, axes in enumerate(boxes) if len({axis.tobytes() for axis in axes}) > 1]
    flats = [piece.flat for piece in some]
    if len(differ) == 1 and all(flat is None for flat in flats):
        axes = [axis[0] for axis in boxes]
        axes[differ[0]] = np.unique(np.concatenate(boxes[differ[0]]))
        return Piece(some[0].sizes, tuple(axes))
    known = [flat for flat in flats if flat is not None]
    if not differ and len(known) == len(flats):
        flat = np.unique(np.concatenate(known))
        is_all = len(flat) == math.prod(map(len, some[0].box))
        return Piece(some[0].sizes, some[0].box, None if is_all else flat)
    flat = np.unique(np.concatenate([piece.index for piece in some]))
    return Piece(some[0].sizes, Piece.whole(some[0].sizes).box, flat)


def common(one: Piece, other: Piece) -> Piece:
    """The elements that both pieces have."""
    if one.key == other.key:
        return one
    if one.flat is None and other.flat is None:
        pairs = zip(one.box, other.box, strict=True)
        return Piece(one.sizes, tuple(np.intersect1d(a, b, True) for a, b in pairs))
    same_box = all(np.array_equal(a, b) for a, b in zip(one.box, other.box, strict=True))
    if same_box:
        flats = [piece.flat for piece in (one, other) if piece.flat is not None]
        flat = flats[0] if len(flats) == 1 else np.intersect1d(flats[0], flats[1], True)
        return Piece(one.sizes, one.box, flat)
    flat = np.intersect1d(one.index, other.index, True)
    return Piece(one.sizes, Piece.whole(one.sizes).box, flat)


def _selection(places: Ints) -> slice | Ints:
    """Places as a slice, if they follow each other."""
    if not len(places):
        return slice(0, 0)
    first, last = int(places[0]), int(places[-1])
    return slice(first, last + 1) if last - first + 1 == len(places) else places


def _selections(places: Sequence[Ints]) -> tuple[Selection, ...]:
    """An index of a tensor: slices, or if that cannot be, columns that span the axes."""
    selections = [_selection(each) for each in places]
    if all(isinstance(each, slice) for each in selections):
        return tuple(each for each in selections if isinstance(each, slice))
    n = len(places)
    return tuple(
        torch.from_numpy(each.copy()).view([-1 if i == j else 1 for j in range(n)])
        for i, each in enumerate(places)
    )


@dataclass(frozen=True, slots=True)
class PieceMove:
    """The elements that two pieces share, and where they are in each. In ``one_row``:
    of all rows.
    """

    source: tuple[Selection, ...]
    target: tuple[Selection, ...]
    in_one_row: bool

    @classmethod
    def of(cls, source: Piece, target: Piece) -> PieceMove:
        """From one piece to another."""
        if source.flat is None and target.flat is None:
            places = [
                np.intersect1d(a, b, True, True)[1:]
                for a, b in zip(source.box, target.box, strict=True)
            ]
            ends = [_selections([place[i] for place in places]) for i in (0, 1)]
            return cls(ends[0], ends[1], False)
        _, at, to = np.intersect1d(source.index, target.index, True, True)
        return cls(_selections([at]), _selections([to]), True)

    def taken(self, source: torch.Tensor) -> torch.Tensor:
        """The elements of a piece that are moved: a view of it where that can be."""
        return (source.reshape(-1) if self.in_one_row else source)[self.source]

    def put(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Writes what is moved into a piece, which lies in memory row by row."""
        self._at(target)[self.target] = self.taken(source)

    def add(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Adds what is moved to a piece."""
        self._at(target)[self.target] += self.taken(source)

    def _at(self, target: torch.Tensor) -> torch.Tensor:
        return target.view(-1) if self.in_one_row else target


@dataclass(frozen=True, slots=True)
class Shown:
    """A view of a tensor: its sizes, and strides and offset among the tensor's elements.

    ``of`` are the sizes and strides of the tensor itself, where it does not lie in memory row by
    row: ``strides`` and ``offset`` are then those in memory.
    """

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    of: tuple[tuple[int, ...], tuple[int, ...]] | None = None

    @classmethod
    def whole(cls, sizes: Sequence[int]) -> Shown:
        """The tensor itself."""
        strides = np.cumprod([1, *reversed(sizes[1:])])[::-1].tolist() if sizes else []
        return cls(tuple(sizes), tuple(strides), 0)

    def index(self, box: Sequence[Ints]) -> Ints:
        """The elements of the tensor that a box of the view shows, row-major, in the shape of the
        box.
        """
        places_of_all = np.full((1,) * len(box), self.offset, dtype=np.int64)
        for axis, (places, stride) in enumerate(zip(box, self.strides, strict=True)):
            shape = [-1 if i == axis else 1 for i in range(len(box))]
            places_of_all = places_of_all + (places * stride).reshape(shape)
        if self.of is None:
            return places_of_all
        sizes, lies = self.of
        elements, rest = np.zeros_like(places_of_all), places_of_all
        rows = Shown.whole(sizes).strides
        for axis in order_of(sizes, lies) or ():
            if sizes[axis] > 1:
                place, rest = np.divmod(rest, lies[axis])
                elements += place * rows[axis]
        return elements


def order_of(sizes: Sequence[int], strides: Sequence[int]) -> tuple[int, ...] | None:
    """The axes of a tensor as they lie in memory, the one of the longest strides first; None: some
    elements lie in one place.

    >>> order_of((2, 3), (1, 2)), order_of((2, 3), (3, 1)), order_of((2, 3), (0, 1))
    ((1, 0), (0, 1), None)
    """
    if any(size > 1 and not stride for size, stride in zip(sizes, strides, strict=True)):
        return None
    return tuple(sorted(range(len(strides)), key=lambda axis: (-strides[axis], axis)))


@dataclass(frozen=True, slots=True)
class Taking:
    """The way to take an argument from a piece that a device has.

    ``strides`` are those of a view of the piece's elements, from ``offset`` on; None: the elements
    ``at`` are copied, or all of it is taken as it is.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...] | None = None
    offset: int = 0
    at: torch.Tensor | None = None

    @property
    def is_view(self) -> bool:
        """True where a write into it is a write into the piece."""
        return self.at is None

    @classmethod
    def of(cls, held: Piece, shown: Shown, want: Piece) -> Taking:
        """A piece of a view, taken from a piece of the tensor that the view shows."""
        if shown == Shown.whole(held.sizes) and held.key == want.key:
            return cls(want.shape)
        if want.flat is not None:
            index = shown.index([np.arange(size) for size in shown.sizes]).ravel()[want.index]
            places = held.locate(index)
            part = _selection(places)
            if isinstance(part, slice):
                return cls(want.shape, (1,), part.start)
            return cls(want.shape, at=torch.from_numpy(places))
        strides = _strides(held, shown, want.box)
        if strides is not None:
            return cls(want.shape, *strides)
        places = held.locate(shown.index(want.box))
        return cls(want.shape, at=torch.from_numpy(places.ravel()))

    def taken(self, piece: torch.Tensor) -> torch.Tensor:
        """The argument."""
        if self.at is not None:
            return piece.reshape(-1)[self.at].view(self.shape)
        if self.strides is None:
            return piece
        rows = piece.contiguous()
        return rows.as_strided(self.shape, self.strides, rows.storage_offset() + self.offset)


def _strides(held: Piece, shown: Shown, box: Sequence[Ints]) -> tuple[tuple[int, ...], int] | None:
    """Strides and offset with which a box of a view lies in a piece; None: it does not so."""
    if not all(map(len, box)):
        return (1,) * len(box), 0
    first = [places[:1] for places in box]
    offset = int(held.locate(shown.index(first)).ravel()[0])
    strides = []
    for axis, places in enumerate(box):
        line = [places if i == axis else first[i] for i in range(len(box))]
        steps = np.diff(held.locate(shown.index(line)).ravel())
        if len(steps) and (steps != steps[0]).any():
            return None
        strides.append(int(steps[0]) if len(steps) else 1)
    # Each axis is even by itself: then together they are where the corners are.
    ends = [places[[0, -1]] if len(places) > 1 else places for places in box]
    corners = held.locate(shown.index(ends))
    wanted = np.full((1,) * len(box), offset)
    for axis, (places, stride) in enumerate(zip(box, strides, strict=True)):
        shape = [-1 if i == axis else 1 for i in range(len(box))]
        reach = np.array([0, len(places) - 1]) if len(places) > 1 else np.zeros(1, dtype=np.int64)
        wanted = wanted + (reach * stride).reshape(shape)
    return (tuple(strides), offset) if np.array_equal(corners, wanted) else None
