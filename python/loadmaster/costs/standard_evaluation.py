"""Standard Evaluation (Celeritas, section 4.2.1): measures small batches, estimates a large one.

Output bytes of most ops are exactly a line in the batch. Times follow
:mod:`loadmaster.costs.regression`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadmaster.base import checks
from loadmaster.base.errors import InputError
from loadmaster.base.units import counted, format_seconds
from loadmaster.costs.adaptive import CostModel
from loadmaster.costs.entry import Entry
from loadmaster.costs.regression import SHAPES, Growth, grown
from loadmaster.costs.roofline import Costs
from loadmaster.model.batch import ASSUMPTION, batch_of, scaled_batch
from loadmaster.model.cluster import Cluster
from loadmaster.model.graph import TIME_SOURCES, OpGraph
from loadmaster.model.profile import Profile, joined

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Regression:
    """Times and sizes of ops at a batch that was not measured.

    Attributes
    ----------
    names, kinds : tuple of str
        Names and kinds of the ops that every profile has.
    device_type : str
    batch : int
        The batch that the figures are for.
    batches : tuple of int
        The batches that were measured.
    seconds : float64 [n_ops]
    deviation : float64 [n_ops]
        Relative standard deviation of each time, checked by leaving out the largest batch.
    shapes : tuple of str
        How each time depends on the batch: the one of
        :data:`~loadmaster.costs.regression.SHAPES` with the largest weight.
    output_bytes : uint64 [n_ops] or None
        None if fewer than two batches have output bytes.
    measured_bytes : dict of int to float64 [n_ops]
        Output bytes at each batch that has them.
    uneven : tuple of str
        Ops whose output bytes lie on no line; the line of least squares is taken.
    left_out : tuple of str
        Ops that are missing in some profile; they have no figures.
    """

    names: tuple[str, ...]
    kinds: tuple[str, ...]
    device_type: str
    batch: int
    batches: tuple[int, ...]
    seconds: Floats
    deviation: Floats
    shapes: tuple[str, ...]
    output_bytes: NDArray[np.uint64] | None
    measured_bytes: dict[int, Floats]
    uneven: tuple[str, ...]
    left_out: tuple[str, ...]

    def model(self) -> CostModel:
        """The times as a cost model, which measurements then correct."""
        model = CostModel(self.batch)
        self.teach(model)
        return model

    def teach(self, model: CostModel) -> None:
        """Puts the times into a cost model."""
        for name, seconds, deviation in zip(
            self.names, self.seconds.tolist(), self.deviation.tolist(), strict=True
        ):
            model.put(self.device_type, name, Entry.regressed(seconds, deviation))

    def costs(self, graph: OpGraph, cluster: Cluster) -> Costs:
        """Times of a graph's ops on a cluster; see :meth:`CostModel.costs`."""
        return self.model().costs(graph, cluster)

    def graph(self, graph: OpGraph, batch: int | None = None) -> OpGraph:
        """The graph at this batch: its sizes, and its times if all ops that compute have one.

        Output bytes come from the regression. Tensors, workspace and sizes that were not measured
        are those of :func:`loadmaster.model.batch.scaled_batch`, except at ops whose output bytes
        were the same at every batch. FLOPs, bytes accessed and shapes stay as they are.
        ``meta["assumed"]`` says all this.

        Parameters
        ----------
        graph : OpGraph
        batch : int, optional
            The batch of the graph as it is. If absent: ``meta["batch"]``, or the measured batch
            with the same sizes.

        Raises
        ------
        InputError
            The graph has none of these ops; its batch cannot be told.
        """
        if batch is not None:
            checks.integer("batch", batch)
        self.model().join(graph)
        at = {name: i for i, name in enumerate(self.names)}
        rows = np.array([at.get(name, -1) for name in graph.names], dtype=np.int64)
        known = rows >= 0
        assumed = [f"times regressed from batches {_listed(self.batches)} to {self.batch}"]
        ops: dict[str, Any] = {}
        edges: dict[str, Any] = {}
        if (known | graph.view | graph.placeholder).all():
            ops["time"] = {self.device_type: np.where(known, self.seconds[rows], 0.0)}
        if self.output_bytes is not None:
            before = self._batch_of(graph, rows) if batch is None else batch
            scaled = scaled_batch(graph, Fraction(self.batch, before))
            regressed = self.output_bytes[rows]
            # Views and in-place ops have no output bytes of their own, but their tensors vary.
            same = known & (graph.output_bytes == regressed) & (regressed > 0)
            ops["output_bytes"] = np.where(known, regressed, scaled.output_bytes)
            ops["workspace"] = scaled.workspace
            edges["bytes"] = np.where(same[graph.src], graph.bytes, scaled.bytes)
            assumed.append(f"sizes at batch {self.batch} from those at {before}: {ASSUMPTION}")
        changed = graph.with_columns(ops, edges)
        changed.meta.update(batch=self.batch, assumed=[*graph.meta.get("assumed", []), *assumed])
        if "time" in ops:
            changed.meta[TIME_SOURCES] = {
                "regressed": [graph.names[i] for i in np.flatnonzero(known)]
            }
        return changed

    def _batch_of(self, graph: OpGraph, rows: NDArray[np.int64]) -> int:
        """The batch in a graph's meta, or the measured batch whose output bytes most ops have."""
        named = batch_of(graph)
        if named is not None:
            return named
        if not graph.output_bytes.any():
            return self.batch  # There is nothing to scale.
        known = np.flatnonzero(rows >= 0)
        known_sizes = {b: sizes[rows[known]] for b, sizes in self.measured_bytes.items()}
        own = graph.output_bytes[known].astype(np.float64)
        vary = np.ptp(np.stack([*known_sizes.values()]), axis=0) > 0
        agree = {b: int((sizes == own)[vary].sum()) for b, sizes in known_sizes.items()}
        best = max(agree, key=lambda b: agree[b])
        if vary.any() and agree[best] <= vary.sum() / 2:
            raise InputError(
                f"the batch of the graph cannot be told from its sizes: {agree[best]} of "
                f"{int(vary.sum())} agree at batch {best}, fewer at others; give it, as batch="
            )
        return best

    def __str__(self) -> str:
        counts = Counter(self.shapes)
        shapes = ", ".join(f"{counts[s]} {s}" for s in SHAPES)
        ops = counted(len(self.names), "op")
        lines = [
            f"{ops} from batches {_listed(self.batches)} to {self.batch}: "
            f"{format_seconds(float(self.seconds.sum()))} in all; {shapes}; "
            f"uncertain by {np.median(self.deviation):.0%} in the middle"
        ]
        if self.output_bytes is None:
            lines.append("output bytes: fewer than two batches tell")
        elif self.uneven:
            lines.append(f"output bytes on no line: {_named(self.uneven)}")
        if self.left_out:
            lines.append(f"not in every profile, left out: {_named(self.left_out)}")
        return "\n".join(lines)


def sweep(profiles: Iterable[Profile], batch: int) -> Regression:
    """Times and output bytes at a batch, from profiles at several smaller ones.

    Parameters
    ----------
    profiles : iterable of Profile
        Profiles of one graph on one device type, each with its batch. Those of the same batch count
        as one. More steps are better: the fastest step shows the time that an op needs, the median
        the time that it usually takes.
    batch : int
        The batch to estimate.

    Returns
    -------
    Regression
        Give it to :func:`loadmaster.place` as ``costs``, or apply it to a graph.

    Raises
    ------
    InputError
        A profile without a batch; profiles of one batch only, or of several device types; an op
        whose kind differs between profiles; profiles with fewer than half of their ops in common.

    Notes
    -----
    O(n log n) in ops, times batches. The result does not depend on the order of ops or profiles.

    Examples
    --------
    >>> import numpy as np
    >>> from loadmaster import Profile, costs
    >>> def measured(batch):
    ...     seconds = np.array([[5e-6], [1e-5 * batch]])
    ...     return Profile(("relu", "conv"), ("Relu", "Conv"), seconds, "cpu", batch)
    >>> found = costs.sweep([measured(2), measured(4), measured(6)], batch=16)
    >>> np.round(found.seconds * 1e6).tolist(), found.names
    ([160.0, 5.0], ('conv', 'relu'))
    """
    by_batch = _by_batch(list(profiles), batch)
    kind_of = _kinds([*by_batch.values()])
    names = sorted(set.intersection(*({*p.names} for p in by_batch.values())))
    left_out = sorted(kind_of.keys() - set(names))
    if len(names) < len(kind_of) / 2:
        raise InputError(
            f"the profiles have {counted(len(names), 'op')} in common of {len(kind_of)}: they are "
            f"of different graphs, or name ops anew each time; {left_out[0]!r} is not in "
            "all of them"
        )
    kinds = tuple(kind_of[name] for name in names)
    sizes_of = _sizes(by_batch, names)
    sizes, uneven = _bytes(sizes_of, names, batch)
    growth = _growth(by_batch, names, kinds, sizes_of, batch)
    return Regression(
        tuple(names),
        kinds,
        next(iter(by_batch.values())).device_type,
        batch,
        tuple(by_batch),
        growth.seconds,
        growth.deviation,
        tuple(SHAPES[s] for s in growth.weights.argmax(axis=1)),
        sizes,
        sizes_of,
        uneven,
        tuple(left_out),
    )


def _by_batch(profiles: Sequence[Profile], target: int) -> dict[int, Profile]:
    """One profile per batch, smallest first."""
    checks.integer("batch", target)
    if not profiles:
        raise InputError("no profiles: a sweep wants some of at least two batches")
    profiles_of: dict[int, list[Profile]] = {}
    for i, profile in enumerate(profiles):
        if profile.batch is None:
            raise InputError(f"profile {i} does not say its batch: give it, as Profile(batch=4)")
        profiles_of.setdefault(profile.batch, []).append(profile)
    if len(profiles_of) == 1:
        raise InputError(
            f"all profiles are of batch {profiles[0].batch}: how times grow with the batch takes "
            "at least two batches, better three"
        )
    types = sorted({p.device_type for p in profiles})
    if len(types) > 1:
        raise InputError(f"profiles of {' and '.join(types)}: sweep each device type by itself")
    return {size: joined(profiles_of[size]) for size in sorted(profiles_of)}


def _kinds(profiles: Sequence[Profile]) -> dict[str, str]:
    """The kind of each op of any profile."""
    together = joined(profiles)
    return dict(zip(together.names, together.kinds, strict=True))


def _growth(
    by_batch: dict[int, Profile],
    names: Sequence[str],
    kinds: Sequence[str],
    sizes: dict[int, Floats],
    target: int,
) -> Growth:
    """Times at the target batch; an op that never took time takes none there."""
    steps = [p.seconds[_rows(p, names)] for p in by_batch.values()]
    fastest = np.stack([np.nanmin(s, axis=1) for s in steps], axis=1)
    usual = np.stack([np.nanmedian(s, axis=1) for s in steps], axis=1)
    vary = _varying(sizes, len(names))
    groups = [f"{kind} {int(of)}" for kind, of in zip(kinds, vary, strict=True)]
    # A weight gradient has one size at all batches, yet takes longer. Other ops of its kind grow.
    grows = {kind for kind, of in zip(kinds, vary, strict=True) if of}
    steady = np.array([len(sizes) > 1 and kind not in grows for kind in kinds])

    n = len(names)
    growth = Growth(np.zeros(n), np.zeros(n), np.zeros((n, len(SHAPES))))
    timed = usual.any(axis=1)
    if not timed.any():
        return growth
    # Of an op that takes time, no time is below half of the least that was measured.
    least = fastest[fastest > 0].min(initial=usual[usual > 0].min()) / 2
    grown_to = grown(
        np.maximum(fastest[timed], least),
        np.maximum(usual[timed], least),
        np.array([*by_batch], dtype=np.float64),
        float(target),
        np.unique(groups, return_inverse=True)[1][timed],
        steady[timed],
    )
    growth.seconds[timed], growth.deviation[timed] = grown_to.seconds, grown_to.deviation
    growth.weights[timed] = grown_to.weights
    return growth


def _rows(profile: Profile, names: Sequence[str]) -> list[int]:
    at = {name: i for i, name in enumerate(profile.names)}
    return [at[name] for name in names]


def _sizes(by_batch: dict[int, Profile], names: Sequence[str]) -> dict[int, Floats]:
    """Output bytes by batch, for the batches that have them."""
    return {
        size: profile.output_bytes[_rows(profile, names)].astype(np.float64)
        for size, profile in by_batch.items()
        if profile.output_bytes is not None
    }


def _varying(by_batch: dict[int, Floats], n: int) -> NDArray[np.bool_]:
    """True if an op's output bytes differ between batches, as far as is known."""
    vary: NDArray[np.bool_] = np.zeros(n, dtype=bool)
    for sizes in [*by_batch.values()][1:]:
        vary = vary | (sizes != next(iter(by_batch.values())))
    return vary


def _bytes(
    by_batch: dict[int, Floats], names: Sequence[str], target: int
) -> tuple[NDArray[np.uint64] | None, tuple[str, ...]]:
    """Output bytes at the target, and ops whose bytes lie on no line."""
    if len(by_batch) < 2:
        return None, ()
    x = np.array(list(by_batch), dtype=np.float64)
    y = np.stack(list(by_batch.values()), axis=1)
    slope = (y[:, -1] - y[:, 0]) / (x[-1] - x[0])
    floor = y[:, 0] - slope * x[0]
    on_line = (np.rint(floor[:, None] + slope[:, None] * x) == y).all(axis=1)
    centred = x - x.mean()
    steep = y @ centred / (centred @ centred)
    slope = np.where(on_line, slope, steep)
    floor = np.where(on_line, floor, y.mean(axis=1) - steep * x.mean())
    sizes = np.rint(np.maximum(floor + slope * target, 0)).astype(np.uint64)
    return sizes, tuple(name for name, even in zip(names, on_line, strict=True) if not even)


def _listed(batches: Sequence[int]) -> str:
    return ", ".join(map(str, batches))


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(map(repr, names[:3])) + more
