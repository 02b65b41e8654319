"""FSDP2 whose units are the modules of some classes: what wraps by names of classes can say."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from loadmaster.base.errors import InputError
from loadmaster.base.progress import Progress
from loadmaster.judge.problem import Problem
from loadmaster.model.graph import PARAMETER, OpGraph
from loadmaster.model.module_classes import CLASSES, units_of_classes
from loadmaster.model.patterns import innermost
from loadmaster.plans.plan import Plan
from loadmaster.strategies.candidate import Candidate
from loadmaster.strategies.sharding.units import ShardSizes, unit_patterns
from loadmaster.systems.shared.fully_sharded import planned
from loadmaster.systems.shared.refusal import Reason
from loadmaster.systems.shared.sharded_plans import modules_in, words_of_units


def planned_by_classes(
    problem: Problem,
    name: str,
    replicas: int | None,
    sizes: ShardSizes,
    recompute: bool | None,
    progress: Progress | None,
) -> Candidate:
    """Fully sharded data parallelism by units that names of classes say, for the system of a name:
    all are recomputed or none. What they do not say is gathered with the model.
    """
    graph = problem.model
    patterns = unit_patterns(graph)
    units = tuple(units_of_classes(graph, patterns))
    if reasons := list(_tied_apart(graph, units)):
        raise InputError(f"target {name!r}: {'; '.join(reasons)}: untie it, or plan by engine ddp")
    if recompute and not units:
        raise InputError(f"target {name!r}: no class of modules names layers to recompute")
    levels = {True: (units,), False: ((),), None: ((), units) if units else ((),)}[recompute]
    best = planned(problem, name, levels, replicas, replace(sizes, units=units), progress)
    return best.noted(*_gathered_with_the_model(patterns, units, CLASSES in graph.meta))


def _tied_apart(graph: OpGraph, units: Sequence[str]) -> Iterator[str]:
    """Parameters that FSDP2 would get in several groups, which it refuses.

    accelerate has the embedding and the head of a model of transformers in groups of their own,
    tied or not, and then a third module has their parameter in the model's group.
    """
    readers = defaultdict[int, set[str]](set)
    is_read = (graph.stands_for[graph.src] == PARAMETER) & (np.array(graph.phases) == "f")[
        graph.dst
    ]
    for a, b in zip(graph.src[is_read].tolist(), graph.dst[is_read].tolist(), strict=True):
        readers[a].add(graph.modules[b])
    paths = list(dict.fromkeys(graph.modules))
    group = dict(zip(paths, innermost(paths, list(units), "units"), strict=True))
    for op, modules in readers.items():
        if len({group[module] for module in modules}) > 1 or len(modules) > 2:
            several = ", ".join(map(repr, sorted(modules)))
            yield f"FSDP2 as accelerate has it takes no {graph.names[op]!r}, which {several} read"


def _gathered_with_the_model(
    patterns: tuple[str, ...], units: tuple[str, ...], is_known: bool
) -> Iterator[str]:
    """The modules that are no units, and why."""
    if others := [repr(pattern) for pattern in patterns if pattern not in units]:
        why = (
            "modules of their classes are elsewhere too"
            if is_known
            else "the graph does not say the classes of its modules: capture it again"
        )
        yield f"{', '.join(others)} are gathered with the model, since {why}"


@dataclass(frozen=True)
class ClassUnits:
    """The wrapping of a plan by names of classes.

    Attributes
    ----------
    classes : tuple of str
        Of the units. Empty: the model is the only one.
    again : bool
        True if units are gathered again in the backward pass.
    recomputed : bool
        True if all of them are recomputed.
    """

    classes: tuple[str, ...]
    again: bool
    recomputed: bool


def class_units(plan: Plan) -> tuple[ClassUnits, list[Reason]]:
    """The wrapping of a plan, and everything of it that names of classes cannot say."""
    assert plan.recipe is not None
    words = words_of_units(plan)
    units = {pattern: word for pattern, word in words.items() if pattern != "."}
    said = units_of_classes(plan.graph, list(units))
    reasons: list[Reason] = []
    if silent := [repr(pattern) for pattern in units if pattern not in said]:
        reasons.append(("no class of modules says the units", silent))
    if len(set(units.values())) > 1:
        reasons.append("some units are gathered again in the backward pass, and others kept")
    if words.get(".") == "again":
        reasons.append("what the model itself has is gathered again in the backward pass")
    recompute = list(plan.recipe.recompute)
    if recompute and set(modules_in(plan, recompute)) != set(modules_in(plan, list(units))):
        reasons.append(("modules are recomputed that are not the units", recompute))
    classes = dict.fromkeys(name for names in said.values() for name in names)
    return ClassUnits(tuple(classes), "again" in units.values(), bool(recompute)), reasons
