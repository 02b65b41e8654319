"""Labels on every mesh worth trying, ranked by their estimates.

One axis over all devices comes first, for every weight of what may overlap; more axes go by the
weight that was best there. Of fewer devices, and of more axes, only meshes are tried whose work
alone takes less than the best step so far; of fewer devices more axes only where one was better
than all that more devices had. Plans that share everything by the batch are ranked too:
they are what labels that only add up may miss.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
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
    """

    mesh: DeviceMesh
    labels: Labels
    solver: Solver
    fits: bool

    @property
    def key(self) -> tuple[bool, float]:
        """The key of ranks: what fits first; then the step, or the peak where nothing fits."""
        estimate = self.labels.estimate
        return not self.fits, estimate.step_time if self.fits else estimate.peak

    def is_same(self, other: Ranked) -> bool:
        """True for the same labels on the same mesh."""
        columns = self.labels.columns, other.labels.columns
        return self.mesh == other.mesh and bool(np.array_equal(*columns))

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
    of_all: Ranked | None = None
    for mesh in meshes(space.problem) if space.recipe is None else (space.recipe.mesh,):
        if best is not None and budget.lacks(0.0):
            return
        floor = space.work / mesh.size * _evenness(mesh)
        if best is not None and best.fits and _is_hopeless(best, floor, mesh):
            continue
        weights = WEIGHTS if of_all is None else (of_all.labels.weight,)
        to_beat = HOPE * best.labels.estimate.step_time if best is not None and best.fits else inf
        here = list(_on(space, mesh, weights, to_beat))
        if space.recipe is None and (lighter := _lighter(space, mesh, here)):
            here += _on(space, lighter, weights, to_beat)
        yield from here
        best = min((*here, *([best] if best else [])), key=lambda one: one.key, default=None)
        of_all = of_all or best


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


def _is_hopeless(best: Ranked, floor: float, mesh: DeviceMesh) -> bool:
    """True for a mesh that cannot gain enough, or has several axes of devices of which one axis was
    worse than what there is on more devices.
    """
    is_near = best.labels.estimate.step_time <= (1 + NEAR[len(mesh.axes)]) * floor
    return is_near or (len(mesh.axes) > 1 and mesh.size < best.mesh.size)


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
