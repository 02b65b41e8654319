"""Stages with replicas, tensor parallelism and recomputation: Piper, under its own cost model.

Tarnawski, Narayanan, Phanishayee, "Piper: Multidimensional Planner for DNN Parallelization"
(NeurIPS 2021), section 3. The period is the largest time per sample of any stage. A stage takes,
with d replicas, 1 / d of what its layers take and exchange with other stages per sample, and the
exchange of gradients between replicas once per batch: 4 (d - 1) / d of its parameters. In a stage
as many samples are in flight as it and all later stages have replicas, dealt out to its own ones.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

import loadmaster.fast as fast
from loadmaster.base.errors import InfeasibleError, InputError
from loadmaster.base.units import format_bytes
from loadmaster.model.orders import program_order
from loadmaster.readers.piper import Piper


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
    found, downsets = fast.piper_stages(
        (problem.src, problem.dst),
        (problem.layer, problem.degree, problem.numbers),
        (problem.choice, problem.other, problem.exchanged),
        [_order(problem)],
        (problem.devices, problem.memory, problem.bandwidth, problem.samples),
    )
    if found is None:
        least = float(np.bincount(problem.layer, problem.numbers[:, 3]).sum())
        raise InfeasibleError(
            f"no stages fit {problem.devices} devices of {format_bytes(round(problem.memory))}: "
            f"the choices of all layers hold {format_bytes(round(least))} at most, before any "
            "sample is in flight; give more devices or more memory"
        )
    stage, choice, degrees = found
    made = PiperStages(
        stage, choice, degrees[:, 0], degrees[:, 1], *(np.empty(0),) * 2, downsets=downsets
    )
    seconds, held = costs(problem, made)
    return replace(made, seconds=seconds, held=held)


def costs(problem: Piper, made: PiperStages) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Seconds per sample and bytes per device of each stage, float64 [n_stages]. O(n + x)."""
    count, d = len(made.replicas), made.replicas.astype(np.float64)
    stage = made.stage
    compute, parameters, held, fixed = (
        np.bincount(stage, column, count) for column in problem.numbers[made.choice].T
    )
    taken = made.choice[problem.layer[problem.choice]] == problem.choice
    here = stage[problem.layer[problem.choice]]
    goes = taken & (here != stage[problem.other])
    exchanged = np.bincount(here[goes], problem.exchanged[goes], count)
    summed = 4 * (d - 1) * parameters / d / problem.samples
    seconds = (exchanged / d + summed) / problem.bandwidth + compute / d
    later = np.cumsum(made.replicas[::-1])[::-1]
    in_flight: NDArray[np.float64] = np.ceil(later / d)
    return seconds, held * in_flight + fixed


def _order(problem: Piper) -> NDArray[np.int64]:
    """The layers in the order of the file, as far as edges allow."""
    graph = fast.Graph(len(problem.ids), problem.src, problem.dst)
    return program_order(graph).astype(np.int64)
