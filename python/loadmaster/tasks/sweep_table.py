"""The table of a sweep: a row per case, on disk as soon as the case is done.

Rows are appended to a CSV file. A Parquet file is written whole, from the CSV file beside it. No
row has a line break in it. So if the last line has no end, the machine stopped while it was being
written. This line is dropped, and its case is run again.

Several sweeps may work on one table. A lock file beside it has two kinds of locks: one for all
that changes the table, and one for each case, held by the sweep that runs the case.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

from loadmaster.base.csv_rows import csv_text, csv_value
from loadmaster.base.errors import InputError, importing, refusing
from loadmaster.base.files import check_target, is_special, system_errors, write_bytes
from loadmaster.base.locks import FIRST, LockFile

#: Most characters of an error or a name in the table.
_MOST_TEXT = 4000


class Key(NamedTuple):
    """The inputs of a case, which identify its row.

    ``options`` and ``constraints`` are JSON with sorted keys. ``warm_start_sha256`` is empty
    without a plan to start from.
    """

    method: str
    options: str
    seed: int
    constraints: str
    warm_start_sha256: str
    graph_sha256: str
    cluster_sha256: str
    version: str


@dataclass(frozen=True)
class SweepRow:
    """One case of a sweep and its result. Without a plan, figures are None.

    Attributes
    ----------
    graph, cluster, method, options, seed, constraints
        Inputs; ``options`` and ``constraints`` as JSON.
    warm_start_sha256, graph_sha256, cluster_sha256, version
        The other parts of the key. The first is empty without a plan to start from.
    outcome : str
        "done", "infeasible" (nothing that fits was found), "error" (see ``error``) or "crashed"
        (the worker died each time).
    error : str
        Why there is no plan, in one line.
    tries : int
        Number of times that the case was run.
    makespan, lower_bound, one_device, planning_seconds : float
        Seconds. ``one_device`` is None if no single device holds the graph. Where the options have
        ``"objective": "throughput"``, ``makespan`` is the plan's period.
    gap, peak, busy : float
        ``gap`` is (makespan - bound) / makespan. ``peak`` is the largest share of a device's memory
        in use at any time. ``busy`` is the mean share of the step in which devices compute.
    fits : bool
    devices_used, bytes_moved : int
        What transfers and collectives send between devices counts as moved.
    """

    graph: str
    cluster: str
    method: str
    options: str
    seed: int
    constraints: str
    warm_start_sha256: str
    graph_sha256: str
    cluster_sha256: str
    version: str
    outcome: str
    error: str = ""
    tries: int = 1
    makespan: float | None = None
    lower_bound: float | None = None
    gap: float | None = None
    one_device: float | None = None
    fits: bool | None = None
    peak: float | None = None
    busy: float | None = None
    devices_used: int | None = None
    bytes_moved: int | None = None
    planning_seconds: float | None = None

    def __post_init__(self) -> None:
        for name in ("graph", "cluster", "error"):
            in_one_line = " ".join(getattr(self, name).split())[:_MOST_TEXT]
            object.__setattr__(self, name, in_one_line)

    @property
    def key(self) -> Key:
        """The key of the row."""
        return Key(*(getattr(self, name) for name in Key._fields))

    def to_document(self) -> dict[str, Any]:
        """As plain data for JSON."""
        return asdict(self)


COLUMNS = tuple(field.name for field in fields(SweepRow))
_TYPES = {field.name: str(field.type).removesuffix(" | None") for field in fields(SweepRow)}
_PARSERS: dict[str, Any] = {
    "str": str,
    "int": int,
    "float": float,
    "bool": {"True": True, "False": False}.__getitem__,
}


#: The byte of the lock file that whoever changes the table holds; cases have those behind it.
_CHANGING = FIRST


class Table:
    """Rows by key, and the file that rows are appended to, if any.

    Attributes
    ----------
    rows : dict of Key to Row
        Also those that other sweeps have added to the file, as far as it has been read.
    """

    def __init__(self) -> None:
        self.rows: dict[Key, SweepRow] = {}
        self._path = Path()
        self._parquet: Path | None = None
        self._file: io.FileIO | None = None
        self._locks: LockFile | None = None
        self._bytes, self._lines = 0, 0
        self._news: dict[Key, SweepRow] = {}

    @classmethod
    def open(cls, path: str | os.PathLike[str] | None) -> Table:
        """The table at a path, which need not exist yet; without one, a table in memory.

        Raises
        ------
        InputError
            A name that ends in neither .csv nor .parquet; a file that is no table of a sweep, that
            cannot be written, or that another sweep of this process has open.
        MissingExtraError
            Parquet without pyarrow.
        """
        table = cls()
        if path is None:
            return table
        target = Path(path)
        if target.suffix not in (".csv", ".parquet"):
            raise InputError(f"out is {os.fspath(path)!r}: wants a name in .csv or .parquet")
        if target.suffix == ".parquet":
            _pyarrow()
            table._parquet = target
        try:
            table._open_csv(target.with_suffix(".csv"))
        except BaseException:
            table._let_go()
            raise
        return table

    def _open_csv(self, path: Path) -> None:
        check_target(path)
        place = Path(os.path.realpath(path))
        if is_special(place):
            raise InputError(f"cannot write {path}: a table is a regular file")
        self._path = path
        self._locks = LockFile(place.with_name(f"{place.name}.lock"), os.fspath(path))
        with system_errors(f"cannot write {path}"):
            self._file = io.FileIO(place, "a+")
        with self._locks.held(_CHANGING):
            torn = self._catch_up()
            if self._lines == 0:
                if not _line(COLUMNS).startswith(torn):
                    raise InputError(_no_table(path))
                self._write(COLUMNS)
        self._news.clear()

    def _catch_up(self) -> bytes:
        """Takes in the lines that the file has got; returns what is behind the last whole one."""
        assert self._file is not None
        with system_errors(f"cannot read {self._path}"):
            if os.fstat(self._file.fileno()).st_size < self._bytes:
                raise InputError(f"{self._path} has lost lines that it had: something else cut it")
            self._file.seek(self._bytes)
            data = self._file.readall()
        whole = data[: data.rfind(b"\n") + 1]
        for row in _parsed(whole, self._path, self._lines):
            self.rows[row.key] = self._news[row.key] = row
        self._bytes += len(whole)
        self._lines += whole.count(b"\n")
        return data[len(whole) :]

    def _write(self, cells: Any) -> None:
        """Puts a line behind the last whole one; if that fails, the file is as it was."""
        assert self._file is not None
        line = _line(cells)
        with system_errors(f"cannot write {self._path}"):
            self._file.truncate(self._bytes)
            try:
                left = memoryview(line)
                while left:
                    left = left[self._file.write(left) :]
            except BaseException:
                self._file.truncate(self._bytes)
                raise
        self._bytes += len(line)
        self._lines += 1

    def news(self) -> list[SweepRow]:
        """Rows that other sweeps have added since this was last asked."""
        if self._file is not None:
            self._catch_up()
        rows = list(self._news.values())
        self._news.clear()
        return rows

    def claim(self, key: Key) -> bool:
        """True if this sweep is to run a case: no other is at it, or has added its row since.

        Other sweeps leave the case alone until its row is added here, or this process ends.
        """
        if self._locks is None:
            return True
        if not self._locks.take(_byte(key)):
            return False
        self._catch_up()
        if key in self._news:
            self._locks.release(_byte(key))
            return False
        return True

    def append(self, row: SweepRow) -> None:
        """Adds a row; the row is on disk when this returns.

        Raises
        ------
        InputError
            The file cannot be written. It is then as it was.
        """
        if self._locks is not None and self._file is not None:
            with self._locks.held(_CHANGING):
                self._catch_up()
                self._write(row.to_document().values())
            with system_errors(f"cannot write {self._path}"):
                os.fsync(self._file.fileno())
            self._locks.release(_byte(row.key))
        self.rows[row.key] = row

    def close(self) -> None:
        """Closes the file, and writes the Parquet file if one was asked for."""
        try:
            if self._parquet is not None and self._locks is not None:
                with self._locks.held(_CHANGING):
                    self._catch_up()
                    if self.rows:
                        write_bytes(self._parquet, _as_parquet(list(self.rows.values())))
        finally:
            self._let_go()

    def _let_go(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
        if self._locks is not None:
            self._locks.close()
            self._locks = None


def _byte(key: Key) -> int:
    """The byte of the lock file that stands for a case; two cases share one with chance 2^-56."""
    digest = hashlib.sha256(json.dumps(key).encode()).digest()
    return _CHANGING + 1 + int.from_bytes(digest[:7])


def _line(cells: Any) -> bytes:
    return csv_text([cells]).encode()


def _parsed(data: bytes, path: Path, before: int) -> list[SweepRow]:
    """The rows in whole lines of a table, with ``before`` lines before them.

    Raises
    ------
    InputError
        Another header, or a line that is no row; its number is named.
    """
    lines = data.splitlines(keepends=True)
    if lines and before == 0:
        if lines[0] != _line(COLUMNS):
            raise InputError(_no_table(path))
        lines, before = lines[1:], 1
    rows = []
    for number, line in enumerate(lines, start=before + 1):
        complaint = f"{path}, line {number} is no row of a sweep"
        with refusing(complaint, ValueError, KeyError, csv.Error):
            [cells] = csv.reader([line.decode()])
            rows.append(_row(cells))
    return rows


def _no_table(path: Path) -> str:
    return (
        f"{path} is no table of a sweep by this version: its first line wants to be "
        f"{','.join(COLUMNS)}; give another name"
    )


def _row(cells: list[str]) -> SweepRow:
    values: dict[str, Any] = {}
    for name, cell in zip(COLUMNS, cells, strict=True):
        kind = _TYPES[name]
        values[name] = _PARSERS[kind](csv_value(cell)) if cell or kind == "str" else None
    return SweepRow(**values)


def _pyarrow() -> Any:
    with importing("pyarrow", "parquet", "writing Parquet"):
        import pyarrow
        import pyarrow.parquet
    return pyarrow


def _as_parquet(rows: list[SweepRow]) -> bytes:
    """The table as the bytes of a Parquet file, a column per field."""
    arrow = _pyarrow()
    kinds = {"str": arrow.string(), "int": arrow.int64(), "float": arrow.float64()}
    kinds["bool"] = arrow.bool_()
    schema = arrow.schema([(name, kinds[_TYPES[name]]) for name in COLUMNS])
    # A seed may need all 64 bits.
    schema = schema.set(COLUMNS.index("seed"), arrow.field("seed", arrow.uint64()))
    data = arrow.Table.from_pylist([row.to_document() for row in rows], schema=schema)
    sink = arrow.BufferOutputStream()
    arrow.parquet.write_table(data, sink)
    return bytes(sink.getvalue())
