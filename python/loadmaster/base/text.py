"""Text for people: rows of cells as a table, and what a terminal would obey rather than show."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

#: Controls, what turns the direction of text around, and surrogates, which are no characters.
_OBEYED = re.compile("[\0-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def escaped(text: str, *, but: str = "") -> str:
    r"""Text that a terminal shows as it is, with escapes for what the terminal would obey.

    Names come from files of others: they may have colours, moves of the cursor and worse in them.
    The characters of ``but`` stay.

    >>> print(escaped("\033[31mred\n"))
    \x1b[31mred\n
    """
    return _OBEYED.sub(lambda found: found[0] if found[0] in but else ascii(found[0])[1:-1], text)


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
