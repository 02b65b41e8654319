"""FSDP2, ``fully_shard``: a process per device, with a share of the batch and all parameters.

Zhao et al., VLDB 2023; ZeRO-3 (Rajbhandari et al., SC 2020). A *unit* is a module whose parameters
one collective gathers, and whose gradients one collective scatters: the repeated layers, and the
model for the rest. What is decided: how many devices take part; whether parameters are sharded on
all of them or on some that are near each other, and replicated over the others (HSDP); whether a
unit's parameters are gathered again in the backward pass or kept; whether layers are recomputed.
"""

from __future__ import annotations

from loadmaster.base.progress import Progress
from loadmaster.judge.problem import Problem
from loadmaster.strategies.candidate import Candidate
from loadmaster.strategies.sharding.units import ShardSizes
from loadmaster.systems.fsdp.semantics import NAME
from loadmaster.systems.shared.fully_sharded import planned, recomputed_layers


def plan(
    problem: Problem,
    *,
    replicas: int | None = None,
    shard_size: int | None = None,
    reshard: bool | None = None,
    recompute: bool | None = None,
    progress: Progress | None = None,
) -> Candidate:
    """Fully sharded data parallelism on the fastest devices of one family, by FSDP2's units.

    Parameters
    ----------
    problem : Problem
    replicas : int, optional
        How many devices share the batch; the best number if absent.
    shard_size : int, optional
        How many of them share a parameter; it divides their number. The best if absent.
    reshard : bool, optional
        Whether layers are gathered again in the backward pass. If absent: if that is faster, or
        memory asks for it.
    recompute : bool, optional
        Whether layers are recomputed. If absent: if nothing fits otherwise.
    progress : callable, optional

    Raises
    ------
    InputError
        Not a training step of modules with a batch and an optimizer; sizes that do not divide;
        constraints that put an op elsewhere than on its process's device; one device.
    InfeasibleError
        It does not fit.
    """
    levels = recomputed_layers(problem, NAME, recompute)
    return planned(problem, NAME, levels, replicas, ShardSizes(shard_size, reshard), progress)
