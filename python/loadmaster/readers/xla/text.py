"""Common parts of texts of programs: brackets, commas outside of them, UTF-8."""

from __future__ import annotations

import re

from loadmaster.base.errors import InputError
from loadmaster.base.files import check_input

#: Bytes that a line takes once it is parsed.
_LINE = 1500

#: Brackets and commas. Quoted text, arrows and comparisons match too, so as to be skipped.
_MARK = re.compile(r"\"(?:[^\"\\]|\\.)*\"|->|<=|[()\[\]{}<>,]")


def closing(text: str, start: int) -> int:
    """The position at which the bracket at ``start`` closes; -1 if it does not.

    >>> closing("f(a, [b]) + c", 1)
    8
    """
    depth = 0
    for mark in _MARK.finditer(text, start):
        if mark[0] in "([{<":
            depth += 1
        elif mark[0] in ")]}>":
            depth -= 1
            if depth == 0:
                return mark.start()
    return -1


def groups(text: str) -> list[str]:
    """The contents of parentheses, those of inner ones included in the outer.

    >>> groups('reducer(%a: f32 loc("x"(#loc1)), %b: f32) (%c: i32) {')
    ['%a: f32 loc("x"(#loc1)), %b: f32', '%c: i32']
    """
    contents, start = [], text.find("(")
    while start >= 0 and (end := closing(text, start)) >= 0:
        contents.append(text[start + 1 : end])
        start = text.find("(", end)
    return contents


def split(text: str) -> list[str]:
    """Parts between commas that stand in no brackets.

    >>> split("tensor<2xf32>, (a, b) -> c")
    ['tensor<2xf32>', '(a, b) -> c']
    """
    parts, depth, last = [], 0, 0
    for mark in _MARK.finditer(text):
        if mark[0] in "([{<":
            depth += 1
        elif mark[0] in ")]}>":
            depth -= 1
        elif mark[0] == "," and depth == 0:
            parts.append(text[last : mark.start()].strip())
            last = mark.end()
    return [part for part in (*parts, text[last:].strip()) if part]


def decoded(data: bytes) -> str:
    """Text of a file, which must be UTF-8, and of no more lines than the limit of input allows."""
    check_input(len(data) + _LINE * data.count(b"\n"), "its text")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise InputError(f"line {line}: not UTF-8 text") from None
