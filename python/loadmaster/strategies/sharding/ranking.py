"""Labels on every mesh worth trying, ranked by their estimates.

Of every number of devices one axis comes first, for every weight of what may overlap. More axes go
by the weight that was best there, and by those that were as good until a mesh tells them apart. Of
fewer devices, and of more axes, only meshes are tried whose work alone takes less than the best
step so far. Of fewer devices, unless they are few, more axes are tried only where one was better
than all that more devices had, or where a mesh that is larger on one axis came near the best step.
Plans that share everything by the batch are ranked too: they are what labels that only add up may
miss.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import inf

import numpy as np

from loadmaster.base.effort import Budget
from loadmaster.base.errors import InfeasibleError
from loadmaster.model.recipe import DeviceMesh
from loadmaster.strategies.sharding.meshes import meshes
from loadmaster.strategies.sharding.solving import WEIGHTS, Labels, Solver
from loadmaster.strategies.sharding.space import Space

#: By the number of a mesh's axes: a step within this share of the least that its devices could take
#: is good enough, and the mesh is not tried.
NEAR = (0.0, 0.0, 0.03, 0.1)

#: Labels that do not fit are made to fit if their step is no longer than the best one's, times
#: this: prices of memory find other labels, which may be faster.
HOPE = 1.1

#: Weights are as good as the best one if their labels take longer by no more than this share.
TIED = 0.002

#: Meshes of so few devices are all tried whose work alone does not take longer: they are few.
FEW = 8

#: A mesh comes near the best step if its own is longer by no more than this share: one of fewer
#: devices may be as much faster.
COMES_NEAR = 0.25

#: Share of the memory that unequal parts are made for, where those by speed do not fit.
LIGHTER = 0.97


@dataclass(frozen=True)
class Ranked:
    """Labels on a mesh.

    Attributes
    ----------
    mesh : Mesh
    labels : Labels
    solver : Solver
        That found them.
    fits : bool
        Whether the estimate is within the memory of the mesh.
    units : mapping of pattern to "again" or "kept"
        Modules whose parameters one collective takes, as a :class:`.Layout` has them.
    """

    mesh: DeviceMesh
    labels: Labels
    solver: Solver
    fits: bool
    units: Mapping[str, str] = field(default_factory=dict)

    @property
    def key(self) -> tuple[bool, float]:
        """The key of ranks: what fits first; then the step, or the peak where nothing fits."""
        estimate = self.labels.estimate
        return not self.fits, estimate.step_time if self.fits else estimate.peak

    def is_same(self, other: Ranked) -> bool:
        """True for the same labels on the same mesh."""
        columns = self.labels.columns, other.labels.columns
        is_alike = self.mesh == other.mesh and self.units == other.units
        return is_alike and bool(np.array_equal(*columns))

    def looked_at(self) -> Ranked:
        """The same, estimated in the best order known."""
        estimate = self.solver.estimator.estimate(self.labels.columns, in_time=True)
        return replace(self, labels=replace(self.labels, estimate=estimate))

    def untied(self, memory: float) -> Ranked:
        """The same, or with labels that differ in layers that are alike, if these are better."""
        labels = self.solver.untied(self.labels)
        if labels is self.labels:
            return self
        other = replace(self, labels=labels, fits=labels.fits(memory)).looked_at()
        return min(self, other, key=lambda one: one.key)

    @property
    def words(self) -> str:
        """The mesh in words: "8 devices", or "2 x 4 devices"."""
        return f"{' x '.join(map(str, self.mesh.shape))} devices"


def ranked(space: Space, budget: Budget) -> Iterator[Ranked]:
    """Labels as they are found, until the clock of a budget is over."""
    best: Ranked | None = None
    weights: tuple[float, ...] = WEIGHTS
    steps: dict[tuple[int, ...], float] = {}
    for mesh in meshes(space.problem) if space.recipe is None else (space.recipe.mesh,):
        if best is not None and budget.lacks(0.0):
            return
        floor = space.work / mesh.size * _evenness(mesh)
        if best is not None and best.fits:
            is_near = best.labels.estimate.step_time <= (1 + NEAR[len(mesh.axes)]) * floor
            if is_near or not _may_gain(best, mesh, steps):
                continue
        to_beat = HOPE * best.labels.estimate.step_time if best is not None and best.fits else inf
        if best is not None and mesh.size < best.mesh.size and len(mesh.axes) > 1:
            to_beat *= 1 + COMES_NEAR
        if len(mesh.axes) == 1:
            weights = WEIGHTS
        here = list(_on(space, mesh, weights, to_beat))
        if space.recipe is None and (lighter := _lighter(space, mesh, here)):
            here += _on(space, lighter, weights, to_beat)
        yield from here
        steps[mesh.shape] = min((one.labels.estimate.step_time for one in here), default=inf)
        best = min((*here, *([best] if best else [])), key=lambda one: one.key, default=None)
        weights = _open(here, weights)


def best_of(rows: Iterable[Ranked], most: int) -> list[Ranked]:
    """The best of ranked labels, no two alike; the best few of these by a closer look at them."""
    distinct: list[Ranked] = []
    for one in sorted(rows, key=lambda one: one.key):
        if not any(one.is_same(other) for other in distinct):
            distinct.append(one)
    close = [one.looked_at() for one in distinct[:most]]
    return [*sorted(close, key=lambda one: one.key), *distinct[most:]]


def _lighter(space: Space, mesh: DeviceMesh, rows: list[Ranked]) -> DeviceMesh | None:
    """The mesh of one axis on which the devices with most to do have as much less as their memory
    wants, and the others more. None: the quickest fits, or devices have equal parts.
    """
    shares = mesh.axes[0].shares
    if len(mesh.axes) > 1 or shares is None or not rows:
        return None
    quickest = min(rows, key=lambda one: one.labels.estimate.step_time)
    if quickest.fits:
        return None
    least = quickest.labels.estimate.peak
    part = np.array(shares) / sum(shares)
    is_most = part > 0.999 * part.max()
    part[is_most] *= LIGHTER * space.memory(mesh) / least
    if is_most.all() or part[is_most].sum() >= 1:
        return None
    part[~is_most] *= (1 - part[is_most].sum()) / part[~is_most].sum()
    axis = replace(mesh.axes[0], shares=tuple(part.tolist()))
    return replace(mesh, axes=(axis,))


def _evenness(mesh: DeviceMesh) -> float:
    """The factor on the work over the number of devices: 1 where devices are alike, less
    where the fastest do more than their even share.
    """
    factor = 1.0
    for axis in mesh.axes:
        if axis.shares is not None:
            factor *= axis.size * max(axis.shares)
    return factor


def _open(rows: list[Ranked], weights: tuple[float, ...]) -> tuple[float, ...]:
    """The weights by which one mesh has its best labels, or others that are as good by estimates:
    other meshes tell which is better. All of them if the mesh has no labels.
    """
    best = min(rows, key=lambda one: one.key, default=None)
    if best is None:
        return weights
    kept = [best]
    for one in rows:
        is_near = one.fits and one.key <= (not best.fits, (1 + TIED) * best.key[1])
        is_new = all(one.labels.weight != row.labels.weight for row in kept)
        if is_near and is_new and not any(one.is_same(row) for row in kept):
            kept.append(one)
    return tuple(sorted((one.labels.weight for one in kept), reverse=True))


def _may_gain(best: Ranked, mesh: DeviceMesh, steps: dict[tuple[int, ...], float]) -> bool:
    """True for a mesh that may have a shorter step than the best labels.

    It has one axis, few devices, or as many as they have; or a mesh that is larger on one axis
    alone came near them. ``steps``: seconds by the shapes of meshes so far.
    """
    if len(mesh.axes) == 1 or mesh.size <= FEW or mesh.size >= best.mesh.size:
        return True
    limit = (1 + COMES_NEAR) * best.labels.estimate.step_time
    return any(step <= limit and _is_part(mesh.shape, of) for of, step in steps.items())


def _is_part(shape: tuple[int, ...], of: tuple[int, ...]) -> bool:
    """True if one axis of a shape alone is smaller than that of another, by half of it at most.

    >>> [_is_part((2, 4), of) for of in ((4, 4), (3, 4), (8, 4), (4, 8), (2, 2, 4), (2, 4, 3))]
    [True, True, False, False, True, False]
    """
    if len(of) == len(shape) + 1:
        return any(size == 2 and of[:i] + of[i + 1 :] == shape for i, size in enumerate(of))
    differing = [(a, b) for a, b in zip(shape, of, strict=False) if a != b]
    return (
        len(of) == len(shape) and len(differing) == 1 and all(a < b <= 2 * a for a, b in differing)
    )


def _on(
    space: Space, mesh: DeviceMesh, weights: tuple[float, ...], to_beat: float
) -> Iterator[Ranked]:
    """Labels on one mesh, for some weights, and where it has one axis those that share by the
    batch.
    """
    memory, solver = space.memory(mesh), space.solver(mesh)
    for labels in solver.all_weights(memory, weights, to_beat):
        yield Ranked(mesh, labels, solver, labels.fits(memory))
    if space.has_uneven_experts:
        apart = space.solver_of_cut_experts(mesh)
        with suppress(InfeasibleError):
            for labels in apart.all_weights(memory, weights[:1], to_beat):
                yield Ranked(mesh, labels, apart, labels.fits(memory))
    if len(mesh.axes) > 1:
        return
    for state in (("whole",), ("flat",)):
        only = space.solver_of_batch(mesh, state)
        try:
            labels = only.solve(weights[0])
        except InfeasibleError:
            continue
        step = labels.estimate.step_time
        space.of_batch[mesh.size] = min(step, space.of_batch.get(mesh.size, inf))
        yield Ranked(mesh, labels, only, labels.fits(memory))
