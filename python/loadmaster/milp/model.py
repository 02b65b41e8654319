"""A linear or mixed-integer program as plain arrays, and a builder that appends blocks to one.

This module knows no solver. A model is data: it can be pickled, tested row by row, and sent to a
worker process.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from loadmaster.base.errors import InputError
from loadmaster.base.units import counted

INFINITY = float("inf")

#: A sum below this share of its terms counts as 0.
ROUNDING = 1e-12


@dataclass(frozen=True)
class Model:
    """Minimise ``objective @ x`` over ``lower <= x <= upper``, some of x whole, within rows.

    Attributes
    ----------
    objective, lower, upper : float64 [n_variables]
        Bounds may be infinite.
    integer : bool [n_variables]
    row_start : int64 [n_rows + 1]
        Row r has the entries ``row_start[r]:row_start[r + 1]``.
    column : int32 [n_entries]
        Variable of each entry, ascending and once per row.
    value : float64 [n_entries]
    row_lower, row_upper : float64 [n_rows]
        Bounds of each row; one of the two may be infinite.
    start : float64 [n_variables] or None
        A feasible point to start from; solvers ignore it for a program without integers.

    Raises
    ------
    InputError
        Columns of different lengths, NaN, a lower bound above its upper one, an entry out of range.
    """

    objective: NDArray[np.float64]
    lower: NDArray[np.float64]
    upper: NDArray[np.float64]
    integer: NDArray[np.bool_]
    row_start: NDArray[np.int64]
    column: NDArray[np.int32]
    value: NDArray[np.float64]
    row_lower: NDArray[np.float64]
    row_upper: NDArray[np.float64]
    start: NDArray[np.float64] | None = None

    def __post_init__(self) -> None:
        n, m = self.n_variables, self.n_rows
        per_variable = {"lower": self.lower, "upper": self.upper, "integer": self.integer}
        if self.start is not None:
            per_variable["start"] = self.start
        _lengths(per_variable, n, "variables")
        _lengths({"row_start": self.row_start[1:], "row_upper": self.row_upper}, m, "rows")
        _lengths({"value": self.value}, len(self.column), "entries")
        finite = {"objective": self.objective, "value": self.value}
        if self.start is not None:
            finite["start"] = self.start
        for name, numbers in finite.items():
            if not np.isfinite(numbers).all():
                at = int(np.flatnonzero(~np.isfinite(numbers))[0])
                raise InputError(f"{name}[{at}] is {numbers[at]}: wants a finite number")
        _ordered("variable", self.lower, self.upper)
        _ordered("row", self.row_lower, self.row_upper)
        if len(self.column) and not (self.column.min() >= 0 and self.column.max() < n):
            raise InputError(f"an entry's column is out of range: there are {n} variables")

    @property
    def n_variables(self) -> int:
        """Number of variables."""
        return len(self.objective)

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return len(self.row_lower)

    @property
    def n_integers(self) -> int:
        """Number of variables that must be whole."""
        return int(np.count_nonzero(self.integer))

    def violation(self, x: NDArray[np.float64]) -> float:
        """The largest amount by which a point breaks a bound, a row or integrality.

        O(entries).
        """
        rows = np.repeat(np.arange(self.n_rows), np.diff(self.row_start))
        activity = np.bincount(rows, self.value * x[self.column], minlength=self.n_rows)
        breaches = [
            self.lower - x,
            x - self.upper,
            self.row_lower - activity,
            activity - self.row_upper,
            np.abs(x - np.rint(x))[self.integer],
        ]
        return max((float(b.max()) for b in breaches if len(b)), default=0.0)


class Builder:
    """Appends blocks of variables and rows, then makes a :class:`Model`.

    Examples
    --------
    >>> from loadmaster.milp import Builder
    >>> b = Builder()
    >>> x = b.variables(2, upper=1.0, objective=[-2.0, -1.0], integer=True)
    >>> b.rows([0, 0], x, [1.0, 1.0], upper=[1.0])      # x0 + x1 <= 1
    array([0])
    >>> model = b.model()
    >>> model.n_variables, model.n_rows
    (2, 1)
    """

    def __init__(self) -> None:
        self._n = 0
        self._m = 0
        self._variables: list[tuple[NDArray[np.float64], ...]] = []
        # Row, column and value; values for the same place are added.
        self._entries: list[tuple[NDArray[Any], NDArray[Any], NDArray[Any]]] = []
        self._bounds: list[tuple[NDArray[np.float64], NDArray[np.float64]]] = []

    def variables(
        self,
        count: int,
        *,
        lower: ArrayLike = 0.0,
        upper: ArrayLike = INFINITY,
        objective: ArrayLike = 0.0,
        integer: bool = False,
    ) -> NDArray[np.int64]:
        """Adds variables, with a bound or objective for all or for each; returns their ids."""
        columns = (lower, upper, objective, float(integer))
        self._variables.append(tuple(_spread(c, count) for c in columns))
        self._n += count
        return np.arange(self._n - count, self._n)

    def rows(
        self,
        row: ArrayLike,
        column: ArrayLike,
        value: ArrayLike,
        *,
        lower: ArrayLike = -INFINITY,
        upper: ArrayLike = INFINITY,
        count: int | None = None,
    ) -> NDArray[np.int64]:
        """Adds rows ``lower <= sum of value * variable <= upper`` and returns their ids.

        Parameters
        ----------
        row : int [n_entries]
            Row of each entry, from 0 within this block.
        column : int [n_entries]
            Variable of each entry.
        value : float [n_entries] or float
        lower, upper : float [count] or float
        count : int, optional
            Number of rows in the block. If absent: that of the bounds, or the largest in ``row``.
        """
        rows = np.asarray(row, dtype=np.int64)
        sizes = [np.size(bound) for bound in (lower, upper) if np.ndim(bound)]
        if count is None:
            count = sizes[0] if sizes else int(rows.max(initial=-1)) + 1
        if len(rows) and not (rows.min() >= 0 and rows.max() < count):
            raise InputError(
                f"an entry's row is out of range: the block has {counted(count, 'row')}"
            )
        columns = np.asarray(column, dtype=np.int64)
        if columns.shape != rows.shape:
            raise InputError(f"{rows.shape} rows for {columns.shape} columns: one per entry each")
        self._entries.append((rows + self._m, columns, _spread(value, len(rows))))
        self._bounds.append((_spread(lower, count), _spread(upper, count)))
        self._m += count
        return np.arange(self._m - count, self._m)

    def above(self, high: NDArray[np.int64], low: NDArray[np.int64], by: ArrayLike) -> None:
        """Adds a row per pair of variables: the first is at least so much above the second."""
        row, one = np.arange(len(high)), np.ones(len(high))
        variables, values = np.concatenate([high, low]), np.concatenate([one, -one])
        self.rows(np.tile(row, 2), variables, values, lower=by)

    def model(self, start: NDArray[np.float64] | None = None) -> Model:
        """The model so far. O(entries log entries)."""
        lower, upper, objective, integer = _joined(self._variables, 4)
        row_lower, row_upper = _joined(self._bounds, 2)
        row, column, value = _joined(self._entries, 3)
        by_place = np.lexsort((column, row))
        row, column, value = row[by_place], column[by_place], value[by_place]
        first = np.ones(len(row), dtype=bool)
        first[1:] = (np.diff(row) != 0) | (np.diff(column) != 0)
        at = np.flatnonzero(first)
        value, size = (np.add.reduceat(v, at) if len(at) else v for v in (value, np.abs(value)))
        # Where entries cancel, only rounding is left.
        held = np.abs(value) > ROUNDING * size
        at, value = at[held], value[held]
        return Model(
            objective,
            lower,
            upper,
            integer != 0,
            np.searchsorted(row[at], np.arange(self._m + 1)),
            column[at].astype(np.int32),
            value,
            row_lower,
            row_upper,
            start,
        )


def _spread(numbers: ArrayLike, count: int) -> NDArray[np.float64]:
    try:
        return np.broadcast_to(np.asarray(numbers, dtype=np.float64), (count,))
    except ValueError as error:
        raise InputError(f"{np.size(numbers)} numbers for {count}: one, or one each") from error


def _joined(blocks: Sequence[tuple[NDArray[Any], ...]], width: int) -> tuple[NDArray[Any], ...]:
    if not blocks:
        return tuple(np.zeros(0) for _ in range(width))
    return tuple(np.concatenate([block[k] for block in blocks]) for k in range(width))


def _lengths(columns: dict[str, NDArray[np.generic]], wanted: int, units: str) -> None:
    for name, column in columns.items():
        if len(column) != wanted:
            raise InputError(f"{name} has length {len(column)}, but there are {wanted} {units}")


def _ordered(named: str, lower: NDArray[np.float64], upper: NDArray[np.float64]) -> None:
    bad = np.flatnonzero(~(lower <= upper))
    if len(bad):
        at = int(bad[0])
        raise InputError(f"{named} {at} has bounds {lower[at]} to {upper[at]}: nothing is between")
