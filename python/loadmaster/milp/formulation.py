"""The parts that all mixed-integer programs of an instance share.

These are the variables that each program has, the way from a schedule to a starting point, and the
way from a solution to a schedule. Times inside a program are ticks, scaled so that the makespan of
the start is :data:`SPAN`, because solvers' tolerances are absolute.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from loadmaster.milp.instance import Message, MilpInstance
from loadmaster.milp.model import INFINITY, Builder, Model
from loadmaster.milp.timing import Timed

#: The makespan of the schedule that a program starts from.
SPAN = 1000.0

#: A term of a row: variable and coefficient.
Term = tuple[int, float]


class Formulate(Protocol):
    """Makes a program of an instance, from a schedule of it."""

    def __call__(self, instance: MilpInstance, start: Timed) -> Formulation:
        """Devices, orders and transfers as variables and rows."""


@dataclass(frozen=True)
class Formulation:
    """A program, and its variables for devices and starts.

    Attributes
    ----------
    model : Model
        Minimises the makespan. Its start is the given schedule.
    on : int64 [n_ops, n_devices]
        The variable that puts an op on a device.
    start : int64 [n_ops]
    scale : float
        Units of the program per tick.
    """

    model: Model
    on: NDArray[np.int64]
    start: NDArray[np.int64]
    scale: float

    def read(self, values: NDArray[np.float64]) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        """Device and start (ticks) per op of a solution."""
        devices = values[self.on].argmax(axis=1).astype(np.int32)
        return devices, values[self.start] / self.scale


class ModelRows:
    """Appends variables and rows to a :class:`Builder`, one at a time.

    Each variable comes with its value in the schedule to start from.
    """

    def __init__(self, instance: MilpInstance, start: Timed) -> None:
        self.instance = instance
        self.from_ = start
        self.scale = SPAN / max(start.makespan, 1)
        #: The horizon: no time needs to be later.
        self.limit = start.makespan * self.scale
        self._values: list[float] = []
        self._lower: list[float] = []
        self._upper: list[float] = []
        self._whole: list[bool] = []
        self._row: list[int] = []
        self._column: list[int] = []
        self._value: list[float] = []
        self._least: list[float] = []
        self.on = self._place()
        time = instance.time * self.scale
        self.start = [
            self.variable(start.start[op] * self.scale, upper=self.limit)
            for op in range(instance.n_ops)
        ]
        #: Time of each op, as terms.
        self.takes: list[list[Term]] = [
            [(int(self.on[op, d]), float(time[op, d])) for d in instance.devices_of[op]]
            for op in range(instance.n_ops)
        ]
        self.end = self.variable(self.limit, lower=instance.lower * self.scale, upper=self.limit)

    def variable(
        self, value: float, *, lower: float = 0.0, upper: float = 1.0, whole: bool = False
    ) -> int:
        """A variable with its value in the start."""
        self._values.append(value)
        self._lower.append(min(lower, value))
        self._upper.append(upper)
        self._whole.append(whole)
        return len(self._values) - 1

    def binary(self, value: bool) -> int:
        """A variable that is 0 or 1."""
        return self.variable(float(value), whole=True)

    def at_least(self, bound: float, *terms: Iterable[Term]) -> None:
        """A row: the sum of all terms is at least the bound."""
        row = len(self._least)
        for part in terms:
            for column, value in part:
                self._row.append(row)
                self._column.append(column)
                self._value.append(value)
        self._least.append(bound)

    def finish(self, op: int) -> list[Term]:
        """The end of an op, as terms."""
        return [(self.start[op], 1.0), *self.takes[op]]

    def _place(self) -> NDArray[np.int64]:
        """A variable per unit and device, 1 where the unit is; rows for memory."""
        instance = self.instance
        at = self.from_.devices[instance.first_of_units]
        of_unit = np.zeros((instance.n_units, instance.n_devices), dtype=np.int64)
        for unit, allowed in enumerate(instance.unit_allowed.tolist()):
            for d in range(instance.n_devices):
                value = float(at[unit] == d)
                of_unit[unit, d] = self.variable(value, upper=float(allowed[d]), whole=True)
            self.at_least(1.0, [(int(x), 1.0) for x in of_unit[unit]])
            self.at_least(-1.0, [(int(x), -1.0) for x in of_unit[unit]])
        charge = instance.unit_charge
        for d, capacity in enumerate(instance.capacity.tolist()):
            if charge.sum() > capacity:
                share = charge / max(capacity, 1)
                terms = [(int(x), -float(s)) for x, s in zip(of_unit[:, d], share, strict=True)]
                self.at_least(-1.0 if capacity else 0.0, terms)
        return of_unit[instance.unit]

    def formulation(self) -> Formulation:
        """The whole program."""
        b = Builder()
        objective = np.zeros(len(self._values))
        objective[self.end] = 1.0
        whole = np.array(self._whole)
        for part in _runs(whole):
            b.variables(
                part.stop - part.start,
                lower=self._lower[part],
                upper=self._upper[part],
                objective=objective[part],
                integer=bool(whole[part.start]),
            )
        b.rows(self._row, self._column, self._value, lower=np.array(self._least), upper=INFINITY)
        model = b.model(np.array(self._values))
        return Formulation(model, self.on, np.array(self.start, dtype=np.int64), self.scale)


def _runs(whole: NDArray[np.bool_]) -> list[slice]:
    """Stretches of equal values."""
    cuts = [0, *(np.flatnonzero(np.diff(whole)) + 1).tolist(), len(whole)]
    return [slice(a, b) for a, b in itertools.pairwise(cuts) if b > a]


def negative(terms: Sequence[Term]) -> list[Term]:
    """Terms with the opposite sign."""
    return [(column, -value) for column, value in terms]


def readers_on(instance: MilpInstance, message: Message) -> list[int]:
    """Ops that may read a message on its device while its source is on another device."""
    tensor = instance.tensors[message.tensor]
    unit = instance.unit
    return [
        r
        for r in tensor.readers
        if instance.unit_allowed[unit[r], message.device] and unit[r] != unit[tensor.source]
    ]
