"""Text for people: tables, what is cut, and what a terminal would obey rather than show."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

#: Controls, what turns the direction of text around, and what is no character, as surrogates.
OBEYED = re.compile(
    "[\0-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff\ufffe\uffff]"
)


def escaped(text: str, *, but: str = "") -> str:
    r"""Text that a terminal shows as it is, with escapes for what the terminal would obey.

    Names come from files of others: they may have colours, moves of the cursor and worse in them.
    The characters of ``but`` stay.

    >>> print(escaped("\033[31mred\n"))
    \x1b[31mred\n
    """
    return OBEYED.sub(lambda match: match[0] if match[0] in but else ascii(match[0])[1:-1], text)


def in_lines(lines: Iterable[str]) -> str:
    """Lines as one text. No name in them makes a line of its own, or anything else but itself."""
    return "\n".join(map(escaped, lines))


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of cells as lines with aligned columns; a row may have fewer cells than the first."""
    rows = [[escaped(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in rows if len(row) > i) for i in range(len(rows[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)).rstrip()
        for row in rows
    ]


def shown(value: object, most: int = 100) -> str:
    """A value from a file as messages give it, whatever its length.

    >>> shown("a"), shown(2**20000)
    ("'a'", 'an integer of 20001 bits')
    """
    if isinstance(value, int) and value.bit_length() > 4096:
        return f"an integer of {value.bit_length()} bits"
    try:
        return shortened(repr(value), most)
    except (ValueError, RecursionError):  # Such an integer deep inside, or lists within lists.
        return f"a {type(value).__name__} that is too large to show"


def shortened(text: str, most: int) -> str:
    """The text; one of more characters without its middle. Words that are not long stay whole.

    >>> shortened("a" * 50 + "z" * 50, 40)
    'aaaaaaaaaa (80 characters left out) zzzzzzzzzz'
    >>> shortened("one of those " + "very " * 20 + "many longer words", 40)
    'one of (119 characters left out) words'
    """
    if len(text) <= most:
        return text
    half = max((most - 36) // 2, 10)
    start, end = text[:half], text[-half:]
    if not text[half].isspace() and (at := start.rfind(" ")) >= half // 2:
        start = start[:at]
    if not text[-half - 1].isspace() and -1 < (at := end.find(" ")) <= half // 2:
        end = end[at:]
    start, end = start.rstrip(), end.lstrip()
    return f"{start} ({len(text) - len(start) - len(end)} characters left out) {end}"


def fits(text: str, pieces: Sequence[str]) -> bool:
    """True if a text is these pieces, in their order, with any text for each gap between them.

    >>> fits("gpu13", "gpu*3".split("*")), fits("gpu1", ["gpu1"]), fits("gpu12", ["gpu1"])
    (True, True, False)
    """
    if len(pieces) == 1:
        return text == pieces[0]
    first, *middle, last = pieces
    if not text.startswith(first):
        return False
    at = len(first)
    for piece in middle:
        if (position := text.find(piece, at)) < 0:
            return False
        at = position + len(piece)
    return text[at:].endswith(last)


class Printed:
    r"""Anything that prints as a text of several lines, in notebooks too, and is named by the first
    of them.

    >>> class Found(Printed):
    ...     def __str__(self) -> str:
    ...         return "two of three\nand more"
    >>> Found()
    <Found: two of three>
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "__repr__" not in vars(cls):
            # A dataclass would make one of its fields, which may be arrays or whole plans.
            cls.__repr__ = _named  # type: ignore[method-assign,assignment]

    def _repr_html_(self) -> str:
        import html

        return f"<pre>{html.escape(str(self))}</pre>"


def _named(printed: Printed) -> str:
    first = next(iter(str(printed).splitlines()), "")
    return f"<{type(printed).__name__}: {first}>"


def meant(name: object, known: Iterable[str], listed_by: str = "") -> str:
    """The end of a message that says that there is no such name: the closest, and all; or what
    lists all, where these are many.

    >>> meant("dpp", ["ddp", "fsdp"])
    ": did you mean 'ddp'? There are ddp, fsdp"
    >>> meant("eager", ["ddp", "fsdp"])
    '; there are ddp, fsdp'
    >>> meant("planted", ["planted/1", "trees/1"], "loadmaster instances")
    ": did you mean 'planted/1'? `loadmaster instances` lists them"
    """
    names = list(known)
    close = closest(name, names)
    listed = f"there are {', '.join(names)}" if names else "there is none"
    listed = f"`{listed_by}` lists them" if listed_by else listed
    begun = f": did you mean {close!r}? {listed[0].upper()}" if close else f"; {listed[0]}"
    return begun + listed[1:]


def closest(name: object, known: Iterable[str]) -> str | None:
    """The name that is meant by one that is not there; None: none is like it.

    >>> closest("taget", ["method", "target"]), closest("eager", ["method", "target"])
    ('target', None)
    """
    import difflib

    folded = {one.casefold(): one for one in reversed(list(known))}
    word = str(name).casefold()
    begin = sorted((one for one in folded if len(word) > 2 and one.startswith(word)), key=len)
    close = begin[:1] or difflib.get_close_matches(word, folded, 1)
    return folded[close[0]] if close else None
