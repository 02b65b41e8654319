"""FLOPs and bytes that ops of all frameworks count alike, from sizes alone.

The table of a framework says which formula each kind of op has, and which of its sizes go in. A
multiply-add is 2 FLOPs. A comparison and an elementary function are one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

Count = TypeVar("Count")

#: Bits per element, by the spelling of graphs. A string has no fixed size.
BITS: dict[str, int] = {
    "b8": 8, "i2": 2, "i4": 4, "i8": 8, "i16": 16, "i32": 32, "i64": 64,
    "u2": 2, "u4": 4, "u8": 8, "u16": 16, "u32": 32, "u64": 64,
    "f16": 16, "bf16": 16, "f32": 32, "f64": 64, "c32": 32, "c64": 64, "c128": 128,
    "f4e2m1": 4, "f4e2m1fn": 4, "f6e2m3fn": 6, "f6e3m2fn": 6, "f8e3m4": 8, "f8e4m3": 8,
    "f8e4m3fn": 8, "f8e4m3fnuz": 8, "f8e4m3b11fnuz": 8, "f8e5m2": 8, "f8e5m2fnuz": 8, "f8e8m0": 8,
    "f8e8m0fnu": 8, "str": 0,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Cost:
    """Work of an op.

    Attributes
    ----------
    flops, bytes : int
        What it computes; what it reads and writes.
    known : bool
        Whether the tables have its kind, and every size that they need was known.
    launches : int
        Kernels. Counted by readers whose ops may have bodies of ops.
    """

    flops: int = 0
    bytes: int = 0
    known: bool = True
    launches: int = field(default=0, repr=False)

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.flops + other.flops,
            self.bytes + other.bytes,
            self.known and other.known,
            self.launches + other.launches,
        )

    def times(self, n: int) -> Cost:
        """The same work, ``n`` times."""
        return Cost(self.flops * n, self.bytes * n, self.known, self.launches * n)


def by_kind(count: Callable[[int], Count], kinds: Mapping[int, str]) -> dict[str, Count]:
    """A table of kinds, from texts that name the kinds of so many FLOPs an element.

    >>> by_kind(lambda flops: f"{flops} an element", {1: "Add Relu", 2: "Clip"})
    {'Add': '1 an element', 'Relu': '1 an element', 'Clip': '2 an element'}
    """
    return {kind: count(flops) for flops, names in kinds.items() for kind in names.split()}


def multiply_adds(elements: int, terms: int) -> int:
    """Sums of products: so many terms for each element of the result.

    The terms of a product of matrices are its inner dimension, those of a convolution the weights
    of one filter, those of attention the widths of query and value for each pair of query and key.

    >>> multiply_adds(8 * 4, 16)
    1024
    """
    return 2 * elements * terms


def attention(pairs: int, query_width: int, value_width: int) -> int:
    """Scores of pairs of query and key, and the sum of values that they weight."""
    return multiply_adds(pairs, query_width + value_width)


def recurrent(rows: int, weights: int) -> int:
    """Recurrent layers: each step of each sample, a row, meets every weight."""
    return multiply_adds(rows, weights)


def pool(places: int, window: int, flops: int = 1) -> int:
    """A window at every place, with so many FLOPs for each element that it sees."""
    return flops * places * window


def top_k(elements: int, k: int) -> int:
    """Comparisons of a heap of k: log2 k per element."""
    return elements * max(1, (max(k, 1) - 1).bit_length())


def fft(points: int, length: int) -> int:
    """5 n log2 n per transform of ``length`` n, the usual count for a complex FFT."""
    return round(5 * points * math.log2(max(length, 2)))


def gathered(written: int, indices: int) -> int:
    """Bytes of an op that reads of its first input as many as it writes, and the rest in full."""
    return 2 * written + indices
