"""Facts on pipelines of one problem, whatever their number of stages and micro-batches."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from loadmaster.base import checks
from loadmaster.base.errors import InputError
from loadmaster.judge.problem import Problem
from loadmaster.model.factorisations import divisors, halvings
from loadmaster.model.module_paths import module_path
from loadmaster.model.patterns import escaped_pattern
from loadmaster.model.program import Program
from loadmaster.strategies.dropped import Refusals
from loadmaster.strategies.pipelines.batched import MicroBatched
from loadmaster.strategies.pipelines.chains import Pool, pools
from loadmaster.strategies.pipelines.cuts import cuts
from loadmaster.strategies.pipelines.insides import Inside, insides
from loadmaster.strategies.pipelines.lines import Line, lines
from loadmaster.strategies.pipelines.piped import micro_batched
from loadmaster.strategies.pipelines.stage_costs import StageCosts
from loadmaster.strategies.pipelines.stage_links import collective_seconds, mean_link
from loadmaster.strategies.sharding.recomputing import layers
from loadmaster.strategies.sharding.space import Space as Labelled
from loadmaster.strategies.sharding.space import can_be_sharded
from loadmaster.transforms.layout import Layout
from loadmaster.transforms.micro_batches import micro_batches
from loadmaster.transforms.samples import joined_samples
from loadmaster.transforms.shards import shard
from loadmaster.transforms.shares import batch_size

#: The most micro-batches that are tried unless a user asks for more.
MOST_MICRO = 64


@dataclass(frozen=True, eq=False)
class PipelineSpace:
    """A problem whose samples can go through stages one after another.

    Attributes
    ----------
    problem : Problem
        Of a user's graph as it is.
    batch : int
        Samples of a step.
    refusals : Refusals
        Pipelines that were dropped, since nothing could run them.
    """

    problem: Problem
    batch: int
    refusals: Refusals = field(default_factory=Refusals)
    _costs: dict[tuple[int, bool, Inside | None], list[StageCosts]] = field(default_factory=dict)
    _shared: dict[tuple[bool, Inside], Program] = field(default_factory=dict)
    _placed: dict[tuple[int, tuple[str, ...]], MicroBatched] = field(default_factory=dict)
    _insides: dict[int, list[Inside]] = field(default_factory=dict)
    _gathered: dict[int, Gathered | None] = field(default_factory=dict)

    @classmethod
    def of(cls, problem: Problem) -> PipelineSpace:
        """The space of a problem.

        Raises
        ------
        InputError
            One device, one sample, or a batch that nobody knows.
        """
        if reason := lacks(problem):
            raise InputError(reason)
        return cls(problem, batch_size(problem.model) or 1)

    @cached_property
    def lines(self) -> list[tuple[Line, NDArray[np.int64]]]:
        """Orders of the model, each with its cut candidates."""
        return [(line, cuts(self.problem, line)) for line in lines(self.problem)]

    def gathered(self, line: int) -> PipelineSpace | None:
        """The space of one line alone, with look-ups in tied weights where the last readers of
        these are; None: there are none.
        """
        if line not in self._gathered:
            of, at = self.lines[line]
            gathered = None
            if of.gathered is not None:
                gathered = Gathered(
                    self.problem,
                    self.batch,
                    self.refusals,
                    _shared=self._shared,
                    _placed=self._placed,
                    line=(Line(of.gathered, of.is_open), at),
                )
            self._gathered[line] = gathered
        return self._gathered[line]

    @cached_property
    def pools(self) -> list[Pool]:
        """Devices by type and memory."""
        return pools(self.problem)

    @cached_property
    def n_devices(self) -> int:
        """The devices that stages may have."""
        return sum(len(pool.devices) for pool in self.pools)

    @cached_property
    def counts(self) -> list[int]:
        """Numbers of micro-batches to try: the divisors of the batch next to powers of two."""
        parts = divisors(self.batch)
        return sorted({max(d for d in parts if d <= power) for power in halvings(MOST_MICRO)} - {1})

    @cached_property
    def layer_of(self) -> list[str]:
        """The layer that each op is in, by its path up to the first number; "": none."""
        modules = []
        for module in self.problem.model.modules:
            words = module_path(module)
            end = next((i + 1 for i, word in enumerate(words) if word.isdigit()), 0)
            modules.append(".".join(words[:end]))
        return modules

    @cached_property
    def layers(self) -> tuple[str, ...]:
        """Patterns of the modules whose activations may be recomputed; none in inference."""
        model = self.problem.model
        return layers(model.modules, 1) if "b" in model.phases else ()

    def insides(self, width: int) -> list[Inside]:
        """Ways to share the ops of stages of so many devices each: made once, for what such stages
        cost is kept by these.
        """
        if width not in self._insides:
            ways = insides(self.problem, self.pools, width, self.labelled)
            self._insides[width] = list(ways)
        return self._insides[width]

    @cached_property
    def labelled(self) -> Labelled | None:
        """The space of shards of the problem; None: it is not known how ops can be cut."""
        return Labelled.of(self.problem) if can_be_sharded(self.problem) else None

    def probe(
        self,
        m: int,
        *,
        again: bool = False,
        inside: Inside | None = None,
        layout: Layout | None = None,
    ) -> Problem:
        """The problem with two micro-batches, of which the second is of the size that each of m
        has: it also adds its gradients, and so costs what each costs. A layout shares its ops
        inside of stages.
        """
        each = self.batch // m
        modules, rows = self.layers if again else (), (self.batch - each, each)
        if inside is None:
            return micro_batched(self.problem, 2, modules, rows, layout)
        if (again, inside) not in self._shared:
            self._shared[again, inside] = shard(self.problem.model, inside.layout, modules)
        return self.problem.transformed(micro_batches(self._shared[again, inside], 2, rows))

    def placed(
        self, m: int, modules: tuple[str, ...], layout: Layout | None = None
    ) -> MicroBatched:
        """The problem with m micro-batches, some modules recomputed, and ops shared as a layout has
        them. Without a layout it is made once: it does not depend on stages.
        """
        if layout is not None:
            return MicroBatched(micro_batched(self.problem, m, modules, layout=layout))
        key = m, modules
        if key not in self._placed:
            self._placed.clear()
            self._placed[key] = MicroBatched(micro_batched(self.problem, m, modules))
        return self._placed[key]

    def recomputed(self, part: NDArray[np.integer], again: NDArray[np.bool_]) -> tuple[str, ...]:
        """Patterns of the layers whose forward pass ends in a part that recomputes activations.

        Parameters
        ----------
        part : int [n_ops]
            Of each of the user's ops; parts are numbered along a line.
        again : bool [n_parts]
        """
        last: dict[str, int] = {}
        phases = self.problem.model.phases
        for layer, phase, at in zip(self.layer_of, phases, part.tolist(), strict=True):
            if layer and phase == "f":
                last[layer] = max(last.get(layer, 0), at)
        return tuple(escaped_pattern(layer) for layer, at in last.items() if again[at])

    @cached_property
    def groups(self) -> NDArray[np.int64]:
        """The part of the first line, between two places at which it may be cut, that each op is
        in: int64 [n_ops].
        """
        line, _ = self.lines[0]
        return np.cumsum(line.is_open)[line.place] - 1

    def costs(
        self, m: int, *, again: bool = False, inside: Inside | None = None
    ) -> list[StageCosts]:
        """Costs of stages on each line with m micro-batches, with layers recomputed, and with
        several devices each.
        """
        key = m, again, inside
        if key not in self._costs:
            probe = self.probe(m, again=again, inside=inside)
            pools = self.pools if inside is None else inside.pools
            sets = [devices for pool in pools for devices in pool.sets]
            link = mean_link(self.problem.links, sets)
            together = None if inside is None else collective_seconds(probe, sets)
            batched = MicroBatched(probe)
            self._costs[key] = [
                StageCosts.of(batched, line.place, at, link, together) for line, at in self.lines
            ]
        return self._costs[key]

    def allows(self, schedule: str, m: int, p: int, stage: NDArray[np.int32]) -> bool:
        """True if the system that runs the pipeline takes such stages: a schedule, micro-batches,
        devices that have stages, and the stage of each of the user's ops.
        """
        return True

    def checked(self, micro: int | None, stages: int | None) -> tuple[list[int], list[int]]:
        """The numbers of micro-batches and of stages to try, where a user may have said them.

        Raises
        ------
        InputError
            More micro-batches than samples, or more stages than devices.
        """
        counts, n = self.counts, self.n_devices
        if micro is not None:
            counts = [checks.integer("micro_batches", micro, 2, self.batch)]
        numbers = halvings(n)[:-1]
        if stages is not None:
            numbers = [checks.integer("stages", stages, 2, n)]
        return counts, numbers

    def others(self, stages: int | None) -> list[int]:
        """The other numbers of stages than :meth:`checked` has, where a user may have said one."""
        n = self.n_devices
        return [p for p in range(n, 1, -1) if p not in halvings(n)] if stages is None else []

    def widths(self, width: int | None, stages: int | None) -> list[int]:
        """The numbers of devices in a stage to try, where a user may have said them: 1, and those
        that divide the devices into two stages or more.

        Raises
        ------
        InputError
            More devices than there are.
        """
        n = self.problem.cluster.n_devices
        if width is not None:
            return [checks.integer("devices_per_stage", width, 1, n // (stages or 2))]
        return [w for w in divisors(n) if w <= n // (stages or 2)]


@dataclass(frozen=True, eq=False)
class Gathered(PipelineSpace):
    """Pipelines along one gathered line."""

    line: tuple[Line, NDArray[np.int64]] = field(kw_only=True)

    @cached_property
    def lines(self) -> list[tuple[Line, NDArray[np.int64]]]:
        """The one line, with its cut candidates."""
        return [self.line]


def lacks(problem: Problem) -> str:
    """Why no samples can go through stages one after another; empty: they can."""
    if problem.cluster.n_devices < 2:
        return "a pipeline needs two devices at least, and the cluster has one"
    if not problem.program.is_plain:
        return "a pipeline is made of a graph as it is, and this one was transformed"
    if problem.model.is_member.any():
        return "the graph has collectives of its own: a pipeline is made of a graph without"
    batch = batch_size(problem.model)
    if batch is None:
        return (
            "nobody says how many samples the batch has: no input of the graph has a shape, and "
            'its meta has no "batch"'
        )
    if reason := joined_samples(problem.model):
        return reason
    return "" if batch > 1 else "the batch is one sample: there are no micro-batches of it"
