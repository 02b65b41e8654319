"""Rows of CSV files by column. A last row that may have been cut off is refused or said.

Spreadsheets take a text that begins with ``=`` for a formula, and may run it. Before such a text
stands an apostrophe in the files that are written, and no longer in what was read. Characters that
a terminal would obey are escaped.
"""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Collection, Iterable, Iterator
from typing import TypeAlias

from loadmaster.base.errors import InputError
from loadmaster.base.files import check_input, read_text
from loadmaster.base.text import escaped
from loadmaster.base.warnings import warn

#: The beginning of a text that a spreadsheet would take for a formula, and of one that was guarded.
_FORMULA, _GUARDED = re.compile("'*[=+@-]"), re.compile("'+[=+@-]")

#: Bytes that a row takes once it is parsed: the limit of input counts them.
_ROW = 800

#: The number of a line, and its cells by column; None where the line is too short.
NumberedRow: TypeAlias = tuple[int, dict[str, str | None]]


def csv_text(rows: Iterable[Iterable[object]]) -> str:
    r"""Rows as the text of a CSV file; None is an empty cell.

    >>> csv_text([("name", "seconds"), ("=HYPERLINK()", -1.5)])
    "name,seconds\n'=HYPERLINK(),-1.5\n"
    """
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(map(_guarded, row) for row in rows)
    return text.getvalue()


def _guarded(cell: object) -> object:
    if not isinstance(cell, str):
        return cell
    text = escaped(cell)
    return f"'{text}" if _FORMULA.match(text) else text


def csv_value(cell: str) -> str:
    """The text that :func:`csv_text` wrote as this cell.

    >>> csv_value("'=HYPERLINK()"), csv_value("'quoted'"), csv_value("-1.5")
    ('=HYPERLINK()', "'quoted'", '-1.5')
    """
    return cell[1:] if _GUARDED.match(cell) else cell


def read_rows(
    path: str | os.PathLike[str], used: Collection[str]
) -> tuple[tuple[str, ...], Iterator[NumberedRow]]:
    """The columns of a CSV file, and its rows.

    Many programs write no line break behind the last line. So does a copy that was cut off, and its
    last value can be the beginning of a longer one. If this value is in a column that is used, a
    warning names it. If the line even lacks columns, it is refused.

    Parameters
    ----------
    path
        Plain or gzipped.
    used : collection of str
        The columns that the caller looks at.

    Raises
    ------
    InputError
        No text, no CSV, or a last line that lacks columns and its line break; also while the rows
        are read.
    """
    source = os.fspath(path)
    text = read_text(path).removeprefix("\ufeff")
    check_input(len(text) + _ROW * text.count("\n"), path)
    reader = csv.DictReader(io.StringIO(text), strict=True)
    try:
        columns = tuple(reader.fieldnames or ())
    except csv.Error as error:
        raise InputError(f"{source}, line 1: {error}") from error
    # A last value in quotes has an end of its own.
    ends = not text or text[-1] in '\r\n"'
    return columns, _rows(reader, source, () if ends else columns, used)


def _rows(
    reader: csv.DictReader[str], source: str, doubtful: tuple[str, ...], used: Collection[str]
) -> Iterator[NumberedRow]:
    """The rows; ``doubtful`` has the columns if the last row may have been cut off."""
    last: NumberedRow | None = None
    try:
        for row in reader:
            if last is not None:
                yield last
            last = reader.line_num, row
    except csv.Error as error:
        raise InputError(f"{source}, line {reader.line_num}: {error}") from error
    if last is not None:
        if doubtful:
            _check_last(last, source, doubtful, used)
        yield last


def _check_last(
    last: NumberedRow, source: str, columns: tuple[str, ...], used: Collection[str]
) -> None:
    number, row = last
    missing = [column for column in columns if row[column] is None]
    if missing:
        raise InputError(
            f"{source} seems to be cut off: its last line, {number}, has no {', '.join(missing)} "
            "and no line break at its end. Give the whole file; if this is all, end it with one"
        )
    if columns[-1] in used and None not in row:
        warn(
            f"{source}, line {number}: the file ends with {columns[-1]} {row[columns[-1]]!r} and "
            "no line break. If it was cut off, this is not the whole value"
        )
