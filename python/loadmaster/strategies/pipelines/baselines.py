"""Parts that the pipelines of papers share: stages that were chosen, a schedule, and
micro-batches.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from loadmaster.strategies.candidate import Candidate
from loadmaster.strategies.pipelines.piped import micro_of, piped, with_recipe
from loadmaster.strategies.pipelines.schedules import Named
from loadmaster.strategies.pipelines.space import PipelineSpace
from loadmaster.strategies.simple.layer_ranges import layers, ranges

#: Micro-batches per stage that GPipe advises (Huang et al. 2019, section 2.3): then the bubble is
#: small.
PER_STAGE = 4

#: It is told where the ops of all micro-batches take so many times what those of the batch do.
_SHORT_OPS = 1.5


def advised(space: PipelineSpace, micro: int | None, n_stages: int) -> int:
    """The number of micro-batches: what a user says, else as GPipe advises, within the batch."""
    counts, _ = space.checked(micro, None)
    return max((m for m in counts if m <= PER_STAGE * n_stages), default=counts[0])


def in_stages(
    space: PipelineSpace, stage: NDArray[np.int32], m: int, schedule: Named, devices: list[int]
) -> Candidate:
    """Stages of the user's ops by a schedule, judged."""
    used, numbers = np.unique(stage, return_inverse=True)
    on = [devices[s] for s in used.tolist()]
    micro = micro_of(m, schedule)
    made_of = numbers, on, micro
    return told(space, with_recipe(piped(space.problem, *made_of), *made_of))


def told(space: PipelineSpace, candidate: Candidate) -> Candidate:
    """A pipeline, with a note where its micro-batches are too small for the time that an op takes
    at least.
    """
    whole, parts = (float(one.op_time.sum()) for one in (space.problem, candidate.problem))
    if parts < _SHORT_OPS * whole:
        return candidate
    return candidate.noted(
        f"the ops of all micro-batches take {parts / whole:.1f} times as long as those of the "
        "batch in one: with fewer micro-batches the step may be shorter"
    )


def equal_layers(space: PipelineSpace, m: int) -> Candidate:
    """Equal numbers of layers by 1F1B: stages for a method of which none fit by its own estimate.
    The judge says what fits, or what is short.
    """
    devices = list(range(space.problem.cluster.n_devices))
    candidate = in_stages(space, layered(space, by_time=False), m, "1f1b", devices)
    return candidate.noted(
        "no other stages were found that fit: these have equal numbers of layers"
    )


def layered(space: PipelineSpace, *, by_time: bool) -> NDArray[np.int32]:
    """The stage of each of the user's ops: ranges of layers, one per device, of equal time as far
    as memory lets them, or of equal numbers of layers.

    Along the model's first line no stage comes back: a layer that does is in the stage before it.
    """
    problem = space.problem
    layer = layers(problem).layer
    if by_time:
        held = problem.reduced.held_at_peak
        stage = ranges(problem, layer, held, problem.capacity)
    else:
        n = int(layer.max()) + 1
        p = min(problem.cluster.n_devices, n)
        stage = (layer.astype(np.int64) * p // n).astype(np.int32)
    group = space.groups[problem.reduced.op_of]
    forward = np.array([problem.model.phases[op] in ("", "f") for op in problem.reduced.op_of])
    of_group = np.full(int(space.groups.max()) + 1, problem.cluster.n_devices)
    np.minimum.at(of_group, group[forward], stage[forward])
    return np.maximum.accumulate(of_group)[space.groups].astype(np.int32)
