"""Grids of devices as Megatron-LM has them: tensor parallelism inside of replicas inside of stages.

A grid is tp x dp x pp devices, with a number of micro-batches and of runs of layers per stage, with
some or all of the layers recomputed or nothing, and with routed experts apart on ep of the dp
replicas. What the layers take for one micro-batch is read off a simulation in
which the devices of one stage have all of them, two micro-batches one after the other: collectives,
and what overlaps with them, are in it. Where stages are cut, and what a schedule makes of that, is
estimated from these seconds; the judge has the last word on the best few.

Grids come in the order of what they take at least, and are looked at when it is their turn: most
never are.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import count
from math import gcd

import numpy as np
from numpy.typing import NDArray

from loadmaster.base.errors import InputError
from loadmaster.dimensions.dimensions import Dimensions
from loadmaster.judge.problem import Problem
from loadmaster.model.factorisations import divisors, factorisations
from loadmaster.model.graph import PARAMETER
from loadmaster.model.micro import Micro
from loadmaster.model.parallelism import Parallelism
from loadmaster.model.program import Program
from loadmaster.model.recipe import DeviceMesh
from loadmaster.rules.layer_list import LayerList
from loadmaster.strategies.candidate import Candidate
from loadmaster.strategies.grids.expert_parallel import AXIS as EXPERTS
from loadmaster.strategies.grids.expert_parallel import number_of_experts
from loadmaster.strategies.grids.layer_space import LayerSpace
from loadmaster.strategies.grids.recomputation_levels import (
    NOTHING,
    RecomputationLevel,
    whole_layers,
)
from loadmaster.strategies.grids.tensor_parallel import divides, norms_by_tokens, weights_cut
from loadmaster.strategies.pipelines.batched import MicroBatched
from loadmaster.strategies.pipelines.chains import Chain, Pool, StageWay, best_chain, pools, times
from loadmaster.strategies.pipelines.estimates import estimated
from loadmaster.strategies.pipelines.phases import FORWARD, ONCE
from loadmaster.strategies.pipelines.piped import (
    in_micro_batches,
    run_in_stages,
    slices_of_stages,
    with_recipe,
)
from loadmaster.strategies.pipelines.schedules import Named, alive_of_stages, windows
from loadmaster.strategies.pipelines.scheduling import scheduled
from loadmaster.strategies.pipelines.stage_costs import StageCosts
from loadmaster.strategies.pipelines.stage_links import mean_link
from loadmaster.strategies.pipelines.staged import Staged
from loadmaster.strategies.sharding.judging import layout as layout_of
from loadmaster.strategies.sharding.ranking import Ranked
from loadmaster.strategies.sharding.space import Space
from loadmaster.transforms.layout import Layout
from loadmaster.transforms.reducer import updated_last

#: The most micro-batches that are tried unless a user asks for more.
MOST_MICRO = 64

#: Factor by which a stage of equal numbers of layers may take longer than one that is cut by time.
_EVEN = 0.002

#: Grids whose estimate is longer than the best judged step by more than this share are left out.
_WITHIN = 0.05

#: A share of the memory that will always do.
ANY = 1e6


@dataclass(frozen=True)
class Grid:
    """Sizes: of the tensor-parallel group, of replicas, of stages; micro-batches, runs of layers
    per stage; what is recomputed; how many of the replicas have the experts apart.
    """

    tp: int
    dp: int
    pp: int = 1
    m: int = 1
    virtual: int = 1
    recomputed: RecomputationLevel = NOTHING
    ep: int = 1

    @property
    def size(self) -> int:
        """Devices."""
        return self.tp * self.dp * self.pp

    @property
    def schedule(self) -> Named:
        """The schedule that Megatron-LM has for it."""
        return "1f1b" if self.virtual == 1 else "interleaved-1f1b"

    @property
    def parallelism(self) -> Parallelism:
        """The degrees of parallelism, with all state of replicas whole."""
        return Parallelism(
            replicate=self.dp,
            tp=self.tp,
            ep=self.ep,
            stages=self.pp,
            virtual=self.virtual,
            micro_batches=self.m,
            schedule=self.schedule if self.pp > 1 else None,
            recompute=self.recomputed.recompute,
            recompute_modules=self.recomputed.modules,
        )


@dataclass(frozen=True)
class GridOfLayers:
    """A grid with the layers of its stages, and what it is taken to need: seconds of a step."""

    grid: Grid
    seconds: float
    chain: Chain | None = None


@dataclass(frozen=True)
class Unseen:
    """A grid whose labels nobody has asked for yet: with the most runs of layers per stage, and
    seconds that it takes at least for another reason.
    """

    grid: Grid
    quickest: Grid
    least: float


@dataclass(frozen=True)
class Asked:
    """Sizes of a grid that a user may have asked for; None: several are tried."""

    tp: int | None = None
    pp: int | None = None
    dp: int | None = None
    m: int | None = None
    virtual: int | None = None
    ep: int | None = None


@dataclass(frozen=True)
class LabelsKey:
    """All that the labels inside of a stage depend on, for one model on one cluster.

    Attributes
    ----------
    tp, dp, ep : int
    parts : int
        Devices that have a part each of a replica; 0: replicas are whole.
    sequence : bool
        Whether what lies between the products may be cut by tokens.
    """

    tp: int
    dp: int
    ep: int
    parts: int
    sequence: bool


@dataclass(frozen=True)
class CostsKey:
    """All that the costs of layers depend on: labels, how state lies, micro-batches, and what is
    recomputed; not how layers are cut into stages.
    """

    labels: LabelsKey
    state: str
    m: int
    recomputed: RecomputationLevel


@dataclass(frozen=True, eq=False)
class Known:
    """Labels and costs that were found, of one model on one cluster. Sorts of grids share them."""

    labels: dict[LabelsKey, Ranked | None] = field(default_factory=dict)
    costs: dict[CostsKey, StageCosts] = field(default_factory=dict)


@dataclass(eq=False)
class JudgedGrids:
    """The judge's verdicts on grids so far.

    Attributes
    ----------
    over : set of Grid
        Those that do not fit.
    enough : float
        Seconds; grids that take more are not looked at.
    """

    over: set[Grid] = field(default_factory=set)
    enough: float = np.inf

    def below(self, seconds: float) -> None:
        """Leaves out from now on grids that take much more than so long."""
        self.enough = min(self.enough, (1 + _WITHIN) * seconds)


@dataclass(frozen=True, eq=False)
class Grids:
    """The grids of a training step with a list of layers.

    Attributes
    ----------
    problem : Problem
    listed : LayerList
    batch : int
        Samples of a step.
    sequence : bool
        Whether what lies between the products may be cut by tokens.
    flat : bool
        Whether replicas have a part each of the optimizer's state (ZeRO 1).
    levels : sequence of RecomputationLevel
        What may be recomputed: a level is tried where those before it do not fit.
    known : Known
        What other grids of this model on this cluster found.
    """

    problem: Problem
    listed: LayerList
    batch: int
    sequence: bool = True
    flat: bool = True
    levels: Sequence[RecomputationLevel] = (NOTHING,)
    known: Known = field(default_factory=Known)

    @cached_property
    def devices(self) -> tuple[int, ...]:
        """The devices of the commonest kind, neighbours next to each other."""
        return max(pools(self.problem), key=lambda pool: len(pool.devices)).devices

    @cached_property
    def kind(self) -> int:
        """Their type."""
        return self.problem.cluster.device_types[self.devices[0]]

    @cached_property
    def memory(self) -> int:
        """Bytes of the smallest of them."""
        return int(self.problem.capacity[list(self.devices)].min())

    @cached_property
    def space(self) -> Space | None:
        """The space of shards; None: the graph does not say how its ops can be cut."""
        try:
            return Space.of(self.problem)
        except InputError:
            return None

    @cached_property
    def layers(self) -> LayerSpace:
        """Places where the model may be cut."""
        return LayerSpace(
            self.problem, self.batch, module_cuts=self.listed.cuts, listed=self.listed
        )

    @cached_property
    def full(self) -> RecomputationLevel:
        """The level at which layers are recomputed as a whole."""
        return RecomputationLevel.of(self.problem, (whole_layers(self.listed),), self.kind)

    @cached_property
    def n_experts(self) -> int:
        """Into how many parts the routed experts of every layer go; 0: there are none."""
        return 0 if self.space is None else number_of_experts(self.space.structure)

    @cached_property
    def work(self) -> float:
        """Seconds of all ops on one device."""
        return float(self.problem.time[:, self.kind].sum())

    # -- which there are ---------------------------------------------------------------------------

    def sizes(self, asked: Asked) -> Iterator[Grid]:
        """Grids of one micro-batch and one run per stage, of every number of devices."""
        numbers: Iterable[int] = range(len(self.devices), 0, -1)
        if asked.tp and asked.pp and asked.dp:
            numbers = [asked.tp * asked.pp * asked.dp]
        for pp, tp, dp in factorisations(numbers, 3, partial(self._may, asked)):
            for ep in divisors(gcd(dp, self.n_experts or 1)):
                if asked.ep in (None, ep):
                    yield Grid(tp, dp, pp, ep=ep)

    def _may(self, asked: Asked, sizes: tuple[int, ...]) -> bool:
        """True if a grid may begin with some sizes: of pp, tp and dp."""
        *outer, last = sizes
        match outer:
            case []:
                return asked.pp in (None, last) and last <= len(self.listed)
            case [_]:
                # Megatron-LM trains no experts on tensor-parallel devices without sequences.
                is_trained = last == 1 or not self.n_experts or self.sequence
                return is_trained and asked.tp in (None, last) and self._can_cut(last)
            case [pp, _]:
                if asked.dp not in (None, last) or self.batch % last:
                    return False
                return (pp, last) == (1, 1) or self.batch // last >= min(pp, 2)
        return False

    def _can_cut(self, tp: int) -> bool:
        """True if heads and features go into so many equal parts."""
        return tp == 1 or divides(Dimensions.of(self.problem.model), tp)

    def micro(self, grid: Grid, asked: Asked) -> list[int]:
        """Numbers of micro-batches of a grid: the divisors of what a replica has."""
        each = self.batch // grid.dp
        if asked.m is not None:
            return [asked.m] if each % asked.m == 0 else []
        numbers = [m for m in divisors(each) if m <= MOST_MICRO]
        return [m for m in numbers if m > 1 or grid.pp == 1]

    def virtual(self, grid: Grid, asked: Asked) -> list[int]:
        """Numbers of runs of layers per stage."""
        most = len(self.listed) // grid.pp if grid.pp > 1 and grid.m % grid.pp == 0 else 1
        numbers = [1 << i for i in range(most.bit_length())]
        if asked.virtual is None:
            return numbers
        return [asked.virtual] if asked.virtual <= most else []

    def floor(self, grid: Grid) -> float:
        """Seconds that no labels are below: all work, in parts for all devices, and the bubble."""
        bubble = (grid.pp - 1) / (grid.virtual * grid.m)
        return (self.work + grid.recomputed.seconds) / grid.size * (1 + bubble)

    def has_labels(self, grid: Grid) -> bool:
        """True if the ops of a stage can be shared by its devices."""
        return grid.tp * grid.dp == 1 or self.labels(grid.tp, grid.dp, grid.ep) is not None

    def least(self, grid: Grid) -> float:
        """Seconds that a grid takes at least, about: what a device of one stage computes if that
        has all layers and the whole batch, over the number of stages, and the bubble.
        """
        ranked = self.labels(grid.tp, grid.dp, grid.ep)
        computing = self.work if ranked is None else ranked.labels.estimate.computing
        again = grid.recomputed.seconds / (grid.tp * grid.dp)
        bubble = (grid.pp - 1) / (grid.virtual * grid.m)
        return (computing + again) / grid.pp * (1 + bubble)

    # -- what they take ----------------------------------------------------------------------------

    @property
    def state(self) -> str:
        """The state of replicas: "whole", or "flat", that of the optimizer in parts."""
        return "flat" if self.flat else "whole"

    def parts(self, dp: int) -> int:
        """The number of devices that have a part each of all state; 0: replicas have it whole."""
        return 0

    def labels(self, tp: int, dp: int, ep: int = 1) -> Ranked | None:
        """The labels inside of a stage; None: a stage is on one device, or there are none."""
        labels, key = self.known.labels, self._labels_key(tp, dp, ep)
        if key not in labels:
            labels[key] = self._labelled(tp, dp, ep) if tp * dp > 1 else None
        return labels[key]

    def _labels_key(self, tp: int, dp: int, ep: int) -> LabelsKey:
        return LabelsKey(tp, dp, ep, self.parts(dp), self.sequence)

    def _costs_key(self, grid: Grid) -> CostsKey:
        labels = self._labels_key(grid.tp, grid.dp, grid.ep)
        return CostsKey(labels, self.state, grid.m, grid.recomputed)

    def _labelled(self, tp: int, dp: int, ep: int) -> Ranked | None:
        space = self.space
        if space is None or (tp > 1 and not divides(Dimensions.of(self.problem.model), tp)):
            return None
        sizes = ("dp", dp // ep), (EXPERTS, ep), ("tp", tp)
        axes = {name: size for name, size in sizes if size > 1}
        names = [self.problem.cluster.devices[d].name for d in self.devices[: tp * dp]]
        return weights_cut(space, DeviceMesh.of(axes, names), self.listed, sequence=self.sequence)

    def layout(self, grid: Grid, *, flat: bool) -> Layout | None:
        """The layout of ops inside of a stage; None: a stage is on one device."""
        ranked = self.labels(grid.tp, grid.dp, grid.ep)
        if ranked is None or self.space is None:
            return None
        layout = layout_of(self.space, ranked)
        if not flat or grid.dp == 1:
            return layout
        of_replicas = [i for i, name in enumerate(layout.mesh.names) if name != "tp"]
        return layout.with_sharded_state(["optimizer"] * layout.graph.n_ops, of_replicas)

    def costs(self, grid: Grid) -> StageCosts:
        """Costs of the layers for a micro-batch, and their bytes, on the devices of one stage."""
        costs, key = self.known.costs, self._costs_key(grid)
        if key not in costs:
            costs[key] = self._probed(grid)
        return costs[key]

    def _probed(self, grid: Grid) -> StageCosts:
        each = self.batch // grid.m
        modules, layout = grid.recomputed.lines, self.layout(grid, flat=self.flat)
        problem = self.problem
        rows = (self.batch - each, each)
        probe = problem.transformed(in_micro_batches(problem.model, 2, modules, rows, layout))
        batched = MicroBatched(probe)
        ((line, cuts),) = self.layers.lines
        width = grid.tp * grid.dp
        ends = range(width, len(self.devices) + 1, width)
        sets = [self.devices[end - width : end] for end in ends]
        costs = StageCosts.of(batched, line.place, cuts, mean_link(problem.links, sets))
        everywhere = np.zeros(problem.model.n_ops, dtype=np.int32)
        on = sets[:1]
        staged = Staged.of(batched, everywhere, np.array(on))
        part = np.searchsorted(cuts, line.place[probe.program.serves[probe.reduced.op_of]], "right")
        return replace(costs, until=_until(staged, part - 1, costs))

    def cut(self, grid: Grid, share: float = 1.0) -> GridOfLayers | None:
        """The best layers of each stage within a share of the memory; None: they do not fit."""
        costs, n_stages = self.costs(grid), grid.pp * grid.virtual
        numbers = windows(grid.schedule, grid.pp, grid.m, grid.virtual)
        in_flight = alive_of_stages(numbers, grid.m, grid.virtual)
        width = grid.tp * grid.dp
        devices = tuple(self.table(grid).ravel().tolist())
        pool = Pool(self.kind, self.memory // grid.virtual, devices, width)
        way = StageWay(costs, 0, in_flight)
        chain = best_chain([pool], [way], n_stages, grid.m - 1.0, share=share)
        if chain is None:
            return None
        best = self._estimated(grid, pool, way, chain)
        each, rest = divmod(costs.n_cuts - 1, n_stages)
        if rest == 0:
            even = replace(chain, ends=tuple(range(each, each * n_stages + 1, each)))
            need = [
                costs.fixed[i, j] + k * costs.held[i, j]
                for (i, j), k in zip(even.ranges, in_flight, strict=True)
            ]
            if max(need) <= share * pool.memory:
                other = self._estimated(grid, pool, way, even)
                best = other if other.seconds <= (1 + _EVEN) * best.seconds else best
        return best

    def _estimated(self, grid: Grid, pool: Pool, way: StageWay, chain: Chain) -> GridOfLayers:
        of = times([pool], [way], chain, self.problem.links)
        seconds = estimated(of, grid.m, grid.schedule, grid.virtual).seconds
        return GridOfLayers(grid, float(seconds), chain)

    def best_first(
        self, asked: Asked, judged: JudgedGrids, share: float = 1.0
    ) -> Iterator[GridOfLayers]:
        """Grids with their stages, those that are taken to be the fastest first.

        What does not fit, as it is estimated or as the judge has said when the next one is asked
        for, comes again with more recomputed and, without stages, with more micro-batches.
        """
        order = count()
        heap: list[tuple[float, int, Unseen | Grid | GridOfLayers]] = []
        known: set[Grid] = set()

        def push(seconds: float, one: Unseen | Grid | GridOfLayers) -> None:
            heapq.heappush(heap, (seconds, next(order), one))

        def push_grid(grid: Grid, least: float = 0.0) -> None:
            if grid in known:
                return
            known.add(grid)
            most = max(self.virtual(grid, asked), default=1)
            unseen = Unseen(grid, replace(grid, virtual=most), least)
            push(max(self.floor(unseen.quickest), least), unseen)

        for size in self.sizes(asked):
            for m in self.micro(size, asked)[: 1 if size.pp == 1 else None]:
                push_grid(replace(size, m=m, recomputed=self.levels[0]))
        while heap:
            seconds, _, first = heapq.heappop(heap)
            if seconds > judged.enough:
                return
            if isinstance(first, Unseen):
                if self.has_labels(first.grid):
                    push(max(self.least(first.quickest), first.least), first.grid)
                continue
            if isinstance(first, GridOfLayers):
                yield first
                grid, fits = first.grid, first.grid not in judged.over
            else:
                cuts = [] if first in judged.over else list(self._cuts(first, asked, share))
                for cut in cuts:
                    push(cut.seconds, cut)
                grid, fits = first, bool(cuts)
            if not fits:
                for other in self._smaller(replace(grid, virtual=1), asked):
                    push_grid(other, self._unlimited(other, asked))

    def _smaller(self, grid: Grid, asked: Asked) -> Iterator[Grid]:
        """Grids that hold less: more recomputed; without stages, more micro-batches."""
        level = self.levels.index(grid.recomputed)
        if level + 1 < len(self.levels):
            yield replace(grid, recomputed=self.levels[level + 1])
        if grid.pp == 1 and level == 0:
            yield from [replace(grid, m=m) for m in self.micro(grid, asked) if m > grid.m][:1]

    def _cuts(self, grid: Grid, asked: Asked, share: float) -> Iterator[GridOfLayers]:
        """The stages of a grid, for each number of runs of layers that fits."""
        if grid.m > 1:
            if self._stays_over(grid, share * self.memory):
                return
            for virtual in self.virtual(grid, asked):
                of_layers = self.cut(replace(grid, virtual=virtual), share)
                if of_layers is not None:
                    yield of_layers
            return
        # Nothing is in stages: the estimate of the labels says what a step takes.
        ranked = self.labels(grid.tp, grid.dp, grid.ep)
        if ranked is None:
            yield GridOfLayers(grid, self.least(grid))
        elif grid.recomputed == self.levels[-1] or self._held(grid, ranked) <= self.memory:
            again = grid.recomputed.seconds / grid.size
            yield GridOfLayers(grid, ranked.labels.estimate.step_time + again)

    def _first(self, grid: Grid) -> StageCosts | None:
        """The costs at the first level, if they were asked for."""
        return self.known.costs.get(self._costs_key(replace(grid, recomputed=self.levels[0])))

    def _unlimited(self, grid: Grid, asked: Asked) -> float:
        """Seconds of a grid at the first level if memory were no matter; 0: nobody looked."""
        if grid.m == 1 or self._first(grid) is None:
            return 0.0
        first = replace(grid, recomputed=self.levels[0])
        cuts = [self.cut(replace(first, virtual=n), ANY) for n in self.virtual(first, asked)]
        return min((cut.seconds for cut in cuts if cut is not None), default=0.0)

    def _stays_over(self, grid: Grid, memory: float) -> bool:
        """True if state that stays for the whole step does not fit, whatever is recomputed."""
        parts = grid.size if self.flat else grid.tp * grid.pp * grid.ep
        if float(self.problem.model.param_bytes.sum()) / parts > memory:
            return True
        costs = self._first(grid)
        if costs is None:
            return False
        at = 0
        for _ in range(grid.pp):
            fitting = np.flatnonzero(costs.fixed[at, at + 1 :] <= memory)
            at += int(fitting[-1]) + 1 if len(fitting) else 0
        return at < costs.n_cuts - 1

    def _held(self, grid: Grid, ranked: Ranked) -> float:
        """Bytes of a device at the estimated peak, which has the optimizer's state whole, less
        what is not kept.
        """
        layout = self.layout(grid, flat=False)
        assert layout is not None
        graph, mesh = layout.graph, layout.mesh
        state = (layout.set_of >= 0) & (graph.stands_for != PARAMETER)
        is_cut, sizes = layout.labels[:, state] != 0, np.array(mesh.shape)[:, None]
        has = graph.param_bytes[state] / np.where(is_cut, sizes, 1).prod(axis=0)
        replicas = np.array([[name != "tp"] for name in mesh.names])
        parts = np.where(replicas & ~is_cut, sizes, 1).prod(axis=0)
        spared = float((has * (1 - 1 / parts)).sum()) if self.flat else 0.0
        return ranked.labels.estimate.peak - spared - grid.recomputed.spared / grid.size

    # -- the judge ---------------------------------------------------------------------------------

    def stage(self, cut: GridOfLayers) -> NDArray[np.int32]:
        """The stage of each of the user's ops."""
        if cut.chain is None:
            return np.zeros(self.problem.model.n_ops, dtype=np.int32)
        ((line, cuts),) = self.layers.lines
        return cut.chain.stage(line.place, cuts)

    def table(self, grid: Grid) -> NDArray[np.int64]:
        """The devices of each stage: int64 [n_stages, n_ranks]."""
        slices = np.array(self.devices[: grid.size]).reshape(grid.pp, -1)
        return slices_of_stages(slices, Micro(grid.m, grid.schedule, grid.virtual))

    def judged(self, cut: GridOfLayers, *, flat: bool) -> Candidate:
        """A grid on all its devices, with its recipe. Updates wait for all sums of gradients."""
        grid, problem = cut.grid, self.problem
        stage, layout = self.stage(cut), self.layout(grid, flat=flat)
        micro = Micro(grid.m, grid.schedule, grid.virtual)
        modules = grid.recomputed.lines
        table = self.table(grid)
        inside = None if layout is None else replace(layout, stage=stage)
        program = in_micro_batches(problem.model, grid.m, modules, layout=inside)
        if layout is not None:
            device = stage[program.serves] * table.shape[1] + np.maximum(program.rank, 0)
            program = updated_last(program, device=device)
        placed = problem.transformed(program)
        candidate = run_in_stages(placed, stage, table, micro)
        candidate = replace(
            candidate,
            assignment=replace(candidate.assignment, estimate=cut.seconds),
            notes=program.notes,
        )
        if grid.m > 1:
            candidate = with_recipe(candidate, stage, table, micro, modules, layout)
        elif layout is not None:
            recipe = replace(layout.recipe(), recompute=modules)
            candidate = replace(
                candidate, problem=_with(candidate.problem, replace(program, recipe=recipe))
            )
        return replace(candidate, parallelism=self.parallelism(cut, layout, flat=flat))

    def parallelism(self, cut: GridOfLayers, layout: Layout | None, *, flat: bool) -> Parallelism:
        """The degrees of parallelism of a grid whose ops are shared as a layout has them."""
        grid = cut.grid
        of_layer = self.stage(cut)[self.listed.cuts.order[self.listed.begins]]
        sequence = layout is not None and grid.tp > 1 and norms_by_tokens(layout, self.listed, "tp")
        return replace(
            self.shards(grid.parallelism, flat=flat),
            layers=tuple(np.bincount(of_layer, minlength=grid.pp * grid.virtual).tolist()),
            sequence=sequence,
        )

    def shards(self, parallelism: Parallelism, *, flat: bool) -> Parallelism:
        """The same with replicas that have a part each of the optimizer's state, if ``flat``."""
        if not flat or parallelism.dp == 1:
            return parallelism
        return replace(parallelism, replicate=1, shard=parallelism.dp, shard_state="optimizer")


def _with(problem: Problem, program: Program) -> Problem:
    """The problem with the recipe of its program."""
    return replace(problem, program=replace(problem.program, recipe=program.recipe))


def _until(staged: Staged, part: NDArray[np.int64], costs: StageCosts) -> NDArray[np.float64]:
    """Seconds of what lies before each cut, as :attr:`StageCosts.until` has them: those between the
    ends of what the first rank does of its last micro-batch, in a simulation.

    Gradients of weights count as part of the backward pass. What comes after that, sums of
    gradients and updates, goes by the bytes of the gradients.
    """
    seen = scheduled(staged, "1f1b").schedule
    here = (staged.rank == 0) & (staged.micro == staged.m - 1)
    n = costs.n_cuts
    until = np.zeros((4, n))
    forward, backward = here & (staged.passes == FORWARD), here & (staged.passes > FORWARD)
    if forward.any():
        done = np.full(n, seen.start[forward].min())
        np.maximum.at(done, part[forward] + 1, seen.finish[forward])
        until[0] = np.maximum.accumulate(done) - done[0]
    end = seen.finish[here].max(initial=0.0)
    if backward.any():
        begin = seen.start[backward].min()
        done = np.full(n, begin)
        np.maximum.at(done, part[backward], seen.finish[backward])
        left = np.maximum.accumulate(done[::-1])[::-1] - begin
        until[1] = left[0] - left
    bytes_ = costs.gradients[0]
    share = bytes_ / bytes_[-1] if bytes_[-1] else np.arange(n) / (n - 1)
    until[3] = share * max(seen.makespan - end, 0.0) if (staged.passes == ONCE).any() else 0.0
    return np.repeat(until[:, :, None], costs.until.shape[2], axis=2)
