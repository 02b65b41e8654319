"""GPipe: equal numbers of layers per stage, and all forward passes before the first backward pass.

Huang et al., "GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism"
(NeurIPS 2019). Layers are read off module paths, as ``layers`` reads them.
"""

from __future__ import annotations

from loadmaster.judge.problem import Problem
from loadmaster.strategies.candidate import Candidate
from loadmaster.strategies.pipelines.baselines import advised, in_stages, layered
from loadmaster.strategies.pipelines.space import PipelineSpace
from loadmaster.strategies.registry import strategy


@strategy("gpipe", "equal numbers of layers per stage, all forward passes first")
def place(problem: Problem, *, micro_batches: int | None = None) -> Candidate:
    """A pipeline over all devices.

    Parameters
    ----------
    problem : Problem
    micro_batches : int, optional
        Parts of the batch. Absent: as many as the batch has samples, up to four per device.

    Raises
    ------
    InputError
        One device, or one sample.
    """
    space, n = PipelineSpace.of(problem), problem.cluster.n_devices
    stage = layered(space, by_time=False)
    return in_stages(space, stage, advised(space, micro_batches, n), "gpipe", list(range(n)))
