"""A model as an input of Piper, for every way in which all stages may share their work alike.

Piper gives each stage a degree of tensor parallelism t and a number d of replicas of its own. A
recipe has one mesh for the inside of all stages, so here every stage has the same t and the same d,
and each such pair is an input by itself: what d and t do to a part of the model is in its seconds
and bytes. Labels of tensor parallelism are the cheapest of those that cut features, heads and
experts, the same in every stage.

A part is what lies between two cut candidates of the model's first line. It can keep its
activations or recompute them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

import loadmaster.fast as fast
from loadmaster.base.errors import InfeasibleError
from loadmaster.dimensions.dimensions import Dimensions
from loadmaster.dimensions.words import labels_of
from loadmaster.judge.problem import Problem
from loadmaster.model.recipe import DeviceMesh, Recipe
from loadmaster.readers.planners.piper import Piper
from loadmaster.strategies.pipelines.baselines import PER_STAGE
from loadmaster.strategies.pipelines.batched import MicroBatched
from loadmaster.strategies.pipelines.space import PipelineSpace
from loadmaster.strategies.pipelines.stage_costs import StageCosts
from loadmaster.strategies.pipelines.stage_links import collective_seconds, mean_link
from loadmaster.strategies.sharding.solving import Solver
from loadmaster.strategies.sharding.space import Space as Sharding
from loadmaster.strategies.sharding.space import has_shapes
from loadmaster.strategies.sharding.uniform import TENSOR, roles_only
from loadmaster.transforms.layout import Layout

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Width:
    """The way in which every stage shares its work.

    Attributes
    ----------
    space : Space
    m : int
        Micro-batches. Each is cut among the replicas.
    replicas, tensor : int
    layout : Layout or None
        The inside of stages; None: a stage is on one device.
    """

    space: PipelineSpace
    m: int
    replicas: int
    tensor: int
    layout: Layout | None

    @property
    def size(self) -> int:
        """Devices of a stage."""
        return self.replicas * self.tensor

    @property
    def stages(self) -> int:
        """The number of stages that there are devices for."""
        return self.space.problem.cluster.n_devices // self.size

    @cached_property
    def on(self) -> NDArray[np.int64]:
        """The devices of each stage, neighbours together: int64 [n_stages, size]."""
        devices = [d for pool in self.space.pools for d in pool.devices]
        return np.array(devices[: self.stages * self.size]).reshape(self.stages, self.size)

    @cached_property
    def part(self) -> NDArray[np.int64]:
        """The part of the line that each of the user's ops is in: int64 [n_ops]."""
        line, at = self.space.lines[0]
        return np.searchsorted(at[1:-1], line.place, "right").astype(np.int64)

    @cached_property
    def kept(self) -> _Parts:
        """Time and memory of parts with activations kept."""
        return _Parts.of(self, again=False)

    @cached_property
    def recomputed(self) -> _Parts:
        """The same with activations recomputed."""
        return _Parts.of(self, again=True)

    def given(self, *, again: bool, share: float = 1.0) -> Piper:
        """The input, with activations kept; with ``again``, a part may recompute them, too.

        A sample is a micro-batch. In Piper's terms it is ``replicas`` samples, one each. A device
        has a share of its memory.
        """
        ways = [self.kept]
        if again and self.space.layers:
            ways.append(self.recomputed)
        n, links = len(ways[0].numbers), self.space.problem.links
        known = np.unique(np.sort([ways[0].one, ways[0].other], axis=0), axis=1)
        return Piper(
            ids=tuple(range(n)),
            src=known[0],
            dst=known[1],
            layer=np.tile(np.arange(n), len(ways)),
            degree=np.ones(n * len(ways), dtype=np.int64),
            names=("kept",) * n + ("recomputed",) * (n * (len(ways) - 1)),
            numbers=np.concatenate([way.numbers for way in ways]),
            choice=np.concatenate([way.one + at * n for at, way in enumerate(ways)]),
            other=np.concatenate([way.other for way in ways]),
            exchanged=np.concatenate([way.exchanged for way in ways]),
            devices=self.stages,
            memory=share * float(self.space.problem.capacity[self.on.ravel()].min()),
            bandwidth=1 / links.mean_link[1],
            # No number of further replicas divides it: those that there are count already.
            samples=_prime_above(self.stages),
        )


def _prime_above(n: int) -> int:
    """The least prime above a number.

    >>> [_prime_above(n) for n in (1, 4, 7)]
    [2, 5, 11]
    """
    return next(k for k in range(n + 1, 2 * n + 2) if all(k % i for i in range(2, k)))


def widths(space: PipelineSpace, micro: int | None) -> Iterator[Width]:
    """Every number of replicas and degree of tensor parallelism that devices and batch allow.

    ``micro`` is the number of micro-batches; None: up to four per stage, as GPipe advises. A
    replica has a whole sample of each micro-batch.
    """
    problem, n = space.problem, space.problem.cluster.n_devices
    counts, _ = space.checked(micro, None)
    for t in (t for t in range(1, n + 1) if n % t == 0):
        labels = _tensor_labels(space, t)
        if labels is None:
            continue
        for d in (d for d in range(1, n // t + 1) if n // t % d == 0):
            fitting = [m for m in counts if d == 1 or space.batch % (m * d) == 0]
            if not fitting or (d > 1 and not has_shapes(problem.model)):
                continue
            few = [m for m in fitting if m <= PER_STAGE * (n // (t * d))]
            layout = _layout(problem, d, t, labels)
            yield Width(space, max(few, default=fitting[0]), d, t, layout)


def _tensor_labels(space: PipelineSpace, t: int) -> NDArray[np.int32] | None:
    """Labels of tensor parallelism: int32 [1, n_ops], of one device [0, n_ops]. None: there are
    none that go with each other, or nobody knows how ops can be cut.
    """
    problem = space.problem
    if t == 1:
        return np.empty((0, problem.model.n_ops), dtype=np.int32)
    if not has_shapes(problem.model):
        return None
    sharding = Sharding.of(problem)
    names = [problem.cluster.devices[d].name for pool in space.pools for d in pool.devices]
    setting = sharding.setting(DeviceMesh.of({"tp": t}, names[:t]))
    allowed = roles_only(sharding.structure, TENSOR, ("whole", *TENSOR))
    try:
        labels = Solver(setting, [allowed]).solve(1.0)
    except InfeasibleError:
        return None
    return sharding.structure.labels(labels.columns)


def _layout(problem: Problem, d: int, t: int, tensor: NDArray[np.int32]) -> Layout | None:
    """The batch among d replicas, and inside of these the labels of tensor parallelism."""
    axes = {name: size for name, size in (("dp", d), ("tp", t)) if size > 1}
    if not axes:
        return None
    rows, dimensions = [tensor], Dimensions.of(problem.model)
    if d > 1:
        batch = Recipe(DeviceMesh.of({"dp": d}), {"dp": {"**": "batch"}})
        rows.insert(0, labels_of(dimensions, batch))
    return Layout(dimensions, DeviceMesh.of(axes), np.concatenate(rows))


@dataclass(frozen=True, eq=False)
class _Parts:
    """Time and memory of the parts of a model, on one of the devices of a stage.

    Attributes
    ----------
    numbers : float64 [n, 4]
        Columns as :class:`Piper` has them.
    one, other : int64 [x]
        Parts that exchange tensors, each pair in both orders.
    exchanged : float64 [x]
        Bytes per micro-batch, forward and back.
    """

    numbers: Floats
    one: NDArray[np.int64]
    other: NDArray[np.int64]
    exchanged: Floats

    @classmethod
    def of(cls, width: Width, *, again: bool) -> _Parts:
        """Of one micro-batch, with activations kept or recomputed."""
        space, (line, at) = width.space, width.space.lines[0]
        probe = space.probe(width.m, again=again, layout=width.layout)
        sets = width.on.tolist()
        together = collective_seconds(probe, sets) if probe.has_collectives else None
        link = mean_link(probe.links, sets)
        costs = StageCosts.of(MicroBatched(probe), line.place, at, link, together)
        n, here = costs.n_cuts - 1, np.arange(costs.n_cuts - 1)
        slowest = max(probe.cluster.device_types, key=lambda kind: float(costs.work[kind]))
        gradients, d = costs.gradients[here, here + 1], width.replicas
        summed = 4 * (d - 1) / d / width.m * probe.links.mean_link[1] * gradients
        op_of, program = probe.reduced.op_of, probe.program
        part = width.part[program.serves[op_of]]
        seconds = np.diff(costs.until[:3, :, slowest].sum(axis=0)) + summed
        first = program.rank[op_of] <= 0
        stays = np.bincount(part[first], probe.graph.resident[first].astype(np.float64), n)
        held = costs.held[here, here + 1].astype(np.float64)
        numbers = np.stack([seconds, gradients, held, stays + gradients], axis=1)
        last = first & (program.micro[op_of] == 1)
        return cls(numbers, *_exchanges(probe, part, last))


def _exchanges(
    probe: Problem, part: NDArray[np.int64], some: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], NDArray[np.int64], Floats]:
    """Parts that exchange tensors that some ops make for some, in both orders, and the bytes."""
    src, dst, tensor, size, is_home = fast.edges(probe.graph)
    goes = (tensor >= 0) & ~is_home & some[src] & some[dst] & (part[src] != part[dst])
    rows = np.stack([tensor[goes].astype(np.int64), part[src[goes]], part[dst[goes]]])
    rows, once = np.unique(rows, axis=1, return_index=True)
    pairs, which = np.unique(np.sort(rows[1:], axis=0), axis=1, return_inverse=True)
    # Without any row numpy counts integers.
    bytes_ = np.bincount(which.ravel(), size[goes][once], pairs.shape[1]).astype(np.float64)
    one, other = np.concatenate([pairs, pairs[::-1]], axis=1)
    return one, other, np.tile(bytes_, 2)
