"""Arguments of a call as the column ``args`` has them, from what a framework has."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from loadmaster.model.arguments import DEEPEST, Call

#: Values of a list, and characters of a text, that are arguments; what has more of them is data.
_MOST = 64
_LONGEST = 256

#: Types of PyTorch whose values are told by their names.
_NAMED = frozenset(("device", "dtype", "layout", "memory_format"))


def told(
    positional: Sequence[Any],
    keywords: Mapping[str, Any],
    op_of: Callable[[Any], int | None],
) -> Call:
    """The entry of a call. ``op_of`` gives the op of a tensor, and None for what is no tensor.

    What the column cannot hold, such as a random generator, is None, and so is data: a list of more
    than 64 numbers, a text of more than 256 characters.

    >>> told(["x", (1, 0), float("-inf")], {"data": range(99)}, {"x": 3}.get)
    [[{'op': 3}, [1, 0], '-inf'], {'data': None}]
    """
    call: Call = [[_told(value, op_of, DEEPEST) for value in positional]]
    if keywords:
        call.append({key: _told(value, op_of, DEEPEST) for key, value in keywords.items()})
    return call


def _told(value: Any, op_of: Callable[[Any], int | None], deepest: int) -> Any:
    if isinstance(value, (list, tuple, range)):
        items = [_told(item, op_of, deepest - 1) for item in value] if deepest else []
        is_data = not deepest or (len(items) > _MOST and not any(map(_is_tensor, items)))
        return None if is_data else items
    op = op_of(value)
    return _plain(value) if op is None else {"op": op}


def _is_tensor(value: Any) -> bool:
    return isinstance(value, dict)


def _plain(value: Any) -> Any:
    """Anything that is neither tensor nor list."""
    if value is None or isinstance(value, (bool, np.bool_)):
        return None if value is None else bool(value)
    if isinstance(value, str):
        return str(value) if len(value) <= _LONGEST else None
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, np.dtype):
        return str(value)
    if isinstance(value, (int, np.integer)):
        return int(value) if -(2**63) <= value < 2**64 else None
    if isinstance(value, (float, np.floating)):
        return float(value) if math.isfinite(value) else str(float(value))
    return str(value) if type(value).__name__ in _NAMED else None
