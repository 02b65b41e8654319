"""Parts of calls: what a device calls of an op that devices share.

Where slices of tensors are all that a part needs, it works on those, with sizes among its arguments
made to fit. What counts places along the axis that is cut (a look-up of words, windows), draws
random numbers or is of a kind without a rule works on tensors of whole size that have the part's
slices, and zeros elsewhere; of what it makes the part's own is kept. So random numbers are those of
one device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from loadmaster.base.errors import RunError
from loadmaster.dimensions.rules import rule_of
from loadmaster.running.parallel.pieces import Piece, PieceMove, Taking
from loadmaster.running.tape.calls import Call, Ref, runner

#: Families of rules whose parts need slices alone.
_BY_SLICES = frozenset(
    ("along", "batch-norm", "convolution", "convolution-backward", "einsum", "element",
     "elementwise", "joined", "layer-norm", "likelihood", "likelihood-backward", "loss", "made",
     "padded", "permute", "pool", "product", "put-back", "recurrent", "reduction", "reshape",
     "resize", "same", "stacked")
)  # fmt: skip

#: Words of cuts along which places are counted, by family, or by a part of the kind.
_COUNTED: Mapping[str, tuple[str, ...]] = {
    "product": ("vocabulary", "class"),
    "likelihood": ("class",),
    "likelihood-backward": ("class",),
    "convolution": ("spatial",),
    "convolution-backward": ("spatial",),
    "pool": ("spatial",),
    "resize": ("spatial",),
    "scaled_dot_product": ("row", "key"),
}

#: Beginnings of kinds that make tensors of one number.
_EVEN = ("aten.zeros", "aten.ones", "aten.full", "aten.empty", "aten.new_", "aten.scalar_tensor")

#: Argument in which convolutions say their groups.
_GROUPS = {"convolution": 8, "_convolution": 8, "convolution_backward": 9}


@dataclass(frozen=True, slots=True)
class Argument:
    """A tensor argument of a part.

    Attributes
    ----------
    taking : Taking or None
        How it is taken of what the device has. None: it is zeros, of ``shape`` and ``dtype``.
    inside : Move or None
        Where it goes in a tensor of ``shape`` that is zeros elsewhere; None: it is all.
    is_read : bool
        Whether its values matter.
    order : tuple of int or None
        Its axes as they are to lie in memory, since the whole's do: some kernels count on it. None:
        as they come.
    more : tuple of Move
        Where rows go that neighbours have sent, which come after what the device has.
    """

    taking: Taking | None
    shape: tuple[int, ...]
    dtype: torch.dtype
    inside: PieceMove | None = None
    is_read: bool = True
    order: tuple[int, ...] | None = None
    more: tuple[PieceMove, ...] = ()

    def taken(self, values: Any) -> torch.Tensor:
        """The argument, from what the device has, and from what neighbours have sent."""
        piece, *rows = values if self.more else (values,)
        if self.taking is None or piece is None:
            if not self.is_read:
                return torch.zeros((), dtype=self.dtype).expand(self.shape)
            return torch.zeros(self.shape, dtype=self.dtype)
        tensor = self.taking.taken(piece)
        if self.inside is None:
            return self._laid(tensor)
        whole = torch.zeros(self.shape, dtype=tensor.dtype)
        self.inside.put(tensor, whole)
        for move, sent in zip(self.more, rows, strict=True):
            move.put(sent, whole)
        return self._laid(whole)

    def _laid(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor as it is to lie in memory."""
        if self.order is None or len(self.order) != tensor.dim():
            return tensor
        back = sorted(range(tensor.dim()), key=self.order.__getitem__)
        return tensor.permute(self.order).contiguous().permute(back)


class Part:
    """A function of what a device has, and of the host's numbers: all results of a part of a call.

    Parameters
    ----------
    call : Call
        Its tensors and numbers are slots 0, 1, ... in the order of its arguments.
    arguments : sequence of Argument or None
        Of each of these; None: a number.
    kept : sequence of Move or None
        Per result, what is kept of it; None: all.
    scale : float
        What a part of a mean counts by.
    written : sequence of int
        Arguments that the call changes.
    back : sequence of (int, Move)
        Arguments that it changes which are copies, and where they go in what the device has.
    """

    def __init__(
        self,
        call: Call,
        arguments: Sequence[Argument | None],
        kept: Sequence[PieceMove | None],
        scale: float,
        written: Sequence[int],
        back: Sequence[tuple[int, PieceMove]],
    ) -> None:
        self._arguments, self._kept, self._scale = arguments, kept, scale
        self._written, self._back = written, back
        first = len(arguments)
        results = tuple(first + i for i in range(len(call.results)))
        self._run = runner(replace(call, results=results))
        self._n = first + len(results)
        self._first = first

    def __call__(self, values: Sequence[Any], homes: Sequence[torch.Tensor]) -> list[Any]:
        slots: list[Any] = [
            value if argument is None else argument.taken(value)
            for value, argument in zip(values, self._arguments, strict=True)
        ]
        for i in self._written:
            if slots[i].untyped_storage().data_ptr() != values[i].untyped_storage().data_ptr():
                raise RunError("it changes a tensor that does not lie in memory row by row")
        slots += [None] * (self._n - self._first)
        self._run(slots)
        for (at, back), home in zip(self._back, homes, strict=True):
            back.put(slots[at], home)
        results = slots[self._first :]
        for i, move in enumerate(self._kept):
            if move is not None and results[i] is not None:
                results[i] = move.taken(results[i]).clone()
        if self._scale != 1.0:
            results = [each * self._scale if each is not None else None for each in results]
        return results


def works_on_slices(call: Call, kind: str, words: Sequence[str], pieces: Sequence[Piece]) -> bool:
    """True for a part that needs slices alone, which is cut along dimensions of these ``words``.

    ``made`` are the pieces that it makes.
    """
    if not words:
        return True
    rule = rule_of(kind)
    if rule is None or rule.family not in _BY_SLICES or call.random:
        return False
    counted = [*_COUNTED.get(rule.family, ())]
    counted += [word for part in _COUNTED if part in kind for word in _COUNTED[part]]
    if any(word.startswith(tuple(counted)) for word in words if counted):
        return False
    if rule.family == "made":
        return kind.startswith(_EVEN)
    if rule.family == "put-back":
        axis = int(call.args[2])
        return pieces[0].flat is None and len(pieces[0].box[axis]) == pieces[0].sizes[axis]
    at = _GROUPS.get(kind.split(".")[1])
    is_grouped = at is not None and len(call.args) > at and call.args[at] != 1
    return not is_grouped or all(word.startswith("batch") for word in words)


def fitted(argument: Any, sizes: Mapping[tuple[int, ...], tuple[int, ...]]) -> Any:
    """An argument of a part, with the sizes of what it makes in the place of the whole ones."""
    if isinstance(argument, (list, tuple)):
        same = tuple(argument) if all(type(each) is int for each in argument) else None
        if same:
            return list(sizes.get(same, same))
        return type(argument)(fitted(each, sizes) for each in argument)
    return argument


def counted(call: Call) -> tuple[Call, list[int]]:
    """A call whose slots are numbered from 0 in the order of its arguments; which slots they are.

    One that comes twice has two numbers.
    """
    slots: list[int] = []

    def numbered(argument: Any) -> Any:
        if isinstance(argument, Ref):
            slots.append(argument.slot)
            return Ref(len(slots) - 1)
        if type(argument) in (list, tuple):
            return type(argument)(numbered(each) for each in argument)
        return argument

    args = tuple(map(numbered, call.args))
    kwargs = {name: numbered(value) for name, value in call.kwargs.items()}
    return replace(call, args=args, kwargs=kwargs), slots
