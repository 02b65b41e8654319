"""The human's way: a model's layers in forward order, cut into one balanced range per device.

Pesto (section 5.2) and Celeritas measure against it: "Expert places different layers of the
sequentially stacked LSTM layers on multiple GPUs", attention and softmax with the last of them,
embeddings with the first. Layers are read off the ops' module paths.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from loadmaster.judge.problem import Problem
from loadmaster.strategies.attempts import MemoryModel
from loadmaster.strategies.candidate import Candidate
from loadmaster.strategies.pipelines.baselines import in_stages, layered
from loadmaster.strategies.pipelines.space import PipelineSpace
from loadmaster.strategies.refusal import refuse_overfull
from loadmaster.strategies.registry import strategy
from loadmaster.strategies.simple.assigned import assigned
from loadmaster.strategies.simple.layer_ranges import layers, ranges

_NO_PATHS_NOTE = (
    "the ops have no module paths to read layers from: devices take contiguous ranges in program "
    "order"
)


@strategy("layers", "contiguous balanced layers by module path, the human's way")
def place(
    problem: Problem, *, memory: MemoryModel = "dynamic", micro_batches: int = 1
) -> Candidate:
    """Ranges of layers that balance time as well as memory lets them, then ordered.

    Parameters
    ----------
    problem : Problem
    memory : "dynamic" (default) or "static"
        What counts as within memory where there are no micro-batches.
    micro_batches : int
        Parts of the batch, which go through the ranges one after another, by 1F1B.

    Raises
    ------
    InputError
        More micro-batches than samples.
    InfeasibleError
        No cut into ranges fits.
    """
    if micro_batches != 1:
        return _piped(problem, micro_batches)
    of_model = layers(problem)
    tried: list[NDArray[np.int32]] = []

    def assign(bytes_: NDArray[np.uint64], capacity: NDArray[np.uint64]) -> NDArray[np.int32]:
        devices = ranges(problem, of_model.layer, bytes_, capacity)
        # Once bytes are as even as they can be, less capacity gives the same ranges again.
        again = bool(tried) and np.array_equal(devices, tried[-1])
        tried.append(devices)
        if again or not problem.best_effort:
            limit = capacity if again else problem.capacity
            refuse_overfull(problem, "the range of layers", devices, bytes_, limit)
        return devices

    candidate = assigned(problem, assign, memory)
    if any(of_model.names):
        return candidate
    return candidate.noted(_NO_PATHS_NOTE)


def _piped(problem: Problem, micro_batches: int) -> Candidate:
    """The ranges with micro-batches."""
    space = PipelineSpace.of(problem)
    (m,), _ = space.checked(micro_batches, None)
    devices = list(range(problem.cluster.n_devices))
    return in_stages(space, layered(space, by_time=True), m, "1f1b", devices)
