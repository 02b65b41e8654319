"""A step simulated with another label for an op and for those that play its part."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from loadmaster.base.errors import InfeasibleError, InputError
from loadmaster.base.units import changed, counted, format_bytes
from loadmaster.dimensions.form import FLAT, OWNER
from loadmaster.dimensions.words import word_of
from loadmaster.judge.simulation import bytes_moved
from loadmaster.judge.verdict import Verdict
from loadmaster.model.patterns import Places, layerless
from loadmaster.plans.plan import Plan
from loadmaster.plans.rejudged import whole_problem
from loadmaster.strategies.candidate import Candidate
from loadmaster.strategies.pipelines.piped import in_stages_of
from loadmaster.strategies.simple.recipe import on_mesh
from loadmaster.transforms.layout import Layout
from loadmaster.transforms.shards import shard


@dataclass(frozen=True)
class Relabelled:
    """A step with another label for an op, on one axis.

    The layout is expanded anew and judged in the better of two orders, or in a pipeline by its
    schedule, with the label as it is and with the other one.

    Attributes
    ----------
    axis, word : str
        The other label, as recipes have it.
    ops : int
        How many ops have it then: the op, and those that play its part in other layers.
    seconds : float
        By which the step gets longer; negative: it gets shorter.
    bytes_moved : int
        Between devices in the whole step, more than before.
    over : dict of device name to bytes
        Memory short, where the step would not fit.
    """

    axis: str
    word: str
    ops: int
    seconds: float
    bytes_moved: int
    over: dict[str, int]

    def __str__(self) -> str:
        like = f", with {counted(self.ops - 1, 'op')} like it" if self.ops > 1 else ""
        change = changed(self.seconds, "slower per step", "faster per step", "a step as long")
        text = (
            f"{self.word} on {self.axis} instead{like}: "
            f"{change}, "
            f"{format_bytes(abs(self.bytes_moved))} "
            f"{'more' if self.bytes_moved >= 0 else 'less'} to move"
        )
        short = ", ".join(f"{d} {format_bytes(b)}" for d, b in self.over.items())
        return text + (f"; would not fit (short: {short})" if short else "")


def relabelled(plan: Plan, op: int) -> tuple[Relabelled, ...]:
    """Every other label of an op of the user's graph, the best first: those that fit, then others.

    An expansion and two simulations for each. A label is left out whose specs no collective turns
    into what is wanted.
    """
    layout = plan.layout
    if layout is None or layout.form_of[op] == len(layout.dimensions.forms):
        return ()
    now = _judged(plan, layout)
    rows: list[tuple[tuple[int, float], Relabelled]] = []
    for axis, label, ops in _others(layout, op):
        labels = layout.labels.copy()
        labels[axis, ops] = label
        with suppress(InputError, InfeasibleError):
            candidate = _judged(plan, replace(layout, labels=labels))
            form = layout.dimensions.forms[layout.form_of[op]]
            other = Relabelled(
                layout.mesh.names[axis],
                word_of(form, label, is_placeholder=bool(plan.graph.placeholder[op])),
                len(ops),
                candidate.verdict.step_time - now.verdict.step_time,
                _moved(candidate) - _moved(now),
                plan.cluster.shortfall(candidate.verdict.peak, plan.cluster.memory),
            )
            rows.append(
                (
                    plan.problem.objective.rank(
                        Verdict.of(candidate.schedule, plan.cluster.memory)
                    ),
                    other,
                )
            )
    return tuple(other for _, other in sorted(rows, key=lambda row: row[0]))


def _judged(plan: Plan, layout: Layout) -> Candidate:
    problem = replace(whole_problem(plan), best_effort=True)
    recipe = plan.recipe
    if recipe is not None and recipe.micro is not None:
        return in_stages_of(problem, recipe, layout)
    modules = recipe.recompute if recipe else ()
    program = shard(layout.graph, layout, modules)
    return on_mesh(problem, program, layout.mesh.on(plan.cluster))


def _moved(candidate: Candidate) -> int:
    return bytes_moved(candidate.problem, candidate.schedule, candidate.assignment.devices)


def _others(layout: Layout, op: int) -> Iterator[tuple[int, int, NDArray[np.int64]]]:
    """Other labels for an op per axis, and the ops that get them: those that play its part in other
    layers, and have its form and its label.
    """
    graph, form_of = layout.graph, layout.form_of
    form = layout.dimensions.forms[form_of[op]]
    places = Places(graph.names if graph.placeholder[op] else graph.modules, graph.kinds)
    names = graph.names if graph.placeholder[op] else graph.modules
    family = layerless(names[op])
    alike = np.array([layerless(name) == family for name in names], dtype=bool)
    alike &= (form_of == form_of[op]) & (places.ordinal == places.ordinal[op])
    state = [FLAT, OWNER] if layout.set_of[op] >= 0 else []
    state = [OWNER] if not state and layout.expert[0][op] >= 0 else state
    for axis, size in enumerate(layout.mesh.shape):
        here = int(layout.labels[axis, op])
        tied = np.flatnonzero(alike & (layout.labels[axis] == here))
        cuts = [i for i, cut in enumerate(form.cuts, start=1) if not 0 < cut.size < size]
        for label in [0, *cuts, *state]:
            if label != here:
                yield axis, label, tied
