"""Pipelines as ``torch.distributed.pipelining`` runs them.

Stages begin and end where modules do (:mod:`loadmaster.rules.module_cuts`), each rank has one of
them, or two in turn, and a schedule is one that PyTorch has a class for. What autograd runs of a
module is on the rank of its forward pass, and so are its parameters and their updates. Within that,
stages and schedules are those of :mod:`loadmaster.strategies.pipelines`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

import loadmaster.fast as fast
from loadmaster.base import checks
from loadmaster.base.errors import InfeasibleError, InputError
from loadmaster.base.progress import Progress
from loadmaster.judge.problem import Problem
from loadmaster.model.micro import NAMED, Named
from loadmaster.rules.module_cuts import ModuleCuts, inside
from loadmaster.strategies.attempts import Outcome, accepted
from loadmaster.strategies.candidate import Candidate
from loadmaster.strategies.pipelines.cuts import cuts
from loadmaster.strategies.pipelines.lines import Line, line_of
from loadmaster.strategies.pipelines.pipeline import Asked, fastest
from loadmaster.strategies.pipelines.space import Space, lacks
from loadmaster.systems.registry import Semantics, refused, target

_NAME = "pipelining"

SEMANTICS = Semantics(
    system="torch.distributed.pipelining",
    models="a chain of modules that is given a batch",
    splits="nothing but the batch, into micro-batches of one size",
    unit="a run of modules: a stage, one per rank, or two where they are interleaved",
    moves="activations to the next stage when a micro-batch ends there, and gradients back",
    launches="each rank its own ops, in the order of the schedule",
    memory="parameters, gradients and optimizer state of the stage, and activations of the "
    "micro-batches that the schedule keeps",
)


@target(_NAME, SEMANTICS, framework="torch")
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
        Ranks. Absent: all devices, a half of them, a quarter, and so on.
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
        raise refused(_NAME, reason)
    found = ModuleCuts(problem.model, root)
    if not len(found.open):
        raise refused(_NAME, closed(found))
    space = ModuleSpace(problem, Space.of(problem).batch, found=found)
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
        space, Asked(counts, numbers, schedules), time_limit=time_limit, progress=progress
    )
    if best is None:
        raise InfeasibleError(_nothing(space, counts, numbers))
    candidate, shape = best
    return accepted(candidate.problem, Outcome(shape.with_recipe(candidate), 1.0))


def closed(found: ModuleCuts) -> str:
    """Why a model cannot be cut anywhere."""
    names, modules = found.graph.names, found.graph.modules
    if not any(found.module_of):
        below = f" below {found.root!r}" if found.root else ""
        return f"the graph {found.graph.name!r} has no ops with module paths{below}"
    if found.tied:
        widest = max(found.tied, key=lambda span: span.places[-1] - span.places[0])
        first, last = (found.order[place] for place in (widest.places[0], widest.places[-1]))
        return (
            f"{names[widest.op]!r} is read from {modules[first]!r} to {modules[last]!r}, and what "
            "reads a parameter stays in one stage, since PyTorch would copy it: untie it"
        )
    return (
        "no module ends before the last one begins, or the model's inputs are read up to there, "
        "and PyTorch gives these to the first stage only"
    )


def _nothing(space: ModuleSpace, counts: list[int], numbers: list[int]) -> str:
    ranks = ", ".join(map(str, numbers))
    return (
        f"no stages of whole modules fit, or can be sent what they read: tried {ranks} ranks and "
        f"{', '.join(map(str, counts))} micro-batches, with {len(space.found.open)} places to cut. "
        "Give more memory, or fewer stages"
    )


@dataclass(frozen=True, eq=False)
class ModuleSpace(Space):
    """Pipelines that are cut between modules, in the order in which the model runs them."""

    found: ModuleCuts = field(default_factory=lambda: ModuleCuts(None))  # type: ignore[arg-type]

    @property
    def trains(self) -> bool:
        """True if there is a backward pass."""
        return "b" in self.problem.model.phases

    @cached_property
    def line(self) -> Line:
        """The order in which the model runs, with all ops of a module among those of its forward
        pass.
        """
        reduced_of = np.full(self.problem.model.n_ops, -1, dtype=np.int64)
        reduced_of[self.problem.reduced.op_of] = np.arange(self.problem.graph.n_ops)
        line = line_of(self.problem, reduced_of[self.found.order])
        return Line(self._with_modules(line), line.is_open)

    @cached_property
    def lines(self) -> list[tuple[Line, NDArray[np.int64]]]:
        """The one order, with the places between modules."""
        is_open = np.zeros_like(self.line.is_open)
        is_open[[0, *self.found.open, -1]] = True
        line = Line(self.line.place, is_open & self.line.is_open)
        return [(line, cuts(self.problem, line))]

    @cached_property
    def layers(self) -> tuple[str, ...]:
        """Stages keep all activations."""
        return ()

    def allows(self, schedule: str, m: int, p: int, stage: NDArray[np.int32]) -> bool:
        """True if PyTorch takes the numbers, and can send the tensors that stages read."""
        if schedule == "1f1b" and m < p:
            return False
        if schedule in ("interleaved-1f1b", "zero-bubble") and m % max(1, m // p):
            return False
        of_place = stage[self.found.order]
        neighbours = schedule in MULTI
        return not len(self.found.unsendable(of_place, train=self.trains, neighbours=neighbours))

    def _with_modules(self, line: Line) -> NDArray[np.int64]:
        """The places, with ops of the backward pass among those of their module's forward pass, and
        none after what it reads of the backward pass.
        """
        problem, found = self.problem, self.found
        place = line.place[problem.reduced.op_of].copy()
        ends: dict[str, list[int]] = {}
        for at, path in enumerate(found.module_of):
            if path:
                ends.setdefault(path, [at, at])[1] = at
        sets, phases = problem.graph.colocation, problem.model.phases
        phase = np.array([phases[op] for op in problem.reduced.op_of.tolist()])
        has_forward = np.isin(sets, np.unique(sets[np.isin(phase, ("", "f"))]))
        moves = (phase == "b") & ~has_forward
        for op in np.flatnonzero(moves).tolist():
            module = inside(problem.model.modules[problem.reduced.op_of[op]], found.root)
            if module in ends:
                place[op] = min(max(place[op], ends[module][0]), ends[module][1])
        src, dst, _, _, is_home = fast.edges(problem.graph)
        makers: dict[int, list[int]] = {}
        among = (phase[src] == "b") & moves[dst] & ~is_home
        for a, b in zip(src[among].tolist(), dst[among].tolist(), strict=True):
            makers.setdefault(b, []).append(a)
        of_set = np.full(int(sets.max()) + 1, len(place), dtype=np.int64)
        for op in fast.m_topo(problem.graph).tolist():
            if moves[op]:
                place[op] = min([place[op], *(place[a] for a in makers.get(op, ()))])
        np.minimum.at(of_set, sets[moves], place[moves])
        place[moves] = of_set[sets[moves]]
        return place[problem.reduced.map]


#: Schedules that PyTorch runs on lists of stages, which send to their neighbours only.
MULTI = ("interleaved-1f1b", "zero-bubble", "zb-v")
