"""Pipelines as ``torch.distributed.pipelining`` runs them.

Stages begin and end where modules do (:mod:`loadmaster.rules.module_cuts`), each rank has one of
them, or two in turn, and a schedule is one that PyTorch has a class for. What autograd runs of a
module is on the rank of its forward pass, and so are its parameters and their updates. Within that,
stages and schedules are those of :mod:`loadmaster.strategies.pipelines`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from loadmaster.base import checks
from loadmaster.base.errors import InfeasibleError, InputError
from loadmaster.base.progress import Progress
from loadmaster.judge.problem import Problem
from loadmaster.model.micro import NAMED, Named
from loadmaster.rules.module_cuts import ModuleCuts
from loadmaster.strategies.attempts import Outcome, accepted
from loadmaster.strategies.candidate import Candidate
from loadmaster.strategies.grids.module_space import ZERO_BUBBLE, ModuleSpace
from loadmaster.strategies.pipelines.pipeline import PipelineChoices, fastest
from loadmaster.strategies.pipelines.space import PipelineSpace, lacks
from loadmaster.systems.pipelining.semantics import NAME
from loadmaster.systems.registry import refused


def pipelining(
    problem: Problem,
    *,
    root: str = "",
    micro_batches: int | None = None,
    stages: int | None = None,
    schedule: Literal["auto"] | Named = "auto",
    time_limit: float | None = None,
    progress: Progress | None = None,
) -> Candidate:
    """The best pipeline that PyTorch can run.

    Parameters
    ----------
    problem : Problem
    root : str
        What the model is called in the graph's module paths, where it was traced as part of a
        larger one.
    micro_batches : int, optional
        Parts of the batch, which it must be divisible by. Absent: several numbers are tried.
    stages : int, optional
        Ranks. Absent: any number of devices.
    schedule : "auto" (default), "gpipe", "1f1b", "interleaved-1f1b", "zero-bubble" or "zb-v"
        "auto": the best of these.
    time_limit, progress
        As :func:`loadmaster.strategies.pipelines.pipeline.place` has them.

    Raises
    ------
    InputError
        A model that cannot be cut into stages, a batch of one sample, numbers that do not divide.
    InfeasibleError
        No stages of whole modules fit.
    """
    checks.one_of("schedule", schedule, ("auto", *NAMED))
    if reason := lacks(problem):
        raise refused(NAME, reason)
    cuts = ModuleCuts(problem.model, root)
    if not len(cuts.open):
        raise refused(NAME, closed(cuts))
    space = ModuleSpace(problem, PipelineSpace.of(problem).batch, module_cuts=cuts)
    if not space.pools:
        names = " and ".join(device.name for device in problem.cluster.devices)
        raise InputError(
            f"target {NAME!r}: {names} are of a kind each, and PyTorch sends nothing between "
            "kinds: plan for two devices of one kind, or leave the target out"
        )
    counts, numbers = space.checked(micro_batches, stages)
    if any(space.batch % m for m in counts):
        raise InputError(
            f"micro_batches is {counts[0]}, and the batch of {space.batch} samples is not "
            "divisible by it: PyTorch traces stages for micro-batches of one size"
        )
    schedules = NAMED if schedule == "auto" else (schedule,)
    if not space.trains:
        if schedule not in ("auto", "gpipe"):
            raise InputError(f"schedule {schedule!r} is for training: an inference has 'gpipe'")
        schedules = ("gpipe",)
    best = fastest(
        space,
        PipelineChoices(counts, numbers, schedules, others=space.others(stages)),
        time_limit=time_limit,
        progress=progress,
    )
    if best is None:
        raise InfeasibleError(_nothing(space, counts, numbers, schedules))
    candidate, shape = best
    outcome = Outcome(shape.with_recipe(candidate).noted(*_left_out(space)), 1.0)
    return accepted(candidate.problem, outcome)


def _left_out(space: ModuleSpace) -> Iterator[str]:
    """A note on the devices that have no stage, since they are of another kind."""
    used = {d for pool in space.pools for d in pool.devices}
    names = [d.name for at, d in enumerate(space.problem.cluster.devices) if at not in used]
    if names:
        yield f"no stage is on {', '.join(names)}: PyTorch sends nothing between kinds of devices"


def closed(cuts: ModuleCuts) -> str:
    """Why a model cannot be cut anywhere."""
    names, modules = cuts.graph.names, cuts.graph.modules
    if not any(cuts.module_of):
        below = f" below {cuts.root!r}" if cuts.root else ""
        return f"the graph {cuts.graph.name!r} has no ops with module paths{below}"
    if cuts.tied:
        widest = max(cuts.tied, key=lambda span: span.places[-1] - span.places[0])
        first, last = (cuts.order[place] for place in (widest.places[0], widest.places[-1]))
        return (
            f"{names[widest.op]!r} is read from {modules[first]!r} to {modules[last]!r}, and what "
            "reads a parameter stays in one stage, since PyTorch would copy it: untie it"
        )
    if cuts.recomputed:
        return "no module ends before the last one begins but within what is recomputed together"
    return "no module ends between the first that has a parameter and the last one"


def _nothing(
    space: ModuleSpace, counts: list[int], numbers: list[int], schedules: Sequence[str]
) -> str:
    ranks = ", ".join(map(str, numbers))
    apart = (
        " PyTorch's zero-bubble schedules take no stages where something is recomputed, or but the "
        "first has a weight that is behind nothing trained."
    )
    return (
        f"no stages of whole modules fit: tried {ranks} ranks and "
        f"{', '.join(map(str, counts))} micro-batches by {', '.join(schedules)}, with "
        f"{len(space.module_cuts.open)} places to cut. Give more memory, or fewer stages."
        f"{apart if set(schedules) <= set(ZERO_BUBBLE) else ''}"
    )
