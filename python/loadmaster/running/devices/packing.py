"""Layout of a tensor in memory, and packing to be sent: only the bytes that it shows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod

from loadmaster.running.tape.slots import Slot

#: Bytes that memory is aligned to. Kernels may sum in another order where it is aligned otherwise.
ALIGNED = 64


@dataclass(frozen=True)
class Packed:
    """The bytes that a tensor shows, once each.

    Where they lie side by side they are sent in their order; else row by row, and the receiver lays
    them out again.

    >>> from types import SimpleNamespace
    >>> slot = lambda sizes, strides: SimpleNamespace(sizes=sizes, strides=strides)
    >>> Packed(slot((2, 3), (1, 2))).strides, Packed(slot((2, 3), (1, 2))).is_dense
    ((1, 2), True)
    >>> Packed(slot((2, 3), (8, 1))).strides, Packed(slot((2, 3), (8, 1))).is_dense
    ((3, 1), False)
    >>> Packed(slot((2, 3), (0, 1))).sizes
    (1, 3)
    """

    slot: Slot

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Sizes, with 1 where a stride of 0 repeats."""
        pairs = zip(self.slot.sizes, self.slot.strides, strict=True)
        return tuple(1 if stride == 0 and size else size for size, stride in pairs)

    @cached_property
    def numel(self) -> int:
        """Number of elements."""
        return prod(self.sizes)

    @cached_property
    def is_dense(self) -> bool:
        """True if they lie side by side."""
        expected = 1
        pairs = zip(self.slot.strides, self.sizes, strict=True)
        for stride, size in sorted(pair for pair in pairs if pair[1] != 1):
            if stride != expected:
                return False
            expected *= size
        return True

    @cached_property
    def strides(self) -> tuple[int, ...]:
        """Strides in transit."""
        if self.is_dense:
            return self.slot.strides
        strides, step = [], 1
        for size in reversed(self.sizes):
            strides.append(step)
            step *= size
        return tuple(reversed(strides))

    @cached_property
    def span(self) -> int:
        """Elements of storage from the first that the tensor shows to the last."""
        if not self.numel:
            return 0
        pairs = zip(self.slot.sizes, self.slot.strides, strict=True)
        return 1 + sum((size - 1) * stride for size, stride in pairs)
