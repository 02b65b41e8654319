"""Markup of a report: HTML, and Plotly's figures as plain data."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from loadmaster.base.quoting import markup

#: A figure as Plotly has it, ``data`` and ``layout``. Building one needs no plotly.
Figure = dict[str, Any]

#: Words of more characters may be broken anywhere; shorter ones, as names of devices are, never.
_LONGEST_WORD = 24

#: Rows of a long table that are seen before it is opened.
_SEEN = 12

#: On a phone, the rows of a table of at least so many columns are lists of their own.
_MANY = 4


def text(words: str) -> str:
    """Words with HTML escaped."""
    return markup(words)


def label(words: str) -> str:
    """Words within a figure of Plotly, which takes some elements of HTML for its own."""
    return words.replace("&", "&amp;").replace("<", "&lt;")


def breakable(words: str) -> str:
    """Words with HTML escaped; long ones may be broken behind a dot, a slash or an underscore.

    >>> breakable("encoder.layer.*.attention.self")
    'encoder.<wbr>layer.<wbr>*.<wbr>attention.<wbr>self'
    """
    if not _breaking(words):
        return text(words)
    return re.sub(r"(?<=\w|\*)([./_]+)(?=[\w*])", r"\1<wbr>", text(words))


def definitions(rows: Iterable[tuple[str, str]]) -> str:
    """Names and what they are."""
    pairs = (f"<dt>{text(name)}</dt><dd>{text(words)}</dd>" for name, words in rows)
    return f"<dl>{''.join(pairs)}</dl>"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of words. A row may have fewer cells than the head; its last cell then spans them."""
    lines = []
    for row in rows:
        cells = []
        for i, words in enumerate(row):
            rest = len(head) - i if i == len(row) - 1 else 1
            span = f' colspan="{rest}"' if rest > 1 else ""
            cells.append(
                f'<td data-head="{text(head[i])}"{_breaking(words)}{span}>{breakable(words)}</td>'
            )
        lines.append(f"<tr>{''.join(cells)}</tr>")
    top = "".join(f"<th>{text(name)}</th>" for name in head)
    many = ' class="many"' if len(head) >= _MANY else ""
    return f"<table{many}><thead><tr>{top}</tr></thead><tbody>{''.join(lines)}</tbody></table>"


def long_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of which the first rows are seen, and the others open with a click."""
    if len(rows) <= _SEEN + 1:
        return table(head, rows)
    more = f"<summary>{len(rows) - _SEEN} more rows</summary>{table(head, rows[_SEEN:])}"
    return f"{table(head, rows[:_SEEN])}<details>{more}</details>"


def joined(rows: Sequence[Sequence[str]]) -> list[Sequence[str]]:
    """Rows one after another that differ in their first cell alone, as one row.

    >>> joined([("gpu0", "1 GiB"), ("gpu1", "1 GiB"), ("gpu2", "1 GiB"), ("cpu", "0 B")])
    [('gpu0 to gpu2', '1 GiB'), ('cpu', '0 B')]
    """
    joined_rows: list[Sequence[str]] = []
    for _, alike in groupby(rows, key=lambda row: tuple(row[1:])):
        first, *others = alike
        name = f"{first[0]} to {others[-1][0]}" if others else first[0]
        joined_rows.append((name, *first[1:]))
    return joined_rows


def _breaking(words: str) -> str:
    longest = max(map(len, words.split()), default=0)
    return ' class="long"' if longest > _LONGEST_WORD else ""


@dataclass(frozen=True)
class Bar:
    """A row of a bar chart.

    Attributes
    ----------
    name : str
    length : float
        In the chart's unit.
    words : str
        What stands beside the bar.
    colour : str
    mark : float or None
        Where a bar has a line across it, in the chart's unit.
    """

    name: str
    length: float
    words: str
    colour: str
    mark: float | None = None


def bars(rows: Sequence[Bar], whole: float | None = None) -> str:
    """Horizontal bars, a table: name, bar, words. The longest, or ``whole``, takes all the room."""
    most = whole or max((max(row.length, row.mark or 0.0) for row in rows), default=0.0) or 1.0
    lines = []
    for row in rows:
        line = "" if row.mark is None else f'<u style="left:{_percent(row.mark / most)}"></u>'
        bar = f'<i style="width:{_percent(row.length / most)};background:{row.colour}"></i>{line}'
        lines.append(
            f'<tr><th scope="row"{_breaking(row.name)}>{breakable(row.name)}</th>'
            f'<td class="bar"><div>{bar}</div></td><td>{text(row.words)}</td></tr>'
        )
    return f'<table class="bars"><tbody>{"".join(lines)}</tbody></table>'


def legend(colours: Mapping[str, str]) -> str:
    """Meanings of colours."""
    spans = (
        f'<span><i style="background:{colour}"></i>{text(name)}</span>'
        for name, colour in colours.items()
    )
    return f'<p class="legend">{"".join(spans)}</p>'


def section(title: str, *parts: str) -> str:
    """A part of the page under a heading; empty where its parts are."""
    inner = "".join(parts)
    return f"<section><h2>{text(title)}</h2>{inner}</section>" if inner else ""


#: Buttons below a figure, by what ``page.start.js`` does at a click.
_VIEWS = {"in": "zoom in", "out": "out", "all": "all", "back": "earlier", "on": "later"}


def figure(name: str, description: str) -> str:
    """The place of one of the page's figures, which script draws, and buttons that zoom it."""
    buttons = "".join(
        f'<button type="button" data-view="{view}">{words}</button>'
        for view, words in _VIEWS.items()
    )
    return (
        f'<div class="tools views" role="group" aria-label="zoom of {text(description)}" '
        f'data-figure="{name}">{buttons}</div><div id="{name}"></div>'
    )


def paragraph(words: str) -> str:
    """Words in lines; empty for none."""
    return f"<p>{text(words)}</p>" if words else ""


def folded(summary: str, words: str) -> str:
    """Words that open with a click on their summary; empty for none."""
    if not words:
        return ""
    return f"<details><summary>{text(summary)}</summary>{paragraph(words)}</details>"


def _percent(share: float) -> str:
    return f"{100 * min(max(share, 0.0), 1.0):.2f}%"
