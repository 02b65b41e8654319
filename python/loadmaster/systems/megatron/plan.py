"""Training as Megatron-LM divides it: tensor parallelism inside of replicas inside of a pipeline of
layers, with routed experts apart on some replicas, interleaved runs of layers, layers or some of
their modules recomputed, and a distributed optimizer.
"""

from __future__ import annotations

from dataclasses import replace

from loadmaster.base import checks
from loadmaster.base.effort import Budget
from loadmaster.base.errors import InfeasibleError, InputError
from loadmaster.base.progress import Progress
from loadmaster.judge.problem import Problem
from loadmaster.strategies.attempts import Outcome, accepted
from loadmaster.strategies.candidate import Candidate
from loadmaster.strategies.grids.fastest import (
    fastest,
    levels,
    parts_of_layers,
    with_whole_state,
)
from loadmaster.strategies.grids.grids import ANY, Asked, Grids, JudgedGrids
from loadmaster.strategies.grids.modules import APART
from loadmaster.strategies.grids.recomputation_levels import NOTHING, RecomputationLevel, worthwhile
from loadmaster.systems.megatron.semantics import NAME
from loadmaster.systems.registry import refused
from loadmaster.systems.shared.asked_sizes import check_sizes
from loadmaster.systems.shared.layered import listed_layers
from loadmaster.transforms.samples import samples_to_share

#: Values of ``recompute`` beside names of modules.
FULL, SELECTIVE = "full", "selective"


def megatron(
    problem: Problem,
    *,
    root: str = "",
    layers: str | None = None,
    tp: int | None = None,
    pp: int | None = None,
    dp: int | None = None,
    micro_batches: int | None = None,
    virtual: int | None = None,
    expert_parallel: int | None = None,
    sequence: bool = True,
    recompute: bool | str | None = None,
    distributed_optimizer: bool | None = None,
    time_limit: float | None = None,
    progress: Progress | None = None,
) -> Candidate:
    """The best grid of tensor parallelism, replicas and stages.

    Parameters
    ----------
    problem : Problem
        Of a training step.
    root : str
        What the model is called in the graph's module paths, where it was traced as part of a
        larger one.
    layers : str, optional
        The module list that holds the layers; the longest in the model if absent.
    tp, pp, dp : int, optional
        Sizes. Absent: all that divide a number of devices: that of all, or of fewer.
    micro_batches : int, optional
        That a replica does one after another. Absent: several numbers are tried.
    virtual : int, optional
        Runs of layers per stage. Absent: 1, 2, 4, ...
    expert_parallel : int, optional
        How many of the dp replicas have the routed experts apart. Absent: all divisors of dp and
        of the number of experts are tried; 1: each has all experts.
    sequence : bool
        Whether what lies between the products may be cut by tokens (sequence parallelism).
    recompute : bool or str, optional
        Whether layers are recomputed as a whole (``"full"``), or which of their modules, such as
        ``"core_attn,layernorm"`` (:mod:`loadmaster.strategies.grids.modules`);
        ``"selective"``: some. Absent: as little as fits.
    distributed_optimizer : bool, optional
        Whether replicas have a part each of the optimizer's state. Absent: what is better.
    time_limit : float, optional
        Seconds on the clock; what is under way is finished first. Absent: no limit.
    progress : callable, optional
        Called with the grid in words and the best step time whenever there is a better one.

    Raises
    ------
    InputError
        An inference, a model without a list of layers; sizes that nothing goes with.
    InfeasibleError
        Nothing of that fits.
    """
    asked = Asked(tp, pp, dp, micro_batches, virtual, expert_parallel)
    grids = grids_of(problem, NAME, root, layers, sequence=sequence)
    flat = distributed_optimizer is not False
    grids = replace(grids, flat=flat, levels=_levels(grids, recompute))
    if expert_parallel is not None and expert_parallel > 1 and not grids.n_experts:
        raise refused(NAME, "the model has no routed experts, and expert_parallel shares them")
    try_whole = distributed_optimizer is None
    best = best_grid(grids, asked, time_limit=time_limit, progress=progress, try_whole=try_whole)
    experts = ", experts in other parts than tp (--expert-tensor-parallel-size)"
    return best.noted(
        "not considered: context parallelism (--context-parallel-size)"
        f"{experts if grids.n_experts else ''}"
    )


def grids_of(
    problem: Problem, name: str, root: str, layers: str | None, *, sequence: bool = True
) -> Grids:
    """The grids of a training step, for the target of a name.

    Raises
    ------
    InputError
        An inference, a model without a list of layers.
    """
    if "b" not in problem.model.phases:
        raise refused(name, "the graph has no backward pass")
    batch = samples_to_share(problem.model)
    if batch is None:
        raise refused(name, "nobody says how many samples the batch has")
    layer_list = listed_layers(name, problem, root, layers)
    return Grids(problem, layer_list, batch, sequence=sequence)


def best_grid(
    grids: Grids,
    asked: Asked,
    *,
    time_limit: float | None = None,
    progress: Progress | None = None,
    try_whole: bool = False,
) -> Candidate:
    """The best grid by the judge; with ``try_whole`` also with the optimizer's state whole.

    Raises
    ------
    InputError
        Sizes that devices, layers or heads do not go into.
    InfeasibleError
        Sizes that do not go together; nothing of that fits.
    """
    problem, layer_list = grids.problem, grids.listed
    named = {
        "tp": asked.tp,
        "pp": asked.pp,
        "dp": asked.dp,
        "expert_parallel": asked.ep,
        "micro_batches": asked.m,
        "virtual": asked.virtual,
    }
    for name, value in named.items():
        if value is not None:
            checks.integer(name, value, 1)
    n = len(grids.devices)
    check_sizes(problem, layer_list, n, tp=asked.tp, pp=asked.pp, dp=asked.dp)
    if next(grids.sizes(asked), None) is None:
        sizes = ", ".join(f"{name} {value}" for name, value in named.items() if value)
        raise InfeasibleError(
            f"no grid of {n} devices or fewer, with {sizes or 'any sizes'}: dp divides the batch "
            f"of {grids.batch}, and where there are stages each replica has 2 samples or more"
            f"{_of_experts(grids, asked)}"
        )
    budget = Budget.make(None, time_limit) if time_limit is not None else Budget(1.0, None)
    seen = JudgedGrids()
    best = fastest(grids, asked, seen, budget, progress)
    if best is None and problem.best_effort:
        best = fastest(grids, asked, seen, budget, progress, ANY)
    if best is None:
        raise InfeasibleError(
            f"no grid of {n} devices with so many micro-batches and runs of the "
            f"{len(layer_list)} layers fits: give more memory, or leave sizes out"
        )
    one = with_whole_state(grids, *best) if try_whole else best[0]
    return accepted(one.problem, Outcome(one, 1.0))


def _of_experts(grids: Grids, asked: Asked) -> str:
    """The end of a message on sizes where experts are in the way."""
    if grids.n_experts and not grids.sequence:
        return "; routed experts are trained with tp where norms are cut by tokens (sequence)"
    if asked.ep in (None, 1):
        return ""
    return f"; expert_parallel divides dp and the {grids.n_experts} experts of a layer"


def _levels(grids: Grids, recompute: bool | str | None) -> tuple[RecomputationLevel, ...]:
    """Levels of recomputation, the least first."""
    if recompute is False:
        return (NOTHING,)
    if recompute is True or recompute == FULL:
        return (grids.full,)
    if recompute is None:
        return levels(grids)
    parts = parts_of_layers(grids)
    if recompute == SELECTIVE:
        if some := worthwhile(parts, APART):
            return some
        raise refused(NAME, "nothing in its layers can be recomputed alone")
    names = [name.strip() for name in str(recompute).split(",")]
    for name in names:
        if name not in parts:
            known = ", ".join([FULL, SELECTIVE, *parts])
            raise InputError(f"recompute is {recompute!r}: wants {known}, or several of a layer")
    first, *rest = (parts[name] for name in dict.fromkeys(names))
    return (sum(rest, start=first),)
