"""Texts of the command line as values; an error names the flag and what it wants."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from loadmaster.base.errors import InputError
from loadmaster.base.units import parse_seconds


def whole(flag: str, text: str) -> int:
    """A whole number."""
    try:
        return int(text)
    except ValueError:
        raise InputError(f"{flag}: {text!r} is no whole number") from None


def at_least_one(flag: str, text: str) -> int:
    """A whole number above 0."""
    number = whole(flag, text)
    if number < 1:
        raise InputError(f"{flag}: {text!r} is not at least 1")
    return number


def number(flag: str, text: str | None) -> float | None:
    """A number, if there is a text."""
    try:
        return None if text is None else float(text)
    except ValueError:
        raise InputError(f"{flag}: {text!r} is no number") from None


def seconds(flag: str, text: str | None) -> float | None:
    """Seconds of a text with a unit, such as 30s."""
    return None if text is None else parse_seconds(text, flag)


def halves(flag: str, texts: Sequence[str]) -> list[tuple[str, str]]:
    """The two sides of the last '=' of each text."""
    parted = [text.rpartition("=") for text in texts]
    for text, (left, _, right) in zip(texts, parted, strict=True):
        if not left or not right:
            raise InputError(f"{flag} {text!r} has no two sides of a '='; see --help")
    return [(left, right) for left, _, right in parted]


def per_device(flag: str, texts: Sequence[str]) -> dict[str, str]:
    """Sizes by device; a size without a device is for all devices."""
    from loadmaster.rules.constraints import EVERY

    return dict(halves(flag, [text if "=" in text else f"{EVERY}={text}" for text in texts]))


def options(texts: Sequence[str]) -> dict[str, Any]:
    """Options of a method from KEY=VALUE; a value is JSON where it reads as JSON, else text."""
    by_key: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise InputError(f"--option {text!r}: wants KEY=VALUE")
        try:
            by_key[key.replace("-", "_")] = json.loads(value)
        except ValueError:
            by_key[key.replace("-", "_")] = value
    return by_key


def options_by_method(methods: Sequence[str], texts: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Options of each method from METHOD.KEY=VALUE."""
    texts_of: dict[str, list[str]] = {name: [] for name in methods}
    for text in texts:
        method, dot, option = text.partition(".")
        if not dot or method not in texts_of:
            raise InputError(
                f"--option {text!r}: wants METHOD.KEY=VALUE, with a method of {', '.join(methods)}"
            )
        texts_of[method].append(option)
    return {name: options(texts) for name, texts in texts_of.items()}
