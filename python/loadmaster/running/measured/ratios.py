"""Predicted over measured: the step, each kind of op, each link, each kind of collective."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from loadmaster.base.text import aligned
from loadmaster.base.units import counted, format_seconds
from loadmaster.running.measured.measured import fastest

if TYPE_CHECKING:
    from loadmaster.running.measured.measured import Measured

Floats = NDArray[np.float64]

#: Rows of each sort that the text shows; the rest are counted.
_SHOWN = 10


@dataclass(frozen=True)
class Ratio:
    """Predicted beside measured seconds of some part of a step.

    Attributes
    ----------
    of : str
        "step", "op" (all ops of a kind), "link" (all transfers between two devices) or
        "collective" (all of a kind).
    name : str
        The kind, or the link: ``gpu0 to gpu1``.
    count : int
        Ops, transfers or collectives.
    predicted, measured : float
        Seconds of all of them.
    """

    of: str
    name: str
    count: int
    predicted: float
    measured: float

    @property
    def ratio(self) -> float | None:
        """Predicted over measured; None where nothing was measured."""
        return self.predicted / self.measured if self.measured else None

    def to_document(self) -> dict[str, Any]:
        """As plain data for JSON."""
        return {**vars(self), "ratio": self.ratio}

    def cells(self) -> tuple[str, ...]:
        """As texts of a table: see :data:`HEAD`."""
        ratio = "-" if self.ratio is None else f"{self.ratio:.3f}"
        seconds = format_seconds(self.predicted), format_seconds(self.measured)
        return (self.of, self.name, str(self.count), *seconds, ratio)


#: The columns of :meth:`Ratio.cells`.
HEAD = ("of", "which", "count", "predicted", "measured", "predicted / measured")


@dataclass(frozen=True)
class Ratios:
    """The rows: the step, then kinds of op, links and collectives, each by measured time."""

    rows: tuple[Ratio, ...]

    def __getitem__(self, key: tuple[str, str]) -> Ratio:
        """The row of (:attr:`Ratio.of`, :attr:`Ratio.name`)."""
        return next(row for row in self.rows if (row.of, row.name) == key)

    def to_document(self) -> list[dict[str, Any]]:
        """As plain data for JSON."""
        return [row.to_document() for row in self.rows]

    def __str__(self) -> str:
        shown, more = [], []
        for of in dict.fromkeys(row.of for row in self.rows):
            some = [row for row in self.rows if row.of == of]
            shown += some[:_SHOWN]
            if len(some) > _SHOWN:
                more.append(f"{counted(len(some) - _SHOWN, 'more row')} of {of}s")
        lines = aligned([HEAD, *(row.cells() for row in shown)])
        return "\n".join([*lines, *(["and " + ", ".join(more)] if more else [])])


def ratios(measured: Measured) -> Ratios:
    """The ratios of a run. O(V + T + C) for each step."""
    plan = measured.plan
    step = Ratio("step", measured.step_is, len(measured.steps), plan.makespan, measured.step)
    return Ratios((step, *_ops(measured), *_links(measured), *_collectives(measured)))


def _ops(measured: Measured) -> list[Ratio]:
    plan = measured.plan
    graph = plan.program.graph
    types = np.array(plan.cluster.device_types)[plan.running_devices]
    predicted = plan.problem.costs.time[np.arange(graph.n_ops), types]
    works = ~graph.placeholder & ~graph.is_member
    took = measured.op_seconds[fastest(measured.steps.seconds)].mean(axis=0)
    works &= (predicted > 0) | (took > 0)
    ops = np.flatnonzero(works)
    names = [graph.kinds[op] or "(no kind)" for op in ops.tolist()]
    return list(_grouped("op", names, predicted[ops], took[ops]))


def _links(measured: Measured) -> list[Ratio]:
    plan = measured.plan
    sent = plan.schedule.transfers
    devices = [device.name for device in plan.cluster.devices]
    ends = zip(sent.src.tolist(), sent.dst.tolist(), strict=True)
    names = [f"{devices[src]} to {devices[dst]}" for src, dst in ends]
    took = measured.part_seconds("sent_start", "sent_finish")
    predicted = sent.copying + sent.finish - sent.start
    return list(_grouped("link", names, predicted, took))


def _collectives(measured: Measured) -> list[Ratio]:
    together = measured.plan.schedule.collectives
    took = measured.part_seconds("gathered_start", "gathered_finish")
    predicted = together.busy + together.finish - together.start
    return list(_grouped("collective", together.kind, predicted, took))


def _grouped(of: str, names: Sequence[str], predicted: Floats, measured: Floats) -> Iterator[Ratio]:
    """A row for each name, those of most measured time first."""
    number = {name: i for i, name in enumerate(dict.fromkeys(names))}
    which = np.array([number[name] for name in names], dtype=np.int64)
    sums = [np.bincount(which, column, len(number)) for column in (predicted, measured)]
    counts = np.bincount(which, minlength=len(number))
    known = list(number)
    for i in np.argsort(-sums[1], kind="stable").tolist():
        yield Ratio(of, known[i], int(counts[i]), float(sums[0][i]), float(sums[1][i]))
