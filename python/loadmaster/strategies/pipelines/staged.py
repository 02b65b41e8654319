"""A micro-batched program whose ops have stages, and what its stages take and keep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

import loadmaster.fast as fast
from loadmaster.base.errors import InputError
from loadmaster.judge.problem import Problem, summed
from loadmaster.strategies.candidate import Candidate
from loadmaster.strategies.pipelines.batched import MicroBatched
from loadmaster.strategies.pipelines.estimates import StageTimes, most_at_once
from loadmaster.strategies.pipelines.phases import (
    BACKWARD,
    FORWARD,
    ONCE,
    WEIGHT,
    aside,
    passes_of_places,
)
from loadmaster.strategies.simple.homes import where_allowed


@dataclass(frozen=True)
class Staged:
    """A micro-batched problem whose ops have stages, and stages devices.

    Attributes
    ----------
    batched : MicroBatched
    stage : int32 [n_user_ops]
        The stage of each op of the user's graph.
    devices : int32 [n_stages, n_ranks]
        The device that each rank of the program is on in each stage. Stages k and k + p share
        theirs, where there are p sets of devices; or of 2 p stages, k and 2 p - 1 - k.
    """

    batched: MicroBatched
    stage: NDArray[np.int32]
    devices: NDArray[np.int32]

    @classmethod
    def of(
        cls,
        batched: MicroBatched,
        stage: NDArray[Any],
        devices: Sequence[int] | NDArray[Any],
    ) -> Staged:
        """The same, checked; ``devices`` of a program without ranks may be one per stage.

        Raises
        ------
        InputError
            No micro-batches, another number of ops, a stage or a device that there is not, devices
            that are not those of p sets in turn.
        """
        problem, program = batched.problem, batched.problem.program
        of = np.asarray(stage, dtype=np.int32)
        table = np.asarray(devices, dtype=np.int32)
        table = table.reshape(len(table), -1)
        if of.shape != (program.source.n_ops,):
            raise InputError(f"stage has shape {of.shape}: wants {program.source.n_ops} numbers")
        if not (program.micro >= 0).any():
            raise InputError("nothing is scheduled: the program has no micro-batches")
        outside = np.flatnonzero((of < 0) | (of >= len(table)))
        if len(outside):
            op = int(outside[0])
            raise InputError(
                f"op {program.source.names[op]!r} is of stage {of[op]}, and there are stages 0 to "
                f"{len(table) - 1}"
            )
        if table.min() < 0 or table.max() >= problem.cluster.n_devices:
            raise InputError(
                f"devices of stages are {table.tolist()}: the cluster has devices 0 to "
                f"{problem.cluster.n_devices - 1}"
            )
        if table.shape[1] != max(int(program.rank.max(initial=-1)) + 1, 1):
            raise InputError(
                f"stages have {table.shape[1]} devices each, and the program has ranks up to "
                f"{program.rank.max()}"
            )
        staged = cls(batched, of, table)
        if not (staged.p and (table == table[staged.set_of]).all()):
            raise InputError(
                f"devices of stages are {table.tolist()}: wants those of the first stages, then "
                "the same again in the same order, or once in reverse"
            )
        return staged

    @property
    def problem(self) -> Problem:
        """The micro-batched problem."""
        return self.batched.problem

    @property
    def m(self) -> int:
        """Micro-batches."""
        return self.batched.m

    @cached_property
    def p(self) -> int:
        """Sets of devices."""
        return len(np.unique(self.devices, axis=0))

    @cached_property
    def set_of(self) -> NDArray[np.int64]:
        """The set of devices of each stage, by the first stage that has it: int64 [n_stages]."""
        table, p, n = self.devices, self.p, len(self.devices)
        of = np.arange(n)
        goes_back = n == 2 * p > 2 and (table[p:] == table[p - 1 :: -1]).all()
        return np.minimum(of, n - 1 - of) if goes_back else of % p

    @property
    def virtual(self) -> int:
        """Stages per set of devices."""
        return len(self.devices) // self.p

    @cached_property
    def of_op(self) -> NDArray[np.int32]:
        """The stage of each reduced op."""
        return self.stage[self.batched.serves]

    @property
    def rank(self) -> NDArray[np.int32]:
        """The rank of each reduced op; 0 for those of none."""
        return self.batched.rank

    @cached_property
    def placed(self) -> NDArray[np.int32]:
        """The device of each reduced op: its stage's, or the next one that it allows."""
        return where_allowed(self.problem, self.devices[self.of_op, self.rank])

    @property
    def micro(self) -> NDArray[np.int32]:
        """The micro-batch of each reduced op; -1: none."""
        return self.batched.micro

    @cached_property
    def aside(self) -> NDArray[np.bool_]:
        """Ops of micro-batches that no pass of their stage waits for: bool [n_reduced]."""
        return aside(self.batched.flows, self.batched.parts, self.micro, self.of_op)

    @cached_property
    def passes(self) -> NDArray[np.int8]:
        """The pass of each reduced op; ONCE, if it is on the side."""
        part = np.where(self.aside, np.int8(ONCE), self.batched.parts)
        return passes_of_places(part, self.of_op)


def stage_times(staged: Staged) -> StageTimes:
    """Seconds of each stage, from those of its ops: of the slowest rank, for one micro-batch.

    Transfers are those to and from the next stage, one after another. O(V + E).
    """
    problem, n = staged.problem, len(staged.devices)
    kind = np.array(problem.cluster.device_types)[staged.placed]
    seconds = problem.compute_time[np.arange(len(kind)), kind]

    def each(which: NDArray[np.bool_]) -> NDArray[np.float64]:
        table = np.zeros(staged.devices.shape)
        np.add.at(table, (staged.of_op[which], staged.rank[which]), seconds[which])
        return np.asarray(table.max(axis=1))

    return StageTimes(
        each(staged.passes == FORWARD) / staged.m,
        each(staged.passes == BACKWARD) / staged.m,
        each(staged.passes == WEIGHT) / staged.m,
        each(staged.passes == ONCE),
        _sending(staged, staged.passes == FORWARD, 1)[: n - 1],
        _sending(staged, staged.passes > FORWARD, -1)[1:],
    )


def _sending(staged: Staged, of: NDArray[np.bool_], step: int) -> NDArray[np.float64]:
    """Seconds that each stage's transfers to the next one (``step`` further) take among some ops,
    for one micro-batch.
    """
    problem, n = staged.problem, len(staged.devices)
    src, dst, tensor, bytes_, is_home = fast.edges(problem.graph)
    goes = of[src] & of[dst] & (staged.micro[src] == 0)
    goes &= (staged.of_op[dst] == staged.of_op[src] + step) & ~is_home & (tensor >= 0)
    goes &= staged.rank[src] == 0
    _, once = np.unique(tensor[goes], return_index=True)
    at = np.flatnonzero(goes)[once]
    seconds = np.zeros(n)
    for stage, size in zip(staged.of_op[src[at]].tolist(), bytes_[at].tolist(), strict=True):
        here, there = int(staged.devices[stage, 0]), int(staged.devices[stage + step, 0])
        if here != there:
            seconds[stage] += problem.links.transfer_time(here, there, size)
    return seconds


def kept_bytes(staged: Staged) -> NDArray[np.uint64]:
    """Bytes that each device keeps of a micro-batch for its backward pass, of one virtual stage on
    average: uint64 [n_devices]. O(V + E).
    """
    problem = staged.problem
    src, dst, tensor, bytes_, _ = fast.edges(problem.graph)
    kept = (staged.passes[src] == FORWARD) & (staged.passes[dst] > FORWARD) & (tensor >= 0)
    kept &= staged.micro[src] == 0
    where = np.stack([tensor[kept].astype(np.int64), staged.placed[dst[kept]].astype(np.int64)])
    _, once = np.unique(where, axis=1, return_index=True)
    bytes_of = summed(bytes_[kept][once], where[1, once], problem.cluster.n_devices)
    return bytes_of // np.uint64(staged.virtual)


def in_flight(staged: Staged, seen: Candidate) -> NDArray[np.int64]:
    """Micro-batches, of each virtual stage, alive at once at most, per set of devices: int64 [p].

    One is alive from the start of its forward pass to the end of its backward pass, with gradients
    of weights. O(V + m log m).
    """
    schedule, many = seen.schedule, staged.passes != ONCE
    of = staged.of_op.astype(np.int64) * staged.m + staged.micro
    n = len(staged.devices) * staged.m
    begin, end = np.full(n, np.inf), np.zeros(n)
    np.minimum.at(begin, of[many], schedule.start[many])
    np.maximum.at(end, of[many], schedule.finish[many])
    device = staged.set_of[np.arange(n) // staged.m]
    return np.array([most_at_once(begin[device == s], end[device == s]) for s in range(staged.p)])


def most_alive(staged: Staged, seen: Candidate) -> NDArray[np.int64]:
    """Micro-batches, of each virtual stage, for which each set of devices has memory: int64 [p].

    What does not depend on how many are alive is what a judged schedule held at its peak, less what
    it kept of those that were alive then. At least 1.
    """
    kept = kept_bytes(staged).astype(np.float64)[staged.devices[: staged.p]]
    alive = in_flight(staged, seen)[:, None]
    rest = seen.verdict.peak.astype(np.float64)[staged.devices[: staged.p]] - kept * alive
    capacity = staged.problem.capacity.astype(np.float64)[staged.devices[: staged.p]]
    with np.errstate(divide="ignore", invalid="ignore"):
        most = np.where(kept > 0, np.floor((capacity - rest) / kept), np.inf)
    return np.asarray(np.clip(most, 1, staged.m * staged.virtual).min(axis=1).astype(np.int64))
