"""Stages with replicas, tensor parallelism and recomputation: Piper, by its own cost model.

Tarnawski, Narayanan, Phanishayee, "Piper: Multidimensional Planner for DNN Parallelization"
(NeurIPS 2021), section 3. The period is the largest time per sample of any stage. A stage takes,
with d replicas, 1 / d of what its layers take and exchange with other stages per sample, and the
exchange of gradients between replicas once per batch: 4 (d - 1) / d of its parameters. In a stage
as many samples are in flight as it and all later stages have replicas, dealt out to its own ones.

As a method it plans a model's own costs (:mod:`.piper_inputs`), with equal stages: a recipe has one
mesh for the inside of all of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

import loadmaster.fast as fast
from loadmaster.base.errors import InfeasibleError, InputError
from loadmaster.base.units import counted, format_bytes, format_seconds
from loadmaster.judge.problem import Problem
from loadmaster.model.micro import Micro
from loadmaster.model.orders import program_order
from loadmaster.readers.planners.piper import Piper
from loadmaster.strategies.candidate import Candidate
from loadmaster.strategies.pipelines.baselines import advised, equal_layers, told
from loadmaster.strategies.pipelines.piped import piped, with_recipe
from loadmaster.strategies.pipelines.piper_inputs import Width, widths
from loadmaster.strategies.pipelines.space import PipelineSpace
from loadmaster.strategies.registry import strategy

#: Number of times that stages are sought for less of the memory, where the judge finds the last
#: ones over it, and the share of it that is left free then.
_ATTEMPTS, _SPARE = 4, 0.97


@strategy("piper", "stages of replicas and tensor parallelism, by Piper's own cost model")
def place(problem: Problem, *, micro_batches: int | None = None) -> Candidate:
    """The stages of :func:`stages` on a model's own costs, by 1F1B.

    Replicas and the degree of tensor parallelism are the same in every stage; of all that there are
    devices for, those are taken that end a batch soonest by Piper's own objective. Where none fit,
    or only some devices may run some ops, stages have equal numbers of layers.

    Parameters
    ----------
    problem : Problem
    micro_batches : int, optional
        Parts of the batch, each of which is shared by the replicas of a stage. Absent: as many as
        the batch has samples for, up to four per stage.

    Raises
    ------
    InputError
        One device, or one sample.
    """
    space, share = PipelineSpace.of(problem), 1.0
    # Its model has no ops that only some devices may run.
    known = list(widths(space, micro_batches)) if problem.allowed_types.all() else []
    for _ in range(_ATTEMPTS):
        best: tuple[float, Width, Piper, PiperStages] | None = None
        for width in known:
            if planned := _planned(width, share):
                seconds = width.m * planned[1].period
                if best is None or seconds < best[0]:
                    best = (seconds, width, *planned)
        if best is None:
            break
        candidate = _judged(*best[1:])
        if candidate.fits:
            return candidate
        share *= _SPARE / candidate.overfull
    return equal_layers(space, advised(space, micro_batches, problem.cluster.n_devices))


def _planned(width: Width, share: float) -> tuple[Piper, PiperStages] | None:
    """The stages of a width, and the input that they were found for; None: none fit in a share of
    the memory.

    Nothing that is recomputed is quicker, so it counts only where memory is short.
    """
    inputs = width.given(again=False, share=share)
    roomy = stages(replace(inputs, memory=float("inf")))
    if (roomy.held <= inputs.memory).all():
        return inputs, roomy
    inputs = width.given(again=True, share=share)
    try:
        return inputs, stages(inputs)
    except InfeasibleError:
        return None


def _judged(width: Width, inputs: Piper, split: PiperStages) -> Candidate:
    """Stages of the user's ops, judged."""
    space, n = width.space, len(split.seconds)
    again = np.array([name == "recomputed" for name in inputs.names])[split.choice]
    modules = space.recomputed(width.part, again)
    made_of = (
        split.stage[width.part],
        width.on[:n],
        Micro(width.m, "1f1b"),
        modules,
        width.layout,
    )
    candidate = with_recipe(piped(space.problem, *made_of), *made_of)
    if width.layout is None:
        candidate = told(space, candidate)
    inside = [
        counted(width.replicas, "replica"),
        f"tensor parallelism of {width.tensor}",
        f"{counted(len(modules), 'layer')} recomputed",
    ]
    return candidate.noted(
        f"{counted(n, 'stage')} of {', '.join(inside)}, {width.m} micro-batches; by its own "
        f"objective one ends every {format_seconds(split.period)}"
    )


@dataclass(frozen=True)
class PiperStages:
    """Stages of a Piper problem.

    Attributes
    ----------
    stage : int32 [n]
        The stage of each layer. Samples go through the stages in this order.
    choice : int32 [n]
        The choice of each layer.
    tensor, replicas : int32 [n_stages]
        Degree of tensor parallelism and number of replicas of each stage.
    seconds : float64 [n_stages]
        Time per sample of each stage.
    held : float64 [n_stages]
        Bytes on each of its devices.
    downsets : int, optional
        How many sets of layers a pipeline may be cut after. None where they were too many to be
        listed: then stages were cut out of an order.
    """

    stage: NDArray[np.int32]
    choice: NDArray[np.int32]
    tensor: NDArray[np.int32]
    replicas: NDArray[np.int32]
    seconds: NDArray[np.float64]
    held: NDArray[np.float64]
    downsets: int | None

    @property
    def period(self) -> float:
        """Seconds per sample of the slowest stage."""
        return float(self.seconds.max())


def stages(problem: Piper) -> PiperStages:
    """The stages with the smallest period.

    Where there are few downsets, all contiguous stages are looked at. The choices of a stage that
    is short of memory come from a heuristic: no plan with a smaller period is ruled out then.

    Raises
    ------
    InputError
        A cycle; a layer that no degree has a choice for.
    InfeasibleError
        No stages fit the devices.

    Examples
    --------
    >>> way = {"timePerSample": 2, "parameterSize": 0, "memoryUsageA": 1, "memoryUsageB": 0}
    >>> nodes = [{"id": 0, "TMPCs": {"1": [way]}}, {"id": 1, "TMPCs": {"1": [way]}}]
    >>> document = {"nodes": nodes, "edges": [], "maxDevices": 4}
    >>> document |= {"maxMemoryPerDevice": 9, "mbsInBatch": 4}
    >>> stages(Piper.from_document(document)).period
    1.0
    """
    n = len(problem.ids)
    missing = np.setdiff1d(np.arange(n), problem.layer)
    if len(missing):
        raise InputError(f"layer {problem.ids[missing[0]]} cannot be run: it has no choice")
    rows, downsets = fast.piper_stages(
        (problem.src, problem.dst),
        (problem.layer, problem.degree, problem.numbers),
        (problem.choice, problem.other, problem.exchanged),
        [_order(problem)],
        (problem.devices, problem.memory, problem.bandwidth, problem.samples),
    )
    if rows is None:
        least = float(np.bincount(problem.layer, problem.numbers[:, 3]).sum())
        raise InfeasibleError(
            f"no stages fit {problem.devices} devices of {format_bytes(round(problem.memory))}: "
            f"the choices of all layers hold {format_bytes(round(least))} at most, before any "
            "sample is in flight; give more devices or more memory"
        )
    stage, choice, degrees = rows
    best = PiperStages(
        stage, choice, degrees[:, 0], degrees[:, 1], *(np.empty(0),) * 2, downsets=downsets
    )
    seconds, held = costs(problem, best)
    return replace(best, seconds=seconds, held=held)


def costs(problem: Piper, split: PiperStages) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Seconds per sample and bytes per device of each stage, float64 [n_stages]. O(n + x)."""
    count, d = len(split.replicas), split.replicas.astype(np.float64)
    stage = split.stage
    compute, parameters, held, fixed = (
        np.bincount(stage, column, count) for column in problem.numbers[split.choice].T
    )
    taken = split.choice[problem.layer[problem.choice]] == problem.choice
    here = stage[problem.layer[problem.choice]]
    goes = taken & (here != stage[problem.other])
    exchanged = np.bincount(here[goes], problem.exchanged[goes], count)
    summed = 4 * (d - 1) * parameters / d / problem.samples
    seconds = (exchanged / d + summed) / problem.bandwidth + compute / d
    later = np.cumsum(split.replicas[::-1])[::-1]
    in_flight: NDArray[np.float64] = np.ceil(later / d)
    return seconds, held * in_flight + fixed


def _order(problem: Piper) -> NDArray[np.int64]:
    """The layers in the order of the file, as far as edges allow."""
    graph = fast.Graph(len(problem.ids), problem.src, problem.dst)
    return program_order(graph).astype(np.int64)
