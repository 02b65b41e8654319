"""The table of a sweep: a row per case, on disk as soon as the case is done.

Rows are appended to a CSV file. A Parquet file is written whole, from the CSV file beside it. No
row has a line break in it. So if the last line has no end, the machine stopped while it was being
written. This line is dropped, and its case is run again.
"""

from __future__ import annotations

import csv
import io
import os
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from loadmaster.base.errors import InputError, importing, refusing
from loadmaster.base.files import read_bytes, system_errors, write_bytes

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
class Row:
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
        Seconds. ``one_device`` is None if no single device holds the graph.
    gap, peak, busy : float
        ``gap`` is (makespan - bound) / makespan. ``peak`` is the largest share of a device's memory
        in use at any time. ``busy`` is the mean share of the step in which devices compute.
    fits : bool
    devices_used, bytes_moved : int
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


COLUMNS = tuple(field.name for field in fields(Row))
_TYPES = {field.name: str(field.type).removesuffix(" | None") for field in fields(Row)}
_PARSERS: dict[str, Any] = {
    "str": str,
    "int": int,
    "float": float,
    "bool": {"True": True, "False": False}.__getitem__,
}


class Table:
    """Rows by key, and the file that rows are appended to, if any."""

    def __init__(self) -> None:
        self.rows: dict[Key, Row] = {}
        self._file: BinaryIO | None = None
        self._parquet: Path | None = None

    @classmethod
    def open(cls, path: str | os.PathLike[str] | None) -> Table:
        """The table at a path, which need not exist yet; without one, a table in memory.

        Raises
        ------
        InputError
            A name that ends in neither .csv nor .parquet; a file that is no table of a sweep, or
            that cannot be written.
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
        table._open_csv(target.with_suffix(".csv"))
        return table

    def _open_csv(self, path: Path) -> None:
        whole = b""
        if path.exists():
            data = read_bytes(path)
            whole = data[: data.rfind(b"\n") + 1]
            self.rows = {row.key: row for row in _parsed(whole, path)}
        with system_errors(f"cannot write {path}"):
            self._file = path.open("ab")
            self._file.truncate(len(whole))
        if not whole:
            self._write(COLUMNS)

    def append(self, row: Row) -> None:
        """Adds a row; the row is on disk when this returns."""
        self.rows[row.key] = row
        if self._file is not None:
            self._write(["" if v is None else v for v in row.to_document().values()])

    def _write(self, cells: Any) -> None:
        assert self._file is not None
        self._file.write(_line(cells))
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Closes the file, and writes the Parquet file if one was asked for."""
        if self._file is not None:
            self._file.close()
            self._file = None
        if self._parquet is not None and self.rows:
            write_bytes(self._parquet, _as_parquet(list(self.rows.values())))


def _line(cells: Any) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue().encode()


def _parsed(data: bytes, path: Path) -> list[Row]:
    """The rows of a table.

    Raises
    ------
    InputError
        Another header, or a line that is no row; its number is named.
    """
    if not data:
        return []
    if not data.startswith(_line(COLUMNS)):
        raise InputError(
            f"{path} is no table of a sweep by this version: its first line wants to be "
            f"{','.join(COLUMNS)}; give another name"
        )
    rows = []
    lines = data.splitlines()[1:]
    for number, line in enumerate(lines, start=2):
        what = f"{path}, line {number} is no row of a sweep"
        with refusing(what, ValueError, KeyError, csv.Error):
            [cells] = csv.reader([line.decode()])
            rows.append(_row(cells))
    return rows


def _row(cells: list[str]) -> Row:
    values: dict[str, Any] = {}
    for name, cell in zip(COLUMNS, cells, strict=True):
        kind = _TYPES[name]
        values[name] = _PARSERS[kind](cell) if cell or kind == "str" else None
    return Row(**values)


def _pyarrow() -> Any:
    with importing("pyarrow", "parquet", "writing Parquet"):
        import pyarrow
        import pyarrow.parquet
    return pyarrow


def _as_parquet(rows: list[Row]) -> bytes:
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
