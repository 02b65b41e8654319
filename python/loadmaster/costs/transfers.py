"""Measured transfers, as a table: in memory, and as CSV."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from loadmaster.base.csv_rows import csv_text, csv_value, read_rows
from loadmaster.base.errors import InputError, refusing
from loadmaster.base.files import write_bytes

Floats = NDArray[np.float64]

COLUMNS = ("src", "dst", "method", "bytes", "repeat", "seconds_one_way")


@dataclass(frozen=True, eq=False)
class TransferTimes:
    """Measured transfers, one per row.

    Attributes
    ----------
    links : tuple of (src, dst, method)
        Names of the devices (empty: unknown), and the method of transfer.
    link : int64 [n]
        Index into ``links``.
    bytes : float64 [n]
    seconds : float64 [n]
        Time of one way.

    Examples
    --------
    >>> times = TransferTimes.of({"tcp": ([1024, 2048], [5e-6, 6e-6])})
    >>> times.links, len(times.seconds)
    ((('', '', 'tcp'),), 2)
    """

    links: tuple[tuple[str, str, str], ...]
    link: NDArray[np.int64]
    bytes: Floats
    seconds: Floats

    @classmethod
    def of(
        cls, arrays: Mapping[str | tuple[str, str, str], tuple[ArrayLike, ArrayLike]]
    ) -> TransferTimes:
        """A table from pairs (bytes, seconds) by method, or by (source, destination, method)."""
        links = [("", "", key) if isinstance(key, str) else key for key in arrays]
        sizes, seconds, index = [], [], []
        for i, (link, (size, time)) in enumerate(zip(links, arrays.values(), strict=True)):
            with refusing(f"link {title(link)}: no numbers", TypeError, ValueError):
                pair = np.asarray(size, dtype=np.float64), np.asarray(time, dtype=np.float64)
            if pair[0].shape != pair[1].shape or pair[0].ndim != 1:
                raise InputError(
                    f"link {title(link)}: {pair[0].shape} sizes and {pair[1].shape} times"
                )
            sizes.append(pair[0])
            seconds.append(pair[1])
            index.append(np.full(len(pair[0]), i, dtype=np.int64))
        if not links:
            raise InputError("no transfers: a fit wants some of at least two sizes per link")
        times = cls(
            tuple(links), np.concatenate(index), np.concatenate(sizes), np.concatenate(seconds)
        )
        for name, values in (("bytes", times.bytes), ("seconds", times.seconds)):
            bad = np.flatnonzero(~((values > 0) & np.isfinite(values)))
            if len(bad):
                at = int(bad[0])
                raise InputError(
                    f"link {title(times.links[times.link[at]])}, row {at + 1}: {name} is "
                    f"{values[at]}, wants a finite number > 0"
                )
        return times

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> TransferTimes:
        """A table from CSV.

        The columns are ``bytes`` and ``seconds_one_way`` (or ``seconds``), and those of ``src``,
        ``dst`` and ``method`` that tell links apart. Other columns are ignored.

        Raises
        ------
        InputError
            A missing column, a value that is no positive number, or a last line that was cut off
            (the error names the line).

        Warns
        -----
        UserWarning
            The file ends within a line whose last value may have been cut off.
        """
        head, rows = read_rows(path, (*COLUMNS, "seconds"))
        column = next((c for c in ("seconds_one_way", "seconds") if c in head), None)
        if column is None or "bytes" not in head:
            raise InputError(
                f"{os.fspath(path)} has the columns {', '.join(head) or 'none'}; wants bytes, "
                "seconds_one_way, and src, dst and method where they differ"
            )
        columns: dict[tuple[str, str, str], tuple[list[float], list[float]]] = {}
        for number, row in rows:
            src, dst, method = (csv_value(row.get(c) or "") for c in ("src", "dst", "method"))
            sizes, times = columns.setdefault((src, dst, method), ([], []))
            sizes.append(_number(row["bytes"], "bytes", path, number))
            times.append(_number(row[column], column, path, number))
        if not columns:
            raise InputError(f"{os.fspath(path)} has no rows")
        return cls.of(columns)  # type: ignore[arg-type]

    def write(self, path: str | os.PathLike[str]) -> None:
        """Writes a CSV file that :meth:`read` reads."""
        rows: list[tuple[object, ...]] = [COLUMNS]
        repeats: dict[tuple[int, float], int] = {}
        for link, size, seconds in zip(
            self.link.tolist(), self.bytes.tolist(), self.seconds.tolist(), strict=True
        ):
            repeat = repeats[link, size] = repeats.get((link, size), -1) + 1
            rows.append((*self.links[link], int(size), repeat, f"{seconds:.6g}"))
        write_bytes(path, csv_text(rows).encode())


def title(link: tuple[str, str, str]) -> str:
    """Name of a link, for people."""
    src, dst, method = link
    return " ".join(part for part in (f"{src} -> {dst}" if src or dst else "", method) if part)


def _number(text: str | None, column: str, path: str | os.PathLike[str], line: int) -> float:
    try:
        value = float(text or "")
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise InputError(
            f"{os.fspath(path)}, line {line}: {column} is {text!r}, wants a finite number > 0"
        )
    return value
