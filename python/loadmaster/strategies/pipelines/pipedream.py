"""PipeDream: stages with replicas, for the shortest period of an asynchronous pipeline.

Narayanan et al., "PipeDream: Generalized Pipeline Parallelism for DNN Training" (SOSP 2019),
section 3.1. Its dynamic program over layers minimises the slowest stage's time per micro-batch. A
stage of r replicas does r micro-batches in the time of one. It all-reduces its gradients and sends
its activations meanwhile. Here micro-batch j is on replica j mod r of its stage (1F1B-RR), and
replicas send their gradients to the first of them. A single stage on all devices is data
parallelism. The step ends with an update, as that of the flushing variant does: the objective stays
the paper's, and the judge sees the step.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

import loadmaster.fast as fast
from loadmaster.base.units import format_seconds
from loadmaster.judge.problem import Problem
from loadmaster.model.micro import Micro
from loadmaster.strategies.candidate import Candidate
from loadmaster.strategies.pipelines.baselines import advised, equal_layers, told
from loadmaster.strategies.pipelines.piped import piped, with_recipe
from loadmaster.strategies.pipelines.space import PipelineSpace
from loadmaster.strategies.pipelines.stage_costs import StageCosts
from loadmaster.strategies.registry import strategy
from loadmaster.strategies.simple import data_parallel


@strategy("pipedream", "stages with replicas, for the shortest asynchronous period")
def place(problem: Problem, *, micro_batches: int | None = None) -> Candidate:
    """The paper's stages over all devices, by 1F1B with replicas in turn.

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
    m = advised(space, micro_batches, n)
    line, at = space.lines[0]
    costs = space.costs(m)[0]
    candidate = partition(space, costs)
    if candidate is None:
        return equal_layers(space, m)
    period, ends, replicas = candidate
    if len(replicas) == 1:
        one = "one stage by its own objective: replicas, which take the batch without micro-batches"
        return data_parallel.place(problem).noted(one)
    note = (
        f"stages of {'-'.join(map(str, replicas))} devices, {m} micro-batches; asynchronous, it "
        f"would end one every {format_seconds(period)} by its own objective"
    )
    stage = np.searchsorted(at[ends[:-1]], line.place, "right")
    made_of = stage, list(range(sum(replicas))), Micro(m, in_turn=tuple(replicas))
    return told(space, with_recipe(piped(problem, *made_of), *made_of)).noted(note)


def partition(space: PipelineSpace, costs: StageCosts) -> tuple[float, list[int], list[int]] | None:
    """The period, the cut at the end of each stage, and its replicas; none where none fit.

    Exact under the paper's objective: the largest of all stages' times over their replicas,
    gradients' all-reduces, and transfers between stages. All devices count as the slowest type.
    """
    problem, n = space.problem, space.problem.cluster.n_devices
    slowest = max(problem.cluster.device_types, key=lambda kind: float(costs.work[kind]))
    latency, per_byte = problem.links.mean_link
    load = []
    for r in range(1, n + 1):
        ring = 2 * (r - 1) * (latency + costs.gradients / r * per_byte)
        load.append(np.maximum(costs.loads[slowest], ring) / r)
    in_flight = [-(-(n - before) // r) for r in range(1, n + 1) for before in range(n)]
    stages = fast.best_stages(
        np.concatenate(load),
        np.zeros((n * costs.n_cuts, costs.n_cuts)),
        (np.tile(costs.fixed.ravel(), n), np.tile(costs.held.ravel(), n)),
        (
            np.zeros(n, dtype=np.int64),
            np.arange(1, n + 1),
            np.full(n, min(problem.cluster.memory), dtype=np.uint64),
            np.array(in_flight, dtype=np.uint64),
        ),
        ([n], n),
        1.0,
    )
    if stages is None:
        return None
    ends, way = (column.tolist() for column in stages)
    period = max(float(load[w][i, j]) for (i, j), w in zip(pairwise([0, *ends]), way, strict=True))
    return period, ends, [w + 1 for w in way]
