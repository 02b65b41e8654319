"""Protobufs of all kinds: what their messages take is told before they are parsed."""

from __future__ import annotations

import os

import numpy as np

from loadmaster.base.files import check_input

# Whether a byte begins a field of text, bytes or a message, by its value.
_FIELD = np.array([byte & 7 == 2 and 0 < byte >> 3 < 16 for byte in range(256)])

#: Bytes that are looked at together.
_PART = 1 << 24


def check_messages(data: bytes, what: str | os.PathLike[str]) -> None:
    """Refuses a protobuf whose messages would take more than the limit.

    A message of two bytes takes a hundred once it is parsed. Fields 1 to 15 that are no longer than
    eight bytes are counted, wherever in the file something looks like one.
    """
    found, array = 0, np.frombuffer(data, dtype=np.uint8)
    for start in range(0, len(array), _PART):
        part = array[start : start + _PART]
        found += int((_FIELD[part[:-1]] & (part[1:] <= 8)).sum())
    check_input(len(data) + 100 * found, what)
