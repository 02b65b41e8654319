"""The column of call arguments: what each op of a graph was called with, as its framework says.

An entry is None, ``[positional]`` or ``[positional, keywords]``. A tensor is ``{"op": index}``, the
op of the same graph that made it. Everything else is as it was, in the types of JSON; an infinite
number is a text such as ``"-inf"``, and so are dtypes, devices and layouts.

Shapes alone do not tell these: permutations, shapes of views, dimensions of reductions, strides.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from loadmaster.base.errors import InputError
from loadmaster.base.text import shown
from loadmaster.base.units import counted

#: The arguments of an op's call.
Call = list[Any]

#: Lists within lists that one argument may have.
DEEPEST = 8

_TYPES = frozenset((type(None), bool, int, float, str, list, dict))
_LEAST, _MOST = -(2**63), 2**64 - 1


def checked(entries: Any, names: Sequence[str]) -> list[Call | None] | None:
    """A column of arguments that is as it should be; None if no entry says anything. O(size).

    Raises
    ------
    InputError
        An entry of another form, a tensor of no op, or a value that JSON cannot hold. The op is
        named.

    Examples
    --------
    >>> checked([None, [[{"op": 0}, [1, 0]]]], ["w", "permute"])
    [None, [[{'op': 0}, [1, 0]]]]
    """
    if entries is None:
        return None
    if isinstance(entries, str) or not isinstance(entries, Sequence):
        raise InputError(f"ops.args is {shown(entries)}: wants a list with one entry per op")
    if len(entries) != len(names):
        raise InputError(
            f"ops.args has {counted(len(entries), 'value')} where {len(names)} are wanted"
        )
    if _fault(entries, len(names)):
        for name, entry in zip(names, entries, strict=True):
            if fault := _fault([entry], len(names)):
                raise InputError(f"ops.args of {name!r} {fault}")
    return None if all(entry is None for entry in entries) else list(entries)


def _fault(entries: Sequence[Any], n: int) -> str:
    """The fault of the first entry that has one; empty: none has.

    It looks at all entries at once, one level of their lists after the other.
    """
    calls = [entry for entry in entries if entry is not None]
    for call in calls:
        if type(call) is not list or not 1 <= len(call) <= 2 or type(call[0]) is not list:
            return f"is {shown(call)}: wants null, [positional] or [positional, keywords]"
    keywords = [call[1] for call in calls if len(call) == 2]
    for keyword in keywords:
        if type(keyword) is not dict or not all(type(key) is str for key in keyword):
            return f"has the keywords {shown(keyword)}: wants an object"
    level = list(chain.from_iterable(call[0] for call in calls))
    level += chain.from_iterable(keyword.values() for keyword in keywords)
    texts = list(chain.from_iterable(keywords))
    for _ in range(DEEPEST + 1):
        if fault := _fault_of_values(level, n, texts):
            return fault
        texts = []
        lists = [value for value in level if type(value) is list]
        if not lists:
            return ""
        level = list(chain.from_iterable(lists))
    return f"has more than {DEEPEST} lists within lists"


def _fault_of_values(values: list[Any], n: int, texts: list[str]) -> str:
    """The fault of values, whatever is in their lists, or of texts beside them; empty: none."""
    strange = set(map(type, values)) - _TYPES
    if strange:
        value = next(value for value in values if type(value) in strange)
        return f"holds {shown(value)}: wants numbers, texts, lists, null and tensors"
    for value in values:
        if type(value) is dict:
            op = value.get("op") if len(value) == 1 else None
            if type(op) is not int:
                return f'holds {shown(value)}: a tensor is {{"op": index}}'
            if not 0 <= op < n:
                return f"holds the tensor of op {shown(op)}: the graph has ops 0 to {n - 1}"
        elif type(value) is int:
            if not _LEAST <= value <= _MOST:
                return f"holds {shown(value)}: out of range, it has 64 bits at most"
        elif type(value) is float:
            if not math.isfinite(value):
                return f'holds {value}: JSON has no such number, write it as the text "{value}"'
        elif type(value) is str:
            texts.append(value)
    try:
        "".join(texts).encode()
    except UnicodeEncodeError as error:
        return f"has text that is no Unicode: {error}"
    return ""


def tensors(call: Call) -> Iterator[Any]:
    """The ops whose tensors a call takes, in the order of its arguments; some may come twice.

    >>> list(tensors([[{"op": 4}, [{"op": 2}, {"op": 4}]], {"bias": {"op": 1}}]))
    [4, 2, 4, 1]
    """
    yield from _tensors(call[0])
    for part in call[1:]:
        yield from _tensors(list(part.values()))


def _tensors(value: Any) -> Iterator[Any]:
    if isinstance(value, list):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, Mapping):
        yield value["op"]


def renumbered(call: Call, of: Callable[[Any], Any]) -> Call:
    """A call with other ops: ``of`` says for each what is written instead.

    >>> renumbered([[{"op": 4}, 0], {"bias": {"op": 1}}], ["a", "b", "c", "d", "e"].__getitem__)
    [[{'op': 'e'}, 0], {'bias': {'op': 'b'}}]
    """
    positional: Call = [_renumbered(call[0], of)]
    return positional + [
        {key: _renumbered(value, of) for key, value in part.items()} for part in call[1:]
    ]


def _renumbered(value: Any, of: Callable[[Any], Any]) -> Any:
    if isinstance(value, list):
        return [_renumbered(item, of) for item in value]
    if isinstance(value, Mapping):
        return {"op": of(value["op"])}
    return value
