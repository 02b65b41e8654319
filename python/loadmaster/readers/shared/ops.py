"""Ops of formats that say a shape for every tensor, known or not: ONNX and TensorFlow.

What tables of costs are made of: a tensor, an op, and the counts that many kinds have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from loadmaster.base.checks import product
from loadmaster.readers.shared.einsum import einsum_flops
from loadmaster.readers.shared.formulas import BITS


class UnknownShapeError(Exception):
    """A cost or shape rule needs a dimension that is known only at run time."""


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """A value before it is computed, as far as it is known.

    ``dtype`` is spelled as in the graph files (``"f32"``; empty when unknown), ``shape`` has None
    for an unknown dimension and is None when even the rank is unknown. ``data`` is the content of
    a tiny constant, ``stored`` the bytes of a sparse one, ``other`` the ONNX type of a value that
    is no tensor (a sequence, an optional). ``origin`` says from which op on its size, or what it
    holds, is not known.
    """

    dtype: str = ""
    shape: tuple[int | None, ...] | None = None
    data: Any = None
    stored: int | None = None
    other: Any = None
    origin: str = ""

    @property
    def known(self) -> bool:
        """True if element type and every dimension are known."""
        return bool(self.dtype) and self.shape is not None and None not in self.shape

    @property
    def nbytes(self) -> int | None:
        """Size in bytes; None when unknown."""
        if self.stored is not None:
            return self.stored
        bits = BITS.get(self.dtype, 0)
        return -(-numel(self) * bits // 8) if self.known and bits else None

    def __str__(self) -> str:
        if self.other is not None:
            return "none"
        if self.shape is None:
            return f"{self.dtype or '?'}[...]"
        return f"{self.dtype or '?'}[{','.join('?' if d is None else str(d) for d in self.shape)}]"


@dataclass(frozen=True, slots=True)
class Op:
    """One op as the cost functions see it; an omitted optional input or output is None."""

    kind: str
    ins: Sequence[Tensor | None]
    outs: Sequence[Tensor | None]
    attrs: Mapping[str, Any] = field(default_factory=dict)


def dims(tensor: Tensor | None) -> tuple[int, ...]:
    """The shape of a tensor, all dimensions known; `UnknownShapeError` otherwise."""
    if tensor is None or tensor.shape is None:
        raise UnknownShapeError
    return tuple(given(d) for d in tensor.shape)


def numel(tensor: Tensor | None) -> int:
    """Number of elements; `UnknownShapeError` when a dimension is unknown."""
    return product(dims(tensor))


def given(dim: int | None) -> int:
    if dim is None:
        raise UnknownShapeError
    return dim


# ---- counts ----------------------------------------------------------------------------------

Count = Callable[[Op], int]


def none(op: Op) -> int:
    return 0


def per_output(flops: int) -> Count:
    return lambda op: flops * numel(op.outs[0])


def per_input(flops: int) -> Count:
    return lambda op: flops * numel(op.ins[0])


def variadic(op: Op) -> int:
    return (len(op.ins) - 1) * numel(op.outs[0])


def einsum(op: Op) -> int:
    """FLOPs by the attribute ``equation``."""
    equation = str(op.attrs.get("equation", ""))
    return einsum_flops(equation, [dims(tensor) for tensor in op.ins])


def or_zero(count: Callable[[Op], int], op: Op) -> tuple[int, bool]:
    try:
        return count(op), True
    except (UnknownShapeError, LookupError, ValueError, ArithmeticError):
        return 0, False  # but for the first: inputs, axes or attributes its kind cannot have
