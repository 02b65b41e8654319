"""Varints: the numbers that protobuf writes in seven bits a byte, least first."""

from __future__ import annotations


def varint(data: bytes, at: int) -> tuple[int, int]:
    r"""A number of at most ten bytes at a place, and where it ends.

    A number that is cut off ends one byte past the end of the data.

    >>> varint(b"\xac\x02", 0), varint(b"\xac", 0)
    ((300, 2), (44, 2))
    """
    value = 0
    for shift, byte in enumerate(data[at : at + 10]):
        value |= (byte & 127) << 7 * shift
        if byte < 128:
            return value, at + shift + 1
    return value, len(data) + 1
