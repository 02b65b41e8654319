"""Labels of all ops on one mesh, axis by axis, for a weight of overlapping traffic and a price of
memory.

One axis is one labelling problem, which a solver of pairwise costs answers. The outermost axis is
solved first, then the next with the labels of the others as they are, and so on, up to three times:
labels of another axis change only the sizes of tensors. A round may end with a longer step than the
one before it, because the costs of an axis do not see the other axes, so the estimate of a step
decides which round is kept. Ops that play the same part in every layer get one label, unless
different ones lower the cost by more than 1 %.

Costs add up, as if no two things ran at the same time. Gradients and gathered parameters do overlap
with other work, so labels are solved for several weights of their traffic. If the best do not fit
into memory, bytes get a price, both those that stay and those of activations that wait for the
backward pass: bisection finds the lowest price at which labels fit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

import loadmaster.fast as fast
from loadmaster.base.errors import InfeasibleError
from loadmaster.strategies.sharding.estimate import Estimate, Estimator
from loadmaster.strategies.sharding.tables import Setting, Tables

Ints = NDArray[np.int64]

#: Weights of seconds that may overlap with others.
WEIGHTS = (1.0, 0.3, 0.05)

#: Share of the cost that it must gain to let ops differ that play the same part.
UNTYING = 0.01

#: Most rounds in which all axes are solved.
_ROUNDS = 3

#: Labels that take longer than the time to beat, times this, have no more rounds: they seldom gain
#: more.
_FAR = 1.1

#: Edges that are visited to solve one axis, about, and the least and the most sweeps over them that
#: this is. Where there are several axes, all of them share the visits. By hand.
_VISITS, _SWEEPS = 1_200_000, (60, 1000)

#: Prices that are tried: a price of 1 has the least peak cost as much as the least step. From and
#: to, as powers of 10, and how often what lies between is halved.
_PRICES = (-3.0, 3.0)
_HALVINGS = 6

#: Higher prices than the least one that are tried too, as powers of 10 times that one.
_HIGHER = (0.75, 1.5)

#: How many of the labels that fit are kept: their estimates are not exact.
_FITTING = 3

#: A step that is longer by no more than this share than without a price will do.
_CHEAP = 0.0005


@dataclass(frozen=True)
class Labels:
    """Labels on every axis of a mesh.

    Attributes
    ----------
    columns : int64 [n_axes, n_nodes]
        Which of its labels each node has.
    estimate : Estimate
    gap : float
        What lies between their cost and the dual bound, as a share of the cost, on the axis where
        most does: no labels of that axis cost less than (1 - gap) of it, with those of the other
        axes as they are, ops tied, for this weight and price.
    weight : float
        Of seconds that may overlap.
    price : float
        Seconds per byte.
    is_tied : bool
        Whether ops that play the same part have one label.
    """

    columns: Ints
    estimate: Estimate
    gap: float
    weight: float
    price: float = 0.0
    is_tied: bool = True

    def key(self, memory: float) -> tuple[bool, float]:
        """The key of labels of one price: those that fit first; seconds of the step and of its
        peak.
        """
        return not self.fits(memory), self.estimate.step_time + self.price * self.estimate.peak

    def fits(self, memory: float) -> bool:
        """True for a peak of no more than so many bytes."""
        return self.estimate.peak <= memory


class Solver:
    """Solves labellings of one mesh.

    Parameters
    ----------
    setting : Setting
    allowed : sequence of bool [n_nodes, most labels], optional
        Per axis, which labels each node may have; all if absent.
    """

    def __init__(
        self, setting: Setting, allowed: Sequence[NDArray[np.bool_]] | None = None
    ) -> None:
        self.setting, self.allowed = setting, allowed
        self.estimator = Estimator(setting)
        self._tables: dict[tuple[int, bytes], Tables] = {}
        self._found: dict[tuple[int, bytes, float, float], fast.Labels] = {}
        #: Per axis, what was found last.
        self._last: dict[int, fast.Labels] = {}

    @property
    def n_axes(self) -> int:
        """Number of axes."""
        return len(self.setting.traffic)

    def _sweeps(self, tables: Tables) -> int:
        """Sweeps over a labelling, fewer the larger it is once what is tied is one."""
        edges = max(self.setting.frame.untied * tables.costs.problem.n_edges, 1.0)
        return int(np.clip(_VISITS / self.n_axes / edges, *_SWEEPS))

    def whole(self) -> Ints:
        """Every op whole on every device, or with the first label that it may have."""
        if self.allowed is None:
            return np.zeros((self.n_axes, self.setting.structure.n), dtype=np.int64)
        return np.array([may.argmax(axis=1) for may in self.allowed], dtype=np.int64)

    def _solved(
        self, axis: int, columns: Ints, weight: float, price: float
    ) -> tuple[Tables, fast.Labels]:
        """The tables of an axis, and the labels found there, tied. The search goes on from what was
        found last for the axis: costs are seldom far from those.
        """
        others = columns.copy()
        others[axis] = 0
        of = (axis, others.tobytes())
        if of not in self._tables:
            may = None if self.allowed is None else self.allowed[axis]
            self._tables[of] = Tables.of(self.setting, axis, others, may)
        tables, key = self._tables[of], (*of, weight, price)
        if key not in self._found:
            self._last[axis] = self._found[key] = tables.costs.problem.solve(
                _weights(weight, price),
                tied=tables.tied,
                after=self._last.get(axis),
                sweeps=self._sweeps(tables),
            )
        return tables, self._found[key]

    def solve(
        self,
        weight: float,
        price: float = 0.0,
        start: Ints | None = None,
        memory: float = np.inf,
        to_beat: float = np.inf,
    ) -> Labels:
        """Labels for a weight and a price, tied; of those of all rounds that fit, the best.

        Parameters
        ----------
        weight, price : float
        start : int64 [n_axes, n_nodes], optional
            Labels that are near: then every axis is solved once.
        memory : float
            Bytes.
        to_beat : float
            Seconds: where the best of all rounds takes much longer, there are no more.

        Raises
        ------
        InfeasibleError
            No labels were found without a forbidden choice.
        """
        columns = self.whole() if start is None else start.copy()
        best: Labels | None = None
        for _ in range(_ROUNDS if start is None and self.n_axes > 1 else 1):
            before = columns
            columns, gap = self._round(columns, weight, price)
            if best is not None and np.array_equal(before, columns):
                break
            labels = Labels(columns, self.estimator.estimate(columns), gap, weight, price)
            best = labels if best is None or labels.key(memory) < best.key(memory) else best
            if best.estimate.step_time >= _FAR * to_beat:
                break
        assert best is not None, "there is a round"
        return best

    def _round(self, columns: Ints, weight: float, price: float) -> tuple[Ints, float]:
        """Every axis solved once, with the labels of the others as they are by then; and the widest
        gap.
        """
        columns, gaps = columns.copy(), []
        for axis in range(self.n_axes):
            tables, solved = self._solved(axis, columns, weight, price)
            columns[axis] = solved.labels[tables.at[: columns.shape[1]]]
            gaps.append(solved.gap)
        return columns, max(gaps)

    def untied(self, labels: Labels) -> Labels:
        """The same labels, or better ones where ops that play the same part may differ."""
        columns, is_tied = labels.columns.copy(), labels.is_tied
        for axis in range(self.n_axes):
            tables, tied = self._solved(axis, columns, labels.weight, labels.price)
            weights, n = _weights(labels.weight, labels.price), columns.shape[1]
            try:
                free = tables.costs.problem.solve(weights, start=tied.labels, sweeps=_SWEEPS[0])
            except InfeasibleError:
                continue
            if free.energy < (1 - UNTYING) * tied.energy:
                columns[axis], is_tied = free.labels[tables.at[:n]], False
        if is_tied == labels.is_tied:
            return labels
        return replace(
            labels, columns=columns, estimate=self.estimator.estimate(columns), is_tied=is_tied
        )

    def all_weights(
        self, memory: float, weights: Sequence[float] = WEIGHTS, to_beat: float = np.inf
    ) -> Iterator[Labels]:
        """Labels for every weight, and where they do not fit, those of the least price that do; if
        none does, those that hold least.

        Parameters
        ----------
        memory : float
            Bytes.
        weights : sequence of float
        to_beat : float
            Seconds: what takes so long is not made to fit, and what takes much longer has no more
            rounds.
        """
        price = 0.0
        for weight in weights:
            labels = self.solve(weight, price, memory=memory, to_beat=to_beat)
            fitting = [labels]
            if not labels.fits(memory) and labels.estimate.step_time < to_beat:
                fitting = self._within(labels, memory)
            yield from fitting
            if labels is not fitting[0] and not fitting[0].fits(memory):
                # Bytes alone counted: other weights find none that hold less.
                return
            # What one weight had to pay, others have to pay about as well.
            price = min(one.price for one in fitting)

    def _within(self, free: Labels, memory: float) -> list[Labels]:
        """Labels that fit, the best few: of the least price found by bisection, which ends where it
        costs next to nothing, and of higher ones, whose steps may be shorter all the same. The
        labels that hold least, if none fit.
        """
        unit = free.estimate.step_time / max(free.estimate.peak, 1.0)
        low, high = _PRICES
        best = self.solve(free.weight, unit * 10**high, memory=memory)
        if not best.fits(memory):
            return [min((free, best), key=lambda one: one.estimate.peak)]
        enough, fitting = (1 + _CHEAP) * free.estimate.step_time, [best]
        for _ in range(_HALVINGS):
            if len(fitting) > 1 and best.estimate.step_time <= enough:
                break
            middle = (low + high) / 2
            labels = self.solve(free.weight, unit * 10**middle, best.columns)
            if labels.fits(memory):
                high = middle
                fitting.append(labels)
                best = min((labels, best), key=lambda one: one.estimate.step_time)
            else:
                low = middle
        for exponent in (high + more for more in _HIGHER if high + more < _PRICES[1]):
            if best.estimate.step_time <= enough:
                break
            labels = self.solve(free.weight, unit * 10**exponent, best.columns)
            fitting += [labels] if labels.fits(memory) else []
        return sorted(fitting, key=lambda one: one.estimate.step_time)[:_FITTING]


def _weights(weight: float, price: float) -> NDArray[np.float64]:
    return np.array([1.0, weight, price, price])
