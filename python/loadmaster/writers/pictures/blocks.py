"""Work of devices on micro-batches, in blocks: many ops as one box of a pipeline's picture.

A block is a run of ops of one device, one micro-batch and one pass. It is parted where the device
waits. Simulated and measured steps have blocks alike.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loadmaster.plans.plan import Plan
from loadmaster.plans.told import stage_of
from loadmaster.strategies.pipelines.estimates import most_at_once
from loadmaster.strategies.pipelines.phases import (
    BACKWARD,
    ONCE,
    PASSES,
    WEIGHT,
    aside,
    passes,
    passes_of_places,
)
from loadmaster.writers.pictures.bars import Floats, Ints, of_ops

#: Kinds of blocks, in words; those of ops that are there once come last.
WHAT = ("forward", "backward", "gradients of weights", "once")

#: Gaps of at most this share of the step part no block: nobody would see them.
_UNSEEN = 1e-3


@dataclass(frozen=True)
class Blocks:
    """Blocks as columns, by device and then by start.

    Attributes
    ----------
    start, finish : float64
        Seconds.
    device : int64
    kind : int64
        Index into :data:`WHAT`.
    micro : int64
        The micro-batch; -1: all.
    virtual_stage : int64
        Which of the stages of its device the block is of, from 0; 0 where no recipe says it.
    idle : float64 [n_devices]
        Share of the step for which each device computes nothing.
    alive : int64 [n_devices]
        Micro-batches that are alive at once at most: some of their forward pass has begun on the
        device, and their backward pass has not ended there.
    """

    start: Floats
    finish: Floats
    device: Ints
    kind: Ints
    micro: Ints
    virtual_stage: Ints
    idle: Floats
    alive: Ints

    def __len__(self) -> int:
        return len(self.start)

    @classmethod
    def of(cls, plan: Plan) -> Blocks:
        """The blocks of a plan's step. O(V log V)."""
        op_of = plan.problem.reduced.op_of
        ran = of_ops(plan)
        works = ran.finish > ran.start
        parts = passes(plan.program)[op_of]
        is_aside = _aside(plan, parts)[works]
        part = passes_of_places(parts, ran.row)[works].astype(np.int64)
        part[part == ONCE] = len(PASSES)
        micro = plan.program.micro[op_of][works].astype(np.int64)
        virtual_stage = _virtual_stages(plan, ran.row)[works]
        device, start, finish = ran.row[works], ran.start[works], ran.finish[works]
        order = np.lexsort((start, device))
        part, micro, virtual_stage, device = (
            part[order],
            micro[order],
            virtual_stage[order],
            device[order],
        )
        start, finish = start[order], finish[order]
        keeps = np.where(is_aside[order], -1, micro)

        alike = (np.diff(device) == 0) & (np.diff(micro) == 0) & (np.diff(virtual_stage) == 0)
        part = _whole_backward(part, alike)
        same = alike & (np.diff(part) == 0)
        same &= start[1:] - finish[:-1] <= _UNSEEN * plan.makespan
        first = np.flatnonzero(np.concatenate([[True][: len(start)], ~same]))
        last = np.append(first[1:], len(start))[: len(first)] - 1
        n, span = plan.cluster.n_devices, plan.makespan or 1.0
        busy = np.bincount(device, finish - start, n)
        return cls(
            start[first],
            finish[last],
            device[first],
            part[first],
            micro[first],
            virtual_stage[first],
            1 - busy / span,
            _alive(start, finish, device, keeps, n),
        )


def _aside(plan: Plan, part: NDArray[np.int8]) -> NDArray[np.bool_]:
    """Mask of the reduced ops that keep no micro-batch alive: those on the side of their stage's
    passes.
    """
    stage, program, reduced = stage_of(plan), plan.program, plan.problem.reduced
    if stage is None:
        return np.zeros(len(part), dtype=bool)
    op_of = reduced.op_of
    return aside(reduced.graph.flows(), part, program.micro[op_of], stage[program.serves[op_of]])


def _virtual_stages(plan: Plan, device: Ints) -> Ints:
    """The stage that each reduced op is of, on its device. Work done once is of the first."""
    stage = stage_of(plan)
    if stage is None:
        return np.zeros(len(device), dtype=np.int64)
    op_of = plan.problem.reduced.op_of
    many = plan.program.micro[op_of] >= 0
    pairs = np.stack([device, stage[plan.program.serves[op_of]].astype(np.int64)])[:, many]
    known, which = np.unique(pairs, axis=1, return_inverse=True)
    first = np.searchsorted(known[0], known[0])
    stages = np.zeros(len(device), dtype=np.int64)
    stages[many] = (np.arange(known.shape[1]) - first)[which.ravel()]
    return stages


def _whole_backward(part: Ints, alike: NDArray[np.bool_]) -> Ints:
    """Parts of ops in turn. A backward pass with gradients of weights among its ops is one part.

    These are apart where they come after it. ``alike``: whether an op is of the device, the
    micro-batch and the stage of the one before it.
    """
    backward = (part == BACKWARD) | (part == WEIGHT)
    same = alike & backward[1:] & backward[:-1]
    run = np.cumsum(np.concatenate([[0][: len(part)], ~same]))
    follows = np.flatnonzero(same & (part[:-1] == WEIGHT) & (part[1:] == BACKWARD))
    is_mixed = np.zeros(int(run.max(initial=0)) + 1, dtype=bool)
    is_mixed[run[follows]] = True
    return np.where(is_mixed[run] & (part == WEIGHT), BACKWARD, part)


def _alive(start: Floats, finish: Floats, device: Ints, micro: Ints, n: int) -> Ints:
    """Most micro-batches at once, per device, from the times of ops."""
    m = int(micro.max(initial=-1)) + 1
    many = micro >= 0
    of = device[many] * m + micro[many]
    begin, end = np.full(n * m, np.inf), np.full(n * m, -np.inf)
    np.minimum.at(begin, of, start[many])
    np.maximum.at(end, of, finish[many])
    there = end > begin
    at = np.arange(n * m) // max(m, 1)
    most = [most_at_once(begin[there & (at == d)], end[there & (at == d)]) for d in range(n)]
    return np.array(most, dtype=np.int64)
