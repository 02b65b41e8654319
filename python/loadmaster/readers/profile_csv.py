"""Profiles from CSV: a row per op and step, from whatever measured them.

Columns: ``op`` and ``seconds`` (or ``ms``, ``us``); optionally ``kind``, ``step``, ``batch``,
``device_type`` and ``output_bytes``. Others are ignored.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping

import numpy as np

from loadmaster.base.csv_rows import read_rows
from loadmaster.base.errors import InputError
from loadmaster.base.files import naming
from loadmaster.model.graph import ANY_TYPE
from loadmaster.model.profile import Profile

_UNITS = {"seconds": 1.0, "ms": 1e-3, "us": 1e-6}

_COLUMNS = (*_UNITS, "op", "kind", "step", "batch", "device_type", "output_bytes")

#: Bytes of an op, where none are told.
_UNTOLD = -1


class _Table:
    """Rows of one device type and batch."""

    def __init__(self) -> None:
        self.kinds: dict[str, str] = {}
        self.sizes: dict[str, int] = {}
        self.steps: dict[str, int] = {}
        self.rows: Counter[str] = Counter()
        self.seconds: dict[tuple[str, str], float] = {}

    def add(self, op: str, step: str | None, row: Mapping[str, str | None], seconds: float) -> None:
        """Takes a row; without a step, repeats of an op are steps in their order."""
        if step is None:
            step = str(self.rows[op])
        if (op, step) in self.seconds:
            raise InputError(f"op {op!r} stands twice in step {step}")
        self.steps.setdefault(step, len(self.steps))
        kind = row.get("kind") or ""
        if self.kinds.setdefault(op, kind) != kind:
            raise InputError(f"op {op!r} is {self.kinds[op]!r} and {kind!r}")
        size = _whole(row.get("output_bytes"), "output_bytes", 0)
        if self.sizes.setdefault(op, size) != size:
            raise InputError(f"op {op!r} puts out {self.sizes[op]} and {size} bytes")
        self.rows[op] += 1
        self.seconds[op, step] = seconds

    def profile(self, device_type: str, batch: int | None) -> Profile:
        row_of = {op: i for i, op in enumerate(self.kinds)}
        seconds = np.full((len(row_of), len(self.steps)), np.nan)
        for (op, step), value in self.seconds.items():
            seconds[row_of[op], self.steps[step]] = value
        known = all(size != _UNTOLD for size in self.sizes.values())
        sizes = np.array([*self.sizes.values()], dtype=np.uint64) if known else None
        names, kinds = tuple(self.kinds), tuple(self.kinds.values())
        return Profile(names, kinds, seconds, device_type, batch, sizes)


def read(
    path: str | os.PathLike[str], *, batch: int | None = None, device_type: str | None = None
) -> list[Profile]:
    r"""The profiles in a CSV file, one per device type and batch in it.

    Parameters
    ----------
    path
    batch, device_type : optional
        For rows that do not say theirs.

    Raises
    ------
    InputError
        A column that is missing, a value that is none, an op twice in a step, a last line that was
        cut off; the line is named.

    Warns
    -----
    UserWarning
        The file ends within a line whose last value may have been cut off.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder) / "profile.csv"
    ...     _ = path.write_text("op,batch,us\nconv,2,30\nconv,2,31\nconv,4,60\n")
    ...     [(p.batch, p.n_steps) for p in read(path)]
    [(2, 2), (4, 1)]
    """
    source = os.fspath(path)
    head, rows = read_rows(path, _COLUMNS)
    unit = next((u for u in _UNITS if u in head), None)
    if "op" not in head or unit is None:
        raise InputError(
            f"{source} has the columns {', '.join(head) or 'none'}; wants op and seconds (or "
            "ms, us), and if known kind, step, batch, device_type, output_bytes"
        )
    tables: dict[tuple[str, int | None], _Table] = {}
    for number, row in rows:
        with naming(f"{source}, line {number}"):
            _take(row, unit, tables, batch, device_type)
    if not tables:
        raise InputError(f"{source} has no rows")
    return [table.profile(*key) for key, table in tables.items()]


def _take(
    row: Mapping[str, str | None],
    unit: str,
    tables: dict[tuple[str, int | None], _Table],
    batch: int | None,
    device_type: str | None,
) -> None:
    op = row["op"]
    if not op:
        raise InputError("no op")
    size = row.get("batch")
    of = _whole(size, "batch", 1) if size else batch
    key = (row.get("device_type") or device_type or ANY_TYPE, of)
    text = row[unit]
    try:
        seconds = float(text or "") * _UNITS[unit]
    except ValueError:
        seconds = np.nan
    if not 0 <= seconds < np.inf:
        raise InputError(
            f"op {op!r}: {unit} is {text!r}, wants a finite number that is not negative"
        )
    tables.setdefault(key, _Table()).add(op, row.get("step"), row, seconds)


def _whole(text: str | None, column: str, least: int) -> int:
    """A whole number; :data:`_UNTOLD` where nothing is written."""
    if not text:
        return _UNTOLD
    try:
        value = int(text)
    except ValueError:
        value = -1
    if not least <= value < 2**63:
        raise InputError(f"{column} is {text!r}, wants an integer of at least {least}")
    return value
