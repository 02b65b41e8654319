"""Data parallelism: a replica of the model on every device, each on its share of the batch.

FastT (Yi et al., Middleware 2020, section 6) has it as its baseline, with parameter servers. What
is run today sums gradients by collectives (:mod:`loadmaster.transforms.batch_labels`).

Devices of unequal speed get unequal shares. A replica's time is taken to be a line in its samples:
what it takes for none, and what each sample adds. Shares are such that all replicas would end
together. What a replica takes for none is first that of the whole model, and then what its device
was seen to do beside its samples: of a sharded optimizer it does a part. A replica that is over its
device's memory gives samples to the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

import loadmaster.fast as fast
from loadmaster.base import checks
from loadmaster.base.units import counted
from loadmaster.judge.assignment import Assignment
from loadmaster.judge.problem import Problem, ranks
from loadmaster.model.parallelism import Parallelism
from loadmaster.strategies.attempts import Outcome, accepted
from loadmaster.strategies.candidate import Candidate, judged
from loadmaster.strategies.registry import strategy
from loadmaster.strategies.simple.homes import where_allowed, with_homes
from loadmaster.transforms import replicate
from loadmaster.transforms.data_parallel import Aggregation, BatchNorm, Shards, share_out
from loadmaster.transforms.samples import check_samples_apart
from loadmaster.transforms.shares import batch_size

#: Number of times that samples move away from replicas that are over their device's memory.
_MOVES = 4


@strategy("data-parallel", "a replica on every device, gradients summed", is_final=True)
def place(
    problem: Problem,
    *,
    aggregation: Aggregation = "all-reduce",
    shards: Shards = "flat",
    batch_norm: BatchNorm = "local",
    replicas: int | None = None,
) -> Candidate:
    """A replica of :func:`loadmaster.transforms.replicate`'s graph on each device.

    Ops of a replica run in Kahn order or in the program's own, whichever is faster. An op that may
    not run on its replica's device runs on the next that it allows. One replica is the graph as it
    is.

    Parameters
    ----------
    problem : Problem
    aggregation, shards, batch_norm
        As :func:`loadmaster.transforms.replicate` takes them.
    replicas : int, optional
        How many, on the fastest devices; as many as devices and samples of the batch if absent.

    Raises
    ------
    InfeasibleError
        A replica does not fit on its device, or no device may run some op.
    """
    devices = usable(problem)
    if replicas is not None:
        devices = devices[: checks.integer("replicas", replicas, 1, len(devices))]
    if len(devices) > 1:
        check_samples_apart(problem.model)
    batch = batch_size(problem.model)
    notes: tuple[str, ...] = ()
    if batch is not None and batch < len(devices):
        has = counted(batch, "sample")
        notes = (f"the batch has {has}: {counted(len(devices) - batch, 'device')} of no use",)
    devices = sorted(devices[:batch])
    if len(devices) == 1:
        alone = where_allowed(problem, np.full(problem.graph.n_ops, devices[0], dtype=np.int32))
        return accepted(problem, Outcome(in_best_order(problem, alone).noted(*notes), 1.0))

    def replicated(rows: Sequence[int]) -> Candidate:
        done = replicate(
            problem.model,
            len(devices),
            rows=rows,
            aggregation=aggregation,
            shards=shards,
            batch_norm=batch_norm,
        )
        placed = problem.transformed(done)
        if aggregation == "parameter-server":
            at = with_homes(placed, done, devices)
        else:
            replica = done.replica[placed.reduced.op_of]
            at = where_allowed(placed, np.array(devices, dtype=np.int32)[replica])
        candidate = in_best_order(placed, at).noted(*notes, *done.notes)
        is_trained = bool(problem.model.updates.any())
        return replace(candidate, parallelism=_degrees(rows, aggregation, is_trained))

    on_devices = _within_memory(problem, devices, replicated)
    return accepted(on_devices.problem, Outcome(on_devices, 1.0))


def _degrees(rows: Sequence[int], aggregation: Aggregation, is_trained: bool) -> Parallelism | None:
    """The degrees of parallelism of replicas with so many samples each; None: of servers."""
    n, shares = len(rows), tuple(rows) if len(set(rows)) > 1 else ()
    if not is_trained or aggregation == "all-reduce":
        return Parallelism(replicate=n, shares=shares)
    if aggregation == "parameter-server":
        return None
    return Parallelism(shard=n, shard_state="gradients", shares=shares)


def usable(problem: Problem) -> list[int]:
    """The devices for replicas, fastest first: those that may run half as many ops as any other."""
    types = np.array(problem.cluster.device_types)
    runs = problem.allowed_types.sum(axis=0)[types]
    return [d for d in problem.fastest_first.tolist() if 2 * runs[d] >= runs.max()]


def in_best_order(problem: Problem, devices: NDArray[np.int32]) -> Candidate:
    """The ops on these devices, in Kahn order or in the program's own."""
    orders = ranks(fast.m_topo(problem.graph)), np.arange(problem.graph.n_ops, dtype=np.int32)
    return problem.objective.best(judged(problem, Assignment(devices, order)) for order in orders)


def _within_memory(
    problem: Problem, devices: list[int], replicated: Callable[[Sequence[int]], Candidate]
) -> Candidate:
    """Replicas with shares by speed, and by memory where one is over it; the best found."""
    model, k = problem.model, len(devices)
    batch = batch_size(model) or k
    fixed, per_sample = _lines(problem, devices, batch)
    most = np.full(k, batch)
    rows: tuple[int, ...] = ()
    best: Candidate | None = None
    for move in range(_MOVES):
        before, rows = rows, share_out(batch, fixed, per_sample, most)
        if rows == before:
            break
        candidate = replicated(rows)
        best = candidate if best is None else problem.objective.better(best, candidate)
        peak = candidate.verdict.peak[devices].astype(np.float64)
        memory = problem.capacity[devices].astype(np.float64)
        is_over = peak > memory
        if (best.fits and move > 0) or is_over.all():
            break
        if move == 0 and fixed.any():
            busy = candidate.schedule.device_busy[devices]
            fixed = np.maximum(busy - per_sample * np.array(rows), 0.0)
        # What does not stay for the whole step goes with the samples, or less than that.
        stays = _resident(candidate)[devices]
        fewer = np.array(rows) * (memory - stays) / np.maximum(peak - stays, 1.0)
        most = np.where(is_over, np.clip(fewer, 1, np.array(rows) - 1), most).astype(np.int64)
        if (most < 1).any() or most.sum() < batch:
            break
    assert best is not None
    return best


def _resident(candidate: Candidate) -> NDArray[np.float64]:
    """Bytes per device that stay for the whole step."""
    resident = candidate.problem.graph.resident.astype(np.float64)
    n_devices = candidate.problem.cluster.n_devices
    return np.bincount(candidate.assignment.devices, resident, n_devices).astype(np.float64)


def _lines(
    problem: Problem, devices: list[int], batch: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Seconds of a replica on each device: for no sample, and more per sample.

    From the times of the whole batch and of the larger half of it, which the first of two replicas
    has. Devices of one type need neither.
    """
    types = np.array(problem.cluster.device_types)[devices]
    if len(set(types.tolist())) == 1:
        return np.zeros(len(devices)), np.ones(len(devices))
    whole = problem.costs.time.sum(axis=0)
    half = problem.transformed(replicate(problem.model, 2))
    of_half = half.costs.time[half.program.replica == 0].sum(axis=0)
    per_sample = np.maximum(whole - of_half, 1e-12) / (batch // 2)
    fixed = np.maximum(whole - per_sample * batch, 0.0)
    return fixed[types], per_sample[types]
