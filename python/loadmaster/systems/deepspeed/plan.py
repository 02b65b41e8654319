"""DeepSpeed's ZeRO: a process per device, with a share of the optimizer's state, or of all state.

Rajbhandari et al., SC 2020. Stages 1 and 2 have the parameters whole on every device: gradients are
scattered in buckets to who updates them, and what was updated is gathered when all of it is. They
send the same; stage 2 frees what it has scattered. Stage 3 shards parameters too, and gathers them
in buckets before they are used, forward and backward. What is decided: how many devices take part,
the stage, and the size of buckets.
"""

from __future__ import annotations

from loadmaster.base.progress import Progress
from loadmaster.judge.problem import Problem
from loadmaster.strategies.candidate import Candidate
from loadmaster.systems.deepspeed.semantics import NAME
from loadmaster.systems.shared.zero import planned


def plan(
    problem: Problem,
    *,
    replicas: int | None = None,
    stage: int | None = None,
    bucket_mb: int | None = None,
    progress: Progress | None = None,
) -> Candidate:
    """Equal shares of the batch on the fastest devices of one family, by ZeRO.

    Parameters
    ----------
    problem : Problem
    replicas : int, optional
        How many devices take part; the best number of two or more if absent.
    stage : 1, 2 or 3, optional
        The better of 2 and 3 if absent.
    bucket_mb : int, optional
        Millions of bytes of a bucket; the best of a few if absent.
    progress : callable, optional

    Raises
    ------
    InputError
        Not a training step with a batch and an optimizer; as many replicas as do not divide the
        batch; constraints that put an op elsewhere than on its process's device; one device; stage
        3 of a graph that does not say the shapes of tensors.
    InfeasibleError
        It does not fit.
    """
    return planned(problem, NAME, replicas, stage, bucket_mb, progress)
