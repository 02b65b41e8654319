"""Accuracy of costs: predicted against measured (Celeritas, Table 5 and Figure 5).

The deviation of an op is ``|predicted / measured - 1|``, for times and for output bytes.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadmaster.base.errors import InputError
from loadmaster.base.text import aligned
from loadmaster.base.units import counted, format_seconds
from loadmaster.costs.adaptive import CostModel
from loadmaster.costs.roofline import PROVENANCES, Costs
from loadmaster.costs.standard_evaluation import Regression, sweep
from loadmaster.model.graph import ANY_TYPE, OpGraph
from loadmaster.model.profile import Profile, joined

Floats = NDArray[np.float64]

#: Deviations at which the cumulative distribution is shown.
STEPS = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0)

#: Kinds that the table shows one by one.
_KINDS = 15


@dataclass(frozen=True)
class Accuracy:
    """Predicted against measured times of some ops.

    Attributes
    ----------
    ops : int
    share : float
        Their part of the measured time of all ops.
    mean, median : float
        Mean and median of their deviations.
    weighted : float
        Sum of |predicted - measured| / sum of measured.
    bias : float
        Sum of predicted / sum of measured, minus 1.
    """

    ops: int
    share: float
    mean: float
    median: float
    weighted: float
    bias: float


@dataclass(frozen=True, eq=False)
class Trust:
    """Predicted against measured, op by op.

    Attributes
    ----------
    names, kinds : tuple of str
        Ops that are both predicted and measured, and whose measured time is above 0.
    predicted, measured : float64 [n_ops]
        Seconds.
    deviation : float64 [n_ops]
        Deviation of each predicted time.
    bytes_deviation : float64 [n] or None
        Deviation of the output bytes of each op that has any. None: predictions or measurements
        have no output bytes.
    shares : dict of str to float
        Share of the predicted time by provenance.
    unmeasured, unpredicted : int
        Ops that were predicted to take time and not measured; ops that were measured and not
        predicted.
    """

    names: tuple[str, ...]
    kinds: tuple[str, ...]
    predicted: Floats
    measured: Floats
    deviation: Floats
    bytes_deviation: Floats | None
    shares: dict[str, float]
    unmeasured: int
    unpredicted: int

    @property
    def overall(self) -> Accuracy:
        """Accuracy of all ops together."""
        return self._accuracy(np.ones(len(self.names), dtype=bool))

    @property
    def by_kind(self) -> dict[str, Accuracy]:
        """Accuracy by kind of op; the kinds that take most time come first."""
        kinds = np.array(self.kinds)
        accuracies = {str(k): self._accuracy(kinds == k) for k in np.unique(kinds)}
        return dict(sorted(accuracies.items(), key=lambda row: (-row[1].share, row[0])))

    @property
    def cdf(self) -> dict[float, float]:
        """Share of ops whose time deviates by at most so much, for each of :data:`STEPS`."""
        return {step: float((self.deviation <= step).mean()) for step in STEPS}

    @property
    def bytes_cdf(self) -> dict[float, float] | None:
        """As :attr:`cdf`, for output bytes."""
        off = self.bytes_deviation
        return None if off is None else {step: float((off <= step).mean()) for step in STEPS}

    def _accuracy(self, of: NDArray[np.bool_]) -> Accuracy:
        predicted, measured, off = self.predicted[of], self.measured[of], self.deviation[of]
        total = float(measured.sum())
        return Accuracy(
            int(of.sum()),
            total / float(self.measured.sum()),
            float(off.mean()),
            float(np.median(off)),
            float(np.abs(predicted - measured).sum()) / total,
            float(predicted.sum()) / total - 1,
        )

    def draw(self, path: str | os.PathLike[str]) -> None:
        """The cumulative distributions and the kinds, as PNG or SVG; needs the ``plot`` extra."""
        from loadmaster.costs.deviations import draw

        draw(self, path)

    def to_document(self) -> dict[str, Any]:
        """As plain data for JSON."""
        off = self.bytes_deviation
        return {
            "ops": len(self.names),
            "unmeasured": self.unmeasured,
            "unpredicted": self.unpredicted,
            "provenance": self.shares,
            "overall": vars(self.overall),
            "by_kind": {kind: vars(row) for kind, row in self.by_kind.items()},
            "bytes_mean": None if off is None else float(off.mean()),
            "cdf": [list(row) for row in self.cdf.items()],
            "bytes_cdf": None
            if self.bytes_cdf is None
            else [list(r) for r in self.bytes_cdf.items()],
        }

    def __str__(self) -> str:
        shares = ", ".join(f"{share:.0%} {word}" for word, share in self.shares.items())
        lines = [
            f"{counted(len(self.names), 'op')} predicted and measured, "
            f"{format_seconds(self.measured.sum())} in all; predicted times are {shares}"
        ]
        if self.unmeasured or self.unpredicted:
            lines.append(
                f"ops that were not measured: {self.unmeasured}; not predicted: {self.unpredicted}"
            )
        kinds = self.by_kind
        rows: list[tuple[str, ...]] = [
            ("kind", "ops", "time", "mean", "median", "weighted", "bias")
        ]
        rows += [_row("all", self.overall), *(_row(k, a) for k, a in [*kinds.items()][:_KINDS])]
        lines += aligned(rows)
        if len(kinds) > _KINDS:
            lines.append(f"and {counted(len(kinds) - _KINDS, 'more kind')}")
        if self.bytes_deviation is not None:
            lines.append(f"output bytes are off by {self.bytes_deviation.mean():.1%} on average")
        rows = [("off by at most", *(f"{step:.0%}" for step in STEPS))]
        rows.append(("times of", *(f"{share:.0%}" for share in self.cdf.values())))
        if self.bytes_cdf is not None:
            rows.append(("output bytes of", *(f"{s:.0%}" for s in self.bytes_cdf.values())))
        return "\n".join(lines + aligned(rows))


def _row(name: str, a: Accuracy) -> tuple[str, ...]:
    shares = (a.share, a.mean, a.median, a.weighted)
    return (name, str(a.ops), *(f"{share:.1%}" for share in shares), f"{a.bias:+.1%}")


def trust(
    predicted: Regression | CostModel | Costs, measured: Profile, graph: OpGraph | None = None
) -> Trust:
    """Compares predicted times with a profile.

    Parameters
    ----------
    predicted : Regression, CostModel or Costs
    measured : Profile
        Steps at the batch that was predicted. The median over steps counts.
    graph : OpGraph
        The graph that the costs are for; :class:`Costs` need it. A profile without kinds takes
        those of the graph.

    Raises
    ------
    InputError
        :class:`Costs` without their graph, another batch or device type, no op in common.

    Examples
    --------
    >>> import numpy as np, loadmaster as lm
    >>> def at(batch):
    ...     seconds = np.array([[5e-6], [1e-5 * batch]])
    ...     return lm.Profile(("relu", "conv"), ("Relu", "Conv"), seconds, "cpu", batch)
    >>> found = lm.costs.trust(lm.costs.sweep([at(2), at(4), at(6)], 16), at(16))
    >>> round(found.overall.mean, 6), found.shares
    (0.0, {'regressed': 1.0})
    """
    if isinstance(predicted, (Regression, CostModel)):
        batch = predicted.batch
        if batch is not None and measured.batch not in (None, batch):
            raise InputError(
                f"predicted is batch {batch}, measured batch {measured.batch}: nothing to compare"
            )
    seconds, words = _predicted(predicted, measured.device_type, graph)
    rows = [i for i, name in enumerate(measured.names) if name in seconds]
    known = set(measured.names)
    median = measured.median()
    timed = [i for i in rows if median[i] > 0]
    if not timed:
        raise InputError(
            f"{counted(len(measured.names), 'measured op')}, none with a predicted time: "
            "the profile and the costs want to come from the same model"
        )
    kinds = measured.kinds
    if graph is not None and not any(kinds):
        of = dict(zip(graph.names, graph.kinds, strict=True))
        kinds = tuple(of.get(name, "") for name in measured.names)
    names = tuple(measured.names[i] for i in timed)
    expected = np.array([seconds[name] for name in names])
    took = median[timed]
    shares: dict[str, float] = {}
    for name, s in zip(names, expected.tolist(), strict=True):
        shares[words[name]] = shares.get(words[name], 0.0) + s
    total = sum(shares.values())
    return Trust(
        names,
        tuple(kinds[i] for i in timed),
        expected,
        took,
        np.abs(expected / took - 1),
        _bytes(predicted, measured),
        {word: s / total if total else 0.0 for word, s in sorted(shares.items())},
        len([name for name, s in seconds.items() if s > 0 and name not in known]),
        len(measured.names) - len(rows),
    )


def held_out(profiles: Sequence[Profile]) -> Trust:
    """Trust in a sweep: its largest batch, predicted from the others.

    Raises
    ------
    InputError
        As :func:`loadmaster.costs.sweep`; fewer than three batches.

    Examples
    --------
    >>> import numpy as np, loadmaster as lm
    >>> def at(batch):
    ...     seconds = np.array([[5e-6], [1e-5 * batch]])
    ...     return lm.Profile(("relu", "conv"), ("Relu", "Conv"), seconds, "cpu", batch)
    >>> lm.costs.held_out([at(2), at(4), at(6)]).cdf[0.05]
    1.0
    """
    batches = sorted({p.batch for p in profiles if p.batch is not None})
    if len(batches) < 3:
        raise InputError(
            f"{counted(len(batches), 'batch', 'batches')}: to hold one out, "
            "at least two must be left to learn from"
        )
    last = [p for p in profiles if p.batch == batches[-1]]
    known = sweep([p for p in profiles if p.batch != batches[-1]], batches[-1])
    return trust(known, joined(last))


def _predicted(
    predicted: Regression | CostModel | Costs, device_type: str, graph: OpGraph | None
) -> tuple[dict[str, float], dict[str, str]]:
    """Seconds and provenance by op, on a device type."""
    if isinstance(predicted, Costs):
        if graph is None:
            raise InputError("costs have no names: give the graph that they are of")
        if device_type not in predicted.types:
            if device_type != ANY_TYPE and len(predicted.types) != 1:
                raise InputError(
                    f"measured on {device_type!r}, the costs are for {', '.join(predicted.types)}"
                )
            column = 0
        else:
            column = predicted.types.index(device_type)
        times = dict(zip(graph.names, predicted.time[:, column].tolist(), strict=True))
        words = [PROVENANCES[k] for k in predicted.provenance.tolist()]
        return times, dict(zip(graph.names, words, strict=True))
    model = predicted.model() if isinstance(predicted, Regression) else predicted
    entries = model.entries(device_type)
    if not entries:
        known = ", ".join(model.device_types) or "none"
        raise InputError(f"measured on {device_type!r}, the costs are for {known}")
    return (
        {name: entry.mean for name, entry in entries.items()},
        {name: "measured" if e.steps else "regressed" for name, e in entries.items()},
    )


def _bytes(predicted: Regression | CostModel | Costs, measured: Profile) -> Floats | None:
    if not isinstance(predicted, Regression) or predicted.output_bytes is None:
        return None
    if measured.output_bytes is None:
        return None
    expected = dict(zip(predicted.names, predicted.output_bytes.tolist(), strict=True))
    pairs = [
        (expected[name], size)
        for name, size in zip(measured.names, measured.output_bytes.tolist(), strict=True)
        if name in expected and size > 0
    ]
    return np.array([abs(said / size - 1) for said, size in pairs]) if pairs else None
