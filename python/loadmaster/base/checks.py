"""Checks of arguments: the error names the argument, what it is, and what is wanted.

The same rules hold everywhere: numbers of numpy are welcome, a bool is no number, NaN is refused.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Integral, Real
from typing import Any, TypeGuard

from loadmaster.base.errors import InputError
from loadmaster.base.text import shown

_SURROGATE = re.compile("[\ud800-\udfff]")

#: Seconds that no work lasts: a longer time limit, infinity too, means this one.
YEAR = 3.2e7


def is_integer(value: object) -> TypeGuard[int]:
    """True if a value is an integer.

    >>> import numpy as np
    >>> is_integer(np.uint8(3)), is_integer(3.0), is_integer(True)
    (True, False, False)
    """
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_number(value: object) -> TypeGuard[float]:
    """True if a value is a real number; infinity is one, NaN is not.

    >>> is_number(2), is_number(float("nan")), is_number(True)
    (True, False, False)
    """
    return isinstance(value, Real) and not isinstance(value, bool) and value == value


def integer(
    name: str, value: object, least: int = 1, most: float = float("inf"), *, wants: str = ""
) -> int:
    """An integer from ``least`` to ``most``.

    >>> integer("groups", 0)
    Traceback (most recent call last):
    loadmaster.base.errors.InputError: groups is 0: wants an integer, at least 1
    >>> integer("groups", 9, most=8)
    Traceback (most recent call last):
    loadmaster.base.errors.InputError: groups is 9: wants an integer from 1 to 8
    """
    if is_integer(value) and least <= value <= most:
        return int(value)
    bounds = f", at least {least}" if most == float("inf") else f" from {least} to {most}"
    raise InputError(f"{name} is {shown(value)}: wants {wants or f'an integer{bounds}'}")


def count(name: str, value: object) -> int:
    """A number of steps or rounds that are run and kept: at least one, and at most a million.

    >>> count("steps", 10**12)
    Traceback (most recent call last):
    loadmaster.base.errors.InputError: steps is 1000000000000: wants an integer from 1 to 1000000
    """
    return integer(name, value, 1, 10**6, wants="an integer from 1 to 1000000")


def number(name: str, value: object, wants: str, holds: Callable[[float], bool]) -> float:
    """A number of which a condition holds; ``wants`` says the condition in words.

    >>> number("balance", 0.5, "a number, at least 1", lambda v: v >= 1)
    Traceback (most recent call last):
    loadmaster.base.errors.InputError: balance is 0.5: wants a number, at least 1
    """
    if is_number(value):
        try:
            as_float = float(value)
        except OverflowError:  # An integer beyond all floats.
            as_float = math.inf if value > 0 else -math.inf
        if holds(as_float):
            return as_float
    raise InputError(f"{name} is {shown(value)}: wants {wants}")


def product(sizes: Sequence[int]) -> int:
    """The product of sizes of a file, of which there may be any number.

    Raises
    ------
    InputError
        It is more than 2^64, or there are more than 64 sizes.

    Examples
    --------
    >>> product((8, 16)), product(())
    (128, 1)
    """
    if len(sizes) <= 64 and (total := math.prod(sizes)) <= 2**64:
        return total
    raise InputError(f"the product of {shown(list(sizes))} is out of range: more than 2^64")


def positive(name: str, value: object) -> float:
    """A finite number above 0."""
    return number(name, value, "a number > 0", lambda v: 0 < v < float("inf"))


def not_negative(name: str, value: object) -> float:
    """A finite number, at least 0."""
    return number(name, value, "a number >= 0", lambda v: 0 <= v < float("inf"))


def share(name: str, value: object) -> float:
    """A number from 0 to 1."""
    return number(name, value, "a number from 0 to 1", lambda v: 0 <= v <= 1)


def time_limit(value: object) -> float:
    """Seconds that work may take, :data:`YEAR` at most."""
    return min(number("time_limit", value, "seconds >= 0", lambda v: v >= 0), YEAR)


def seed(value: object) -> int:
    """A seed of a random number generator."""
    return integer("seed", value, 0, 2**64 - 1, wants="an integer from 0 to 2^64 - 1")


def text(name: str, value: object) -> str:
    """A text that files can hold: half of a surrogate pair is none."""
    if isinstance(value, str) and not _SURROGATE.search(value):
        return value
    raise InputError(f"{name} is {shown(value)}: wants a text")


def flag(name: str, value: object) -> bool:
    """True or False."""
    if isinstance(value, bool):
        return value
    raise InputError(f"{name} is {shown(value)}: wants True or False")


def one_of(name: str, value: object, known: Iterable[str]) -> None:
    """Refuses a word that is not known."""
    words = tuple(known)
    if value not in words:
        raise InputError(f"{name} is {shown(value)}: wants one of {', '.join(words)}")


def known_keys(name: str, row: Mapping[str, Any], known: Iterable[str]) -> None:
    """Refuses a table with a key that is not known."""
    words = sorted(known)
    unknown = sorted(set(row) - set(words))
    if unknown:
        raise InputError(f"{name}: unknown key {unknown[0]!r}; known are {', '.join(words)}")
