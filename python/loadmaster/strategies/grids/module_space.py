"""Pipelines that are cut between modules, as PyTorch runs them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

import loadmaster.fast as fast
from loadmaster.model.families import families
from loadmaster.rules.module_cuts import ModuleCuts, inside
from loadmaster.strategies.pipelines.chains import Pool
from loadmaster.strategies.pipelines.cuts import cuts
from loadmaster.strategies.pipelines.lines import Line, line_of
from loadmaster.strategies.pipelines.space import PipelineSpace

#: Schedules that part the gradients of weights from those of inputs.
ZERO_BUBBLE = ("zero-bubble", "zb-v")


@dataclass(frozen=True, eq=False)
class ModuleSpace(PipelineSpace):
    """Pipelines that are cut between modules, in the order in which the model runs them."""

    module_cuts: ModuleCuts = field(default_factory=lambda: ModuleCuts(None))  # type: ignore[arg-type]

    @cached_property
    def pools(self) -> list[Pool]:
        """Devices of one family by type and memory: PyTorch sends nothing between families. It is
        that of the fastest device that has another beside it; of none: no pools.
        """
        family = [kind for kind, _ in families(self.problem.cluster)]
        several = [d for d in self.problem.fastest_first.tolist() if family.count(family[d]) > 1]
        of = [
            replace(pool, devices=tuple(d for d in pool.devices if family[d] == family[several[0]]))
            for pool in (super().pools if several else ())
        ]
        return [pool for pool in of if pool.devices]

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
        line = line_of(self.problem, reduced_of[self.module_cuts.order])
        return Line(self._with_modules(line), line.is_open)

    @cached_property
    def lines(self) -> list[tuple[Line, NDArray[np.int64]]]:
        """The one order, with the places between modules."""
        is_open = np.zeros_like(self.line.is_open)
        is_open[[0, *self.module_cuts.open, -1]] = True
        line = Line(self.line.place, is_open & self.line.is_open)
        return [(line, cuts(self.problem, line))]

    @cached_property
    def layers(self) -> tuple[str, ...]:
        """Stages keep all activations."""
        return ()

    def allows(self, schedule: str, m: int, p: int, stage: NDArray[np.int32]) -> bool:
        """True if PyTorch takes the numbers, and can part the gradients of weights from those of
        inputs: nothing is recomputed, which it would do for each, and from all weights of a stage
        but the first a way leads to what it is sent.
        """
        if schedule == "1f1b" and m < p:
            return False
        cuts = self.module_cuts
        is_late = stage[cuts.order[cuts.roots]].any()
        if schedule in ZERO_BUBBLE and (cuts.recomputed or is_late):
            return False
        in_rounds = schedule in ("interleaved-1f1b", "zero-bubble")
        return not (in_rounds and m % max(1, m // p))

    def _with_modules(self, line: Line) -> NDArray[np.int64]:
        """The places, with ops of the backward pass among those of their module's forward pass, and
        none after what it reads of the backward pass.
        """
        problem, cuts = self.problem, self.module_cuts
        place = line.place[problem.reduced.op_of].copy()
        places: dict[str, list[int]] = {}
        for at, path in enumerate(cuts.module_of):
            if path:
                places.setdefault(path, []).append(at)
        module_of = [
            inside(problem.model.modules[op], cuts.root) or ""
            for op in problem.reduced.op_of.tolist()
        ]
        sets, phases = problem.graph.colocation, problem.model.phases
        phase = np.array([phases[op] for op in problem.reduced.op_of.tolist()])
        has_forward = np.isin(sets, np.unique(sets[np.isin(phase, ("", "f"))]))
        moves = (phase == "b") & ~has_forward
        for op in np.flatnonzero(moves).tolist():
            if own := places.get(module_of[op]):
                place[op] = min(max(place[op], own[0]), own[-1])
        src, dst, _, _, is_home = fast.edges(problem.graph)
        makers: dict[int, list[int]] = {}
        among = (phase[src] == "b") & moves[dst] & ~is_home
        for a, b in zip(src[among].tolist(), dst[among].tolist(), strict=True):
            makers.setdefault(b, []).append(a)
        order = fast.m_topo(problem.graph).tolist()
        # Gradients come from later modules: code around modules is no earlier than what reads it.
        is_run = {path: own[-1] - own[0] < len(own) for path, own in places.items()}
        for op in reversed(order):
            for a in makers.get(op, ()) if moves[op] else ():
                if moves[a] and not is_run.get(module_of[a], False):
                    place[a] = max(place[a], place[op])
        of_set = np.full(int(sets.max()) + 1, len(place), dtype=np.int64)
        for op in order:
            if moves[op]:
                place[op] = min([place[op], *(place[a] for a in makers.get(op, ()))])
        np.minimum.at(of_set, sets[moves], place[moves])
        place[moves] = of_set[sets[moves]]
        return place[problem.reduced.map]
