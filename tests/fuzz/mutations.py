"""Mutations of files: of bytes, of the words of a text, of JSON, of the fields of a protobuf."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable
from copy import deepcopy
from datetime import date, datetime, time
from random import Random
from typing import Any

import tomli_w

_INTEGERS = [
    0, 1, -1, 2, 7, 255, 2**15, 2**31 - 1, 2**31, 2**32, 2**40, 2**53, 2**62, 2**63 - 1, 2**63,
    2**64 - 1, 2**64, -(2**31), -(2**63), 10**30, 10**400,
]  # fmt: skip
_FLOATS = [0.5, -0.0, 1e-9, 5e-324, 1e16, 1e300, 1.7e308, -1e300, float("inf"), float("nan")]
_OTHERS = [None, True, False, "", "a", "\ud800", "\0", "x" * 5000, [], {}, [[]], [0], {"a": 0}]
_DATES = [date(1979, 5, 27), time(7, 32), datetime(1979, 5, 27, 7, 32)]

#: Stands for a number of more digits than Python reads.
_DIGITS = "<digits>"

_EXTREMES = [*_INTEGERS, *_FLOATS, *_OTHERS]

#: Texts in place of a number.
_NUMBERS = [*map(str, _INTEGERS), "-0.0", "5e-324", "1.7e308", "1e999", "nan", "inf", "1.", "0x7f"]

Mutation = Callable[[bytes, bytes, Random], bytes]


def damaged(data: bytes, other: bytes, random: Random) -> bytes:
    """Some bytes changed, dropped, doubled, or taken from another file; perhaps cut off."""
    out = bytearray(data)
    for _ in range(random.randint(1, 6)):
        at, size = random.randrange(len(out) + 1), random.randint(1, 9)
        match random.randrange(6):
            case 0:
                out[at : at + 1] = random.randbytes(1)
            case 1 if at < len(out):
                out[at] ^= 1 << random.randrange(8)
            case 2:
                del out[at : at + size]
            case 3:
                out[at:at] = out[at : at + size]
            case 4:
                start = random.randrange(len(other) + 1)
                out[at : at + random.choice((0, size))] = other[start : start + size**2]
            case _ if random.random() < 0.2:
                del out[at:]
    return bytes(out)


def spliced(data: bytes, other: bytes, random: Random) -> bytes:
    """The beginning of a file and the end of another."""
    return data[: random.randrange(len(data) + 1)] + other[random.randrange(len(other) + 1) :]


def reworded(data: bytes, other: bytes, random: Random) -> bytes:
    """Words and lines of a text changed: numbers to extreme ones, the rest to others."""
    words, others = _words(data), _words(other)
    for _ in range(random.randint(1, 4)):
        at = random.randrange(len(words) + 1)
        match random.randrange(5):
            case 0 | 1:
                numbers = [i for i, word in enumerate(words) if word[:1].isdigit()]
                if numbers:
                    words[random.choice(numbers)] = random.choice(_NUMBERS).encode()
            case 2:
                words[at : at + 1] = [random.choice(others or [b""])]
            case 3:
                del words[at : at + random.randint(1, 9)]
            case _:
                start, size = random.randrange(len(others) + 1), random.randint(1, 30)
                words[at:at] = others[start : start + size]
    return b"".join(words)


def _words(data: bytes) -> list[bytes]:
    """Runs of letters and digits, and what stands between them, character by character."""
    return re.findall(rb"[A-Za-z0-9]+|.", data, re.S)


# ---- JSON and TOML ------------------------------------------------------------------------------


def restructured(data: bytes, other: bytes, random: Random) -> bytes:
    """Values of JSON replaced by extreme ones or by others, dropped, doubled, nested deeply."""
    document = json.loads(data)
    _restructure(document, json.loads(other), _EXTREMES, random)
    return _dumped(document)


def retabled(data: bytes, other: bytes, random: Random) -> bytes:
    """The same for TOML, which has dates, and no null."""
    document = tomllib.loads(data.decode())
    extremes = [value for value in _EXTREMES if value is not None] + _DATES + [_DIGITS]
    _restructure(document, tomllib.loads(other.decode()), extremes, random)
    text = tomli_w.dumps(document).encode("utf-8", "surrogatepass")
    return text.replace(f'"{_DIGITS}"'.encode(), b"9" * 5000)


def _restructure(document: Any, other: Any, extremes: list[Any], random: Random) -> None:
    """Changes a few values of a document where they are."""
    for _ in range(random.randint(1, 3)):
        places = _places(document)
        if not places:
            break
        holder, key = random.choice(places)
        match random.randrange(6):
            case 0 | 1:
                holder[key] = deepcopy(random.choice(extremes))
            case 2:
                source, at = random.choice(_places(other) or [(holder, key)])
                holder[key] = deepcopy(source[at])
            case 3:
                del holder[key]
            case 4 if isinstance(holder, list):
                holder.insert(key, deepcopy(holder[random.randrange(len(holder))]))
            case 4:
                holder[str(random.choice(extremes))] = holder.pop(key)
            case _ if random.random() < 0.1:
                holder[key] = _nested(random.choice((30, 300, 3000)))


def _places(document: Any) -> list[tuple[Any, Any]]:
    """Every value in a document, as what holds it and its key there."""
    found: list[tuple[Any, Any]] = []
    holders = [document]
    while holders:
        holder = holders.pop()
        keys = list(holder) if isinstance(holder, dict) else range(len(holder))
        found += [(holder, key) for key in keys]
        holders += [holder[key] for key in keys if isinstance(holder[key], dict | list)]
    return found


def _nested(depth: int) -> Any:
    made: list[Any] = []
    for _ in range(depth):
        made = [made]
    return made


def _dumped(document: Any) -> bytes:
    try:
        return json.dumps(document).encode()
    except RecursionError:
        return b"[" * 3000


# ---- protobuf -----------------------------------------------------------------------------------

#: A field: its key, and its value as a number, as bytes, or as fields where these add up.
Fields = list[list[Any]]


def refielded(data: bytes, other: bytes, random: Random) -> bytes:
    """Fields of a protobuf, at any depth, changed, dropped, doubled or taken from another one."""
    fields = _parsed(data)
    if not fields:
        return damaged(data, other, random)
    for _ in range(random.randint(1, 3)):
        messages = _messages(fields)
        message = random.choice(messages)
        if not message:
            continue
        at = random.randrange(len(message))
        match random.randrange(6):
            case 0 | 1 | 2:
                message[at][1] = _changed(message[at][1], random)
            case 3:
                del message[at]
            case 4:
                message.insert(random.randrange(len(message) + 1), deepcopy(message[at]))
            case _:
                source = random.choice(_messages(_parsed(other) or fields))
                if source:
                    message[at] = deepcopy(random.choice(source))
    return _encoded(fields)


def _changed(value: Any, random: Random) -> Any:
    if isinstance(value, int):
        return random.choice(_INTEGERS) % 2**64
    if isinstance(value, list):
        return random.choice(([], value[::-1], value * 2, b"", b"\xff\xfe"))
    made = [b"", b"\xff", b"x" * 3000, value * 2, value[:-1], random.randbytes(8)]
    return random.choice(made)


def _messages(fields: Fields) -> list[Fields]:
    found, at = [fields], 0
    while at < len(found):
        found += [value for _, value in found[at] if isinstance(value, list)]
        at += 1
    return found


def _parsed(data: bytes) -> Fields | None:
    """The fields that bytes are; None if they are none."""
    fields: Fields = []
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(data, at)
            fields.append([key, value])
            continue
        size, at = _varint(data, at) if kind == 2 else ({1: 8, 5: 4}.get(kind, len(data)), at)
        if not key >> 3 or at + size > len(data):
            return None
        part = data[at : at + size]
        # Short texts may look like fields: either way is a mutation.
        inner = _parsed(part) if kind == 2 and size > 1 else None
        fields.append([key, inner or part])
        at += size
    return fields if at == len(data) else None


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift, byte in enumerate(data[at : at + 10]):
        value |= (byte & 127) << 7 * shift
        if byte < 128:
            return value, at + shift + 1
    return 0, len(data) + 1


def _encoded(fields: Fields) -> bytes:
    out = bytearray()
    for key, value in fields:
        out += _number(key)
        if isinstance(value, int):
            out += _number(value)
        else:
            part = _encoded(value) if isinstance(value, list) else value
            out += (_number(len(part)) if key & 7 == 2 else b"") + part
    return bytes(out)


def _number(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


# ---- by kind of file ----------------------------------------------------------------------------


def _one_of(*kinds: Mutation) -> Callable[[bytes, list[bytes], Random], bytes]:
    """One of the mutations, sometimes two."""

    def mutate(data: bytes, others: list[bytes], random: Random) -> bytes:
        for _ in range(random.choice((1, 1, 1, 2))):
            other = random.choice(others)
            try:
                data = random.choice(kinds)(data, other, random)
            except (ValueError, RecursionError):  # No longer JSON: bytes are left to change.
                data = damaged(data, other, random)
        return data

    return mutate


binary = _one_of(damaged, spliced)
plain_text = _one_of(damaged, spliced, reworded, reworded)
json_text = _one_of(damaged, spliced, reworded, *[restructured] * 4)
toml_text = _one_of(damaged, spliced, reworded, *[retabled] * 4)
protobuf = _one_of(damaged, spliced, *[refielded] * 4)
protobuf_or_text = _one_of(damaged, spliced, reworded, *[refielded] * 4)
