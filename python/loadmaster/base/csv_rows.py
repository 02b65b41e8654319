"""Rows of CSV files by column. A last row that may have been cut off is refused or said."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Collection, Iterator
from typing import TypeAlias

from loadmaster.base.errors import InputError
from loadmaster.base.files import check_input, read_text
from loadmaster.base.warnings import warn

#: Bytes that a row takes once it is parsed: the limit of input counts them.
_ROW = 800

#: The number of a line, and its cells by column; None where the line is too short.
NumberedRow: TypeAlias = tuple[int, dict[str, str | None]]


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
