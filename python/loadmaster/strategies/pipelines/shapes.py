"""Pipelines ranked by what their stages cost: micro-batches, stages, schedule, recomputation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from loadmaster.base.units import counted
from loadmaster.model.micro import WINDOWS, Micro
from loadmaster.strategies.candidate import Candidate
from loadmaster.strategies.pipelines.chains import (
    Chain,
    Pool,
    StageWay,
    best_chain,
    most_alive,
    times,
)
from loadmaster.strategies.pipelines.estimates import StageTimes, estimated
from loadmaster.strategies.pipelines.floors import CHUNKS
from loadmaster.strategies.pipelines.insides import Inside
from loadmaster.strategies.pipelines.piped import micro_of, schedule_of, with_recipe
from loadmaster.strategies.pipelines.schedules import (
    IN_V,
    INTERLEAVED,
    Named,
    Windows,
    alive_of_stages,
    windows,
)
from loadmaster.strategies.pipelines.scheduling import scheduled
from loadmaster.strategies.pipelines.space import Gathered, PipelineSpace
from loadmaster.strategies.pipelines.staged import Staged
from loadmaster.transforms.layout import Layout

#: Most estimates that local moves of cuts may ask for.
MOVES = 300


@dataclass(frozen=True, eq=False)
class PipelineShape:
    """A pipeline, by its stages.

    Attributes
    ----------
    space : Space
    m : int
        Micro-batches.
    line : int
        Which of the space's lines is cut.
    pools : list of Pool
        Devices that stages are on: each as often as it has stages.
    ways : list of Way
        Ways to run stages; those from ``len(pools)`` on recompute activations.
    chain : Chain
    schedule : a name, or Windows
    virtual : int
        Stages per device.
    inside : Inside, optional
        How the devices of a stage share its ops. Absent: a stage has one.
    """

    space: PipelineSpace
    m: int
    line: int
    pools: list[Pool]
    ways: list[StageWay]
    chain: Chain
    schedule: Named | Windows
    virtual: int = 1
    inside: Inside | None = None

    @cached_property
    def times(self) -> StageTimes:
        """Seconds of each stage."""
        return times(self.pools, self.ways, self.chain, self.space.problem.links)

    @property
    def is_allowed(self) -> bool:
        """True if the system that runs it takes such a pipeline."""
        named = self.schedule if isinstance(self.schedule, str) else WINDOWS
        p = len(self.chain) // self.virtual
        return self.space.allows(named, self.m, p, self.stage)

    @cached_property
    def seconds(self) -> float:
        """Seconds of a step, as far as stages tell."""
        return float(estimated(self.times, self.m, self.schedule, self.virtual).seconds)

    @property
    def least(self) -> float:
        """Seconds that no schedule of these stages can be below, as far as stages tell: each does
        its work after what comes before it.
        """
        times, p = self.times, len(self.chain) // self.virtual
        work = self.m * (times.forward + times.backward + times.weight) + times.update
        before = np.cumsum(times.forward)[:p] - times.forward[:p]
        sets = list(dict.fromkeys(self.chain.devices))
        np.add.at(of_set := np.zeros(p), [sets.index(some) for some in self.chain.devices], work)
        return float((before + of_set).max())

    @cached_property
    def stage(self) -> NDArray[np.int32]:
        """The stage of each of the user's ops."""
        line, cuts = self.space.lines[self.line]
        return self.chain.stage(line.place, cuts)

    def most_alive(self, share: float) -> list[int]:
        """Micro-batches of each virtual stage that a device may hold in a share of its memory."""
        alive = most_alive(self.pools, self.ways, self.chain, self.m, share)
        p = len(self.chain) // self.virtual
        return [min(alive[s::p]) * self.virtual for s in range(p)]

    @property
    def modules(self) -> tuple[str, ...]:
        """Patterns of the layers that are recomputed: those whose forward pass ends in a stage that
        recomputes activations.
        """
        again = np.array(self.chain.ways) >= len(self.pools)
        return self.space.recomputed(self.stage, again) if again.any() else ()

    @property
    def gathered(self) -> PipelineShape | None:
        """The same stages with look-ups in tied weights where the last readers of these are; None:
        there are none.
        """
        if self.inside is not None:
            return None
        space, n = self.space.gathered(self.line), len(self.pools)
        if space is None:
            return None
        ways = [
            replace(way, costs=space.costs(self.m, again=at >= n, inside=self.inside)[0])
            for at, way in enumerate(self.ways)
        ]
        return replace(self, space=space, line=0, ways=ways)

    @property
    def words(self) -> str:
        """The pipeline in words."""
        kept = [w < len(self.pools) for w in self.chain.ways]
        again = "" if all(kept) else f", {counted(kept.count(False), 'stage')} recomputed"
        per_device = f", {self.virtual} per device" if self.virtual > 1 else ""
        inside = f" x {self.inside.words}" if self.inside is not None else ""
        name = self.schedule if isinstance(self.schedule, str) else "searched schedule"
        micro = counted(self.m, "micro-batch", "micro-batches")
        rows = ", looked up where a tied weight is" if isinstance(self.space, Gathered) else ""
        said = f"{counted(len(self.chain), 'stage')}{inside}{per_device}, {micro}, {name}"
        return f"{said}{again}{rows}"

    @property
    def made_of(
        self,
    ) -> tuple[NDArray[np.int32], NDArray[np.int64], Micro, tuple[str, ...], Layout | None]:
        """The stage of each op, the devices of each stage, micro-batches, what is recomputed, and
        how ops are shared inside of stages.
        """
        micro = micro_of(self.m, self.schedule, self.virtual)
        layout = None if self.inside is None else self.inside.layout
        return self.stage, np.array(self.chain.devices), micro, self.modules, layout

    def judged(self) -> Candidate | None:
        """The pipeline, judged on all its ops; None: it is refused, and its space knows why."""
        return self.space.refusals.tried(self.words, self._judged)

    def _judged(self) -> Candidate:
        stage, devices, micro, modules, layout = self.made_of
        if layout is not None:
            layout = replace(layout, stage=stage)
        placed = self.space.placed(self.m, modules, layout)
        candidate = scheduled(Staged.of(placed, stage, devices), schedule_of(micro))
        assignment = replace(candidate.assignment, estimate=self.seconds)
        return replace(
            candidate, assignment=assignment, notes=(self.words, *candidate.problem.program.notes)
        )

    def with_recipe(self, candidate: Candidate) -> Candidate:
        """The judged candidate, with its recipe."""
        return with_recipe(candidate, *self.made_of)


def ranked(
    space: PipelineSpace,
    counts: Sequence[int],
    numbers: Sequence[int],
    schedules: Sequence[Named],
    share: float = 1.0,
    inside: Inside | None = None,
) -> list[PipelineShape]:
    """The best pipeline of each number of micro-batches, of stages, and schedule, by what stages
    tell of the step; the best first. Those that nothing could run are left out.

    Where a line has no stages that fit within ``share`` of the memory, stages may recompute
    activations.
    """
    shapes = []
    for m in counts:
        for p in numbers:
            for schedule in schedules:
                of_lines = _of_lines(space, m, p, schedule, share, inside)
                here = [shape for shape in of_lines if shape.is_allowed]
                shapes += [min(here, key=lambda shape: shape.seconds)] if here else []
    return sorted(shapes, key=lambda shape: shape.seconds)


def _of_lines(
    space: PipelineSpace, m: int, p: int, schedule: Named, share: float, inside: Inside | None
) -> Iterator[PipelineShape]:
    """The best stages of each line."""
    virtual = CHUNKS if schedule in INTERLEAVED else 1
    if schedule == "interleaved-1f1b" and m % p:
        return
    usable = space.pools if inside is None else inside.pools
    pools, weight = _pools(usable, p, schedule, virtual), m - 1.0
    if pools is None:
        return
    in_flight = alive_of_stages(windows(schedule, p, m, virtual), m, virtual)
    for line in range(len(space.lines)):
        ways: list[StageWay] = []
        for again in (False, True) if space.layers else (False,):
            costs = space.costs(m, again=again, inside=inside)[line]
            ways += [StageWay(costs, pool, in_flight) for pool in range(len(pools))]
            chain = best_chain(pools, ways, p * virtual, weight, share=share)
            if chain is not None:
                yield PipelineShape(space, m, line, pools, ways, chain, schedule, virtual, inside)
                break


def _pools(pools: list[Pool], p: int, schedule: Named, virtual: int) -> list[Pool] | None:
    """Devices for so many stages each; None where they are not alike."""
    if virtual == 1:
        return pools
    if len(pools) > 1:
        return None
    (pool,) = pools
    sets = pool.sets[:p]
    in_turn = sets + sets[::-1] if schedule == IN_V else sets * virtual
    devices = tuple(device for some in in_turn for device in some)
    return [replace(pool, memory=pool.memory // virtual, devices=devices)]


def moved(shape: PipelineShape, share: float = 1.0, most: int = MOVES) -> PipelineShape:
    """The shape with its cuts moved, one at a time, while its stages tell of a shorter step."""
    best, left, step = shape, most, 4
    seconds = best.seconds
    while step:
        better = False
        for other in near(best, step):
            if left <= 0:
                return best
            if not holds(other, share):
                continue
            left -= 1
            if (shorter := other.seconds) < seconds:
                best, seconds, better = other, shorter, True
                break
        if not better:
            step //= 2
    return best


def near(shape: PipelineShape, step: int) -> Iterator[PipelineShape]:
    """The shapes with one cut some candidates later or sooner that something could run."""
    ends = shape.chain.ends
    for at in range(len(ends) - 1):
        for end in (ends[at] + step, ends[at] - step):
            if (ends[at - 1] if at else 0) < end < ends[at + 1]:
                changed = (*ends[:at], end, *ends[at + 1 :])
                other = replace(shape, chain=replace(shape.chain, ends=changed))
                if other.is_allowed:
                    yield other


def holds(shape: PipelineShape, share: float) -> bool:
    """True if the memory holds what the schedule keeps alive, and devices may run all ops."""
    p = len(shape.chain) // shape.virtual
    schedule = shape.schedule
    if isinstance(schedule, str):
        schedule = windows(schedule, p, shape.m, shape.virtual)
    alive = alive_of_stages(schedule, shape.m, shape.virtual)
    for (i, j), w, count in zip(shape.chain.ranges, shape.chain.ways, alive, strict=True):
        way, pool = shape.ways[w], shape.pools[shape.ways[w].pool]
        need = int(way.costs.fixed[i, j]) + count * int(way.costs.held[i, j])
        if need > share * pool.memory or not np.isfinite(way.costs.loads[pool.device_type][i, j]):
            return False
    return True
