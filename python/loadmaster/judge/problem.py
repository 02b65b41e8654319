"""A placement problem as strategies see it: reduced graph, cluster, times, rules."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

import loadmaster.fast as fast
from loadmaster.base.errors import InputError
from loadmaster.costs import Costs
from loadmaster.costs.launches import dispatch_seconds
from loadmaster.costs.program import program_costs
from loadmaster.judge.allowance import Meter
from loadmaster.judge.assignment import Assignment
from loadmaster.judge.loads import Loads
from loadmaster.judge.objective import STEP, Objective
from loadmaster.judge.verdict import Verdict
from loadmaster.model.cluster import Cluster
from loadmaster.model.graph import OpGraph, Reduced
from loadmaster.model.program import Program
from loadmaster.transforms.copies import is_state
from loadmaster.transforms.streams import waits_for_updates

#: Seconds of the finest tick that Rust counts times in (``rust/core/src/clock.rs``).
FINEST_TICK = 1e-15

T = TypeVar("T", np.int64, np.uint64)


@dataclass(frozen=True)
class Problem:
    """A program to place, the devices, and the costs.

    Attributes
    ----------
    program : Program
        The user's graph and the graph that runs.
    cluster : Cluster
    costs : Costs
        Of the ops of the graph that runs.
    reduced : Reduced
        The graph that strategies place, with maps to and from the ops of the graph that runs.
    time : float64 [n_reduced, n_types]
        Seconds per op of the reduced graph.
    seed : int
        For anything random.
    best_effort : bool
        Whether an op that fits nowhere goes where most memory is free.
    objective : Objective
        What makes one placement better than another.
    source_costs : Costs or None
        Of the ops of the user's graph; None: that graph runs as it is, and ``costs`` are those.
    meter : Meter
        Counts verdicts against an allowance (:mod:`loadmaster.judge.allowance`).
    """

    program: Program
    cluster: Cluster
    costs: Costs
    reduced: Reduced
    time: NDArray[np.float64]
    seed: int = 0
    best_effort: bool = False
    objective: Objective = STEP
    source_costs: Costs | None = None
    meter: Meter = field(default_factory=Meter, compare=False, repr=False)
    expert_imbalance: float = 1.0

    def __repr__(self) -> str:
        return f"Problem({self.program!r} on {self.cluster!r})"

    @classmethod
    def make(
        cls,
        model: OpGraph | Program,
        cluster: Cluster,
        costs: Costs,
        *,
        seed: int = 0,
        best_effort: bool = False,
        source_costs: Costs | None = None,
        expert_imbalance: float = 1.0,
    ) -> Problem:
        """Reduces the graph that runs, a user's or a program's, and sums the times of its ops over
        the reduced ops.

        Raises
        ------
        InputError
            Every op that takes time takes less than the finest tick of the simulator.
        """
        longest = costs.time[np.isfinite(costs.time)].max(initial=0.0)
        if 0 < longest < FINEST_TICK:
            raise InputError(
                f"no op takes longer than {longest:g} s, and the simulator counts ticks of "
                f"{FINEST_TICK:g} s at the finest: give the times of ops in seconds"
            )
        program = Program.of(model) if isinstance(model, OpGraph) else model
        reduced = program.graph.reduced_for(costs.types)
        return cls(
            program,
            cluster,
            costs,
            reduced,
            reduced.sum(costs.time),
            seed,
            best_effort,
            source_costs=None if program.is_plain else source_costs,
            expert_imbalance=expert_imbalance,
        )

    def transformed(self, later: Program, costs: Costs | None = None) -> Problem:
        """The problem of placing what a transform made of :attr:`model`; its costs follow from
        those of the ops here, if they are not given.
        """
        problem = Problem.make(
            self.program.then(later),
            self.cluster,
            costs or program_costs(later, self.costs, self.cluster),
            seed=self.seed,
            best_effort=self.best_effort,
            source_costs=self.user_costs,
            expert_imbalance=self.expert_imbalance,
        )
        return replace(problem, objective=self.objective)

    @property
    def user_costs(self) -> Costs:
        """Costs of the ops of the user's graph."""
        return self.source_costs or self.costs

    @property
    def model(self) -> OpGraph:
        """The graph that runs: the user's, where nothing was transformed."""
        return self.program.graph

    @property
    def graph(self) -> fast.Graph:
        """The reduced graph."""
        return self.reduced.graph

    @cached_property
    def has_collectives(self) -> bool:
        """True if some op is a member of a collective."""
        return bool(self.model.is_member.any())

    @cached_property
    def waits_for_updates(self) -> bool:
        """True if a step reads values that the step before it writes, as in training."""
        return waits_for_updates(self.model)

    @cached_property
    def sent_once(self) -> NDArray[np.int64]:
        """Ids of the tensors that a stream of steps sends once: what is never written, sorted."""
        model = self.model
        if self.waits_for_updates:
            return np.empty(0, dtype=np.int64)
        ids = model.src if model.tensor is None else model.tensor
        stays = is_state(model)[self.reduced.shows[model.src]] & (ids >= 0)
        return np.unique(ids[stays]).astype(np.int64)

    @property
    def links(self) -> fast.Cluster:
        """The cluster as Rust sees it."""
        return self.cluster._core

    @cached_property
    def core(self) -> fast.Problem:
        """The problem as Rust sees it, by the rules of its graph."""
        problem = fast.Problem(self.graph, self.links, self.time, self.dispatch)
        return problem.within(best_effort=self.best_effort)

    @cached_property
    def dispatch(self) -> NDArray[np.float64] | None:
        """Seconds that the launch of each reduced op keeps its host; None: launches are free."""
        seconds = dispatch_seconds(self.program, self.costs, self.cluster)
        return None if seconds is None else self.reduced.sum(seconds)

    @cached_property
    def weights(self) -> fast.Weights:
        """Weights for orders, levels and groups: :attr:`op_time`, and transfers between an average
        pair of devices.
        """
        return self.core.weights

    @cached_property
    def op_time(self) -> NDArray[np.float64]:
        """Mean seconds per reduced op over the devices it may run on."""
        return self.core.mean_time

    def tensor_time(self, graph: fast.Graph) -> NDArray[np.float64]:
        """Seconds that each tensor takes between an average pair of devices, by tensor id."""
        latency, per_byte = self.links.mean_link
        return latency + graph.tensor_bytes.astype(np.float64) * per_byte

    @property
    def control_time(self) -> float:
        """Seconds that a message without data takes."""
        return self.links.mean_link[0]

    @cached_property
    def memory(self) -> tuple[int, ...]:
        """Bytes per device."""
        return tuple(self.cluster.memory)

    @property
    def capacity(self) -> NDArray[np.uint64]:
        """The same as an array."""
        return np.array(self.memory, dtype=np.uint64)

    def fullest(self, held: NDArray[np.uint64]) -> float:
        """The load of the fullest device, as a multiple of its memory, of bytes per device."""
        some = held > 0
        with np.errstate(divide="ignore"):
            return float((held[some] / self.capacity[some]).max(initial=0.0))

    @property
    def compute_time(self) -> NDArray[np.float64]:
        """Seconds for which each reduced op keeps a device busy, [n_reduced, n_types].

        0 for members of collectives: their own time is a part of the collective's.
        """
        return np.where(self.model.is_member[self.reduced.op_of, None], 0.0, self.time)

    def busiest(self, devices: NDArray[np.int32]) -> float:
        """Seconds of compute on the busiest device: no schedule of this placement is shorter."""
        types = np.array(self.cluster.device_types)
        busy = [np.bincount(devices, column, len(types)) for column in self.compute_time.T]
        return float(np.stack(busy)[types, np.arange(len(types))].max())

    @cached_property
    def fastest_first(self) -> NDArray[np.int32]:
        """Devices by the time they would take for all the work, then by index."""
        total = self.time.sum(axis=0)
        return np.argsort(total[self.cluster.device_types], kind="stable").astype(np.int32)

    @cached_property
    def allowed_types(self) -> NDArray[np.bool_]:
        """Mask of the device types that each reduced op may run on: bool [n_reduced, n_types]."""
        types = np.arange(self.time.shape[1], dtype=np.uint64)
        return (self.graph.allowed[:, None] >> types[None, :] & np.uint64(1)).astype(bool)

    def fastest_for(self, ops: NDArray[np.int32]) -> int:
        """The device that computes these ops one after another fastest, of those that most of them
        may run on; of equals the one with the most memory, then the first.
        """
        allowed = self.allowed_types[ops]
        seconds = np.where(allowed, self.time[ops], 0.0).sum(axis=0)
        refused = (~allowed).sum(axis=0)
        return min(
            range(self.cluster.n_devices),
            key=lambda d: (
                refused[self.cluster.device_types[d]],
                seconds[self.cluster.device_types[d]],
                -self.cluster.memory[d],
                d,
            ),
        )

    def simulate(
        self,
        devices: NDArray[np.int32],
        priority: NDArray[np.int32],
        *,
        policy: str = "priority",
        contention: bool = True,
        link_order: str = "fifo",
        record_memory: bool = False,
    ) -> fast.Schedule:
        """A step of a placement of the reduced ops, as the judge sees it in every detail."""
        return fast.simulate(
            self.core if contention else self.core.without_contention(),
            devices,
            priority,
            policy=policy,
            link_order=link_order,
            seed=self.seed,
            record_memory=record_memory,
        )

    def simulate_below(
        self,
        limit: float,
        devices: NDArray[np.int32],
        priority: NDArray[np.int32],
        *,
        policy: str = "priority",
    ) -> fast.Schedule | None:
        """The same; none, and sooner, where the makespan is certain not to be below a limit."""
        return fast.simulate_below(
            self.core, limit, devices, priority, policy=policy, seed=self.seed
        )

    def verdict(self, assignment: Assignment) -> Verdict:
        """The judge's verdict on an assignment.

        Raises
        ------
        AllowanceError
            The verdict is one more than was granted; strategies do not catch it.
        """
        verdict = self.verdict_below(float("inf"), assignment)
        assert verdict is not None, "every makespan is below infinity"
        return verdict

    def verdict_below(self, limit: float, assignment: Assignment) -> Verdict | None:
        """The same; none, and sooner, where the step is certain not to be shorter than a limit."""
        self.meter.draw()
        schedule = self.simulate_below(
            limit, assignment.devices, assignment.priority, policy=assignment.policy
        )
        if schedule is None:
            return None
        verdict = Verdict.of(schedule, self.memory, self._load(assignment, schedule))
        self.meter.keep(self.objective, assignment, verdict)
        return verdict

    def _load(self, assignment: Assignment, schedule: fast.Schedule) -> float | None:
        """Seconds per batch of what limits a stream, if it is the period that counts."""
        if self.objective.goal == "step":
            return None
        # A step that waits for the updates of the one before seldom begins much before its end.
        if self.waits_for_updates:
            return schedule.makespan / self.program.batches
        return Loads.of(self, assignment.devices, schedule).busiest / self.program.batches


def summed(values: NDArray[T], into: NDArray[np.integer], n: int) -> NDArray[T]:
    """Sums of whole numbers by index, [n]: exact, while ``np.bincount`` goes by float64.

    >>> summed(np.array([1, 2, 4], dtype=np.uint64), np.array([1, 0, 1]), 3).tolist()
    [2, 5, 0]
    """
    sums = np.zeros(n, dtype=values.dtype)
    np.add.at(sums, into, values)
    return sums


def ranks(order: NDArray[np.int32]) -> NDArray[np.int32]:
    """Position of every op in an order: a priority."""
    rank = np.empty(len(order), dtype=np.int32)
    rank[order] = np.arange(len(order), dtype=np.int32)
    return rank


def by_start(
    graph: fast.Graph, start: NDArray[np.float64], finish: NDArray[np.float64]
) -> NDArray[np.int32]:
    """The order of a schedule: ops by start, ties by finish, then topologically."""
    topological = ranks(fast.m_topo(graph))
    return np.lexsort((topological, finish, start)).astype(np.int32)


def longest_path(graph: fast.Graph, op_time: NDArray[np.float64]) -> float:
    """Seconds of the longest path, if transfers were free."""
    _, bottom = fast.levels(fast.Weights(graph, op_time))
    return float(bottom.max())


def parallelism(graph: fast.Graph, op_time: NDArray[np.float64]) -> float:
    """Work / critical path: how many devices could be busy at most, if transfers were free."""
    longest = longest_path(graph, op_time)
    return float(op_time.sum()) / longest if longest else 1.0
