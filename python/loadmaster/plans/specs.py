"""What a recipe makes of a plan's modules: labels, specs of parameters, how updates are sharded.

Modules that differ in numbers alone, as layers do, are one row. Numbers of their paths become
``*``, as in recipes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loadmaster.base.units import counted
from loadmaster.model.module_paths import module_path
from loadmaster.model.patterns import layerless
from loadmaster.model.recipe import Mesh
from loadmaster.plans.plan import Plan

#: A share of less than this is not told.
_LITTLE = 0.005


@dataclass(frozen=True)
class ModuleSpec:
    """How a module, or those that are like it, lies on a mesh.

    Attributes
    ----------
    module : str
        Its path, with ``*`` for numbers; ``"."``: the model itself.
    ops : int
        Of the user's graph, those that run.
    share : float
        Of the time of all ops, each as a whole.
    labels : mapping of axis to mapping of label to share
        Share of the module's time by label, the largest first. Of the number of ops, if none of
        them takes time.
    parameters : mapping of axis to mapping of name to specs
        Of its parameters, buffers and inputs, by the last word of the name.
    updates : mapping of axis to labels
        Of what updates its parameters.
    """

    module: str
    ops: int
    share: float
    labels: Mapping[str, Mapping[str, float]]
    parameters: Mapping[str, Mapping[str, tuple[str, ...]]]
    updates: Mapping[str, tuple[str, ...]]

    def parts_on(self, axis: str) -> dict[str, str]:
        """How its ops, each of its parameters, and their updates lie on an axis, in words."""
        said = {"ops": shares_in_words(self.labels.get(axis, {}))}
        tensors = self.parameters.get(axis, {})
        said |= {name: " or ".join(of) for name, of in tensors.items()}
        said["update"] = " or ".join(self.updates.get(axis, ()))
        return {what: words for what, words in said.items() if words}

    def on(self, axis: str) -> str:
        """How it lies on an axis, in words.

        >>> spec = ModuleSpec("fc", 3, 0.5, {"tp": {"column": 0.75, "whole": 0.25}},
        ...                   {"tp": {"weight": ("Shard(0)",)}}, {"tp": ("flat",)})
        >>> spec.on("tp"), spec.on("dp")
        ('column 75%, whole 25%; weight Shard(0); update flat', '-')
        """
        said = self.parts_on(axis)
        first = [said.pop("ops")] if "ops" in said else []
        last = [f"update {said.pop('update')}"] if "update" in said else []
        tensors = ", ".join(f"{name} {of}" for name, of in said.items())
        return "; ".join([*first, *filter(None, [tensors]), *last]) or "-"


def shares_in_words(shares: Mapping[str, float]) -> str:
    """Words and their shares; a word alone, if it has all, and none that has next to nothing.

    >>> shares_in_words({"row": 0.999, "whole": 0.001}), shares_in_words({"row": 0.5, "flat": 0.5})
    ('row', 'row 50%, flat 50%')
    """
    told = {word: share for word, share in shares.items() if share >= _LITTLE}
    if len(told) == 1:
        return next(iter(told))
    return ", ".join(f"{word} {share:.0%}" for word, share in told.items())


def mesh_in_words(mesh: Mesh) -> str:
    """The axes of a mesh.

    >>> mesh_in_words(Mesh.of({"dp": 2, "tp": 4}))
    'dp 2 x tp 4'
    """
    return " x ".join(f"{axis.name} {axis.size}" for axis in mesh.axes)


def specs(plan: Plan) -> tuple[ModuleSpec, ...]:
    """A row per module of a plan with a recipe, in the order of the graph; none without one.

    What runs under ``optim`` counts as an update of the module of its parameter.
    """
    if plan.recipe is None:
        return ()
    words, graph, found = plan.recipe.words(plan.graph), plan.graph, _Rows()
    seconds = _seconds(plan)
    runs = graph.reduced.runs & ~graph.is_member
    for op in np.flatnonzero(runs | graph.placeholder).tolist():
        path, updates = module_path(graph.modules[op]), bool(graph.updates[op])
        is_slot = graph.placeholder[op] and graph.modules[op].startswith("optim.")
        if (updates or is_slot) and graph.modules[op].startswith("optim."):
            path = path[:-1]
        row = found.row(layerless(".".join(path)))
        if graph.placeholder[op]:
            if not is_slot:
                row.tensor(graph.names[op], words, op)
        else:
            row.op(seconds[op], words, op, updates=updates)
    total = float(seconds[runs].sum())
    return tuple(found.specs(total))


def _seconds(plan: Plan) -> NDArray[np.float64]:
    """Seconds of each of the user's ops, as a whole, on the fastest device that may run it."""
    fastest = plan.costs.time.min(axis=1)
    return np.where(np.isfinite(fastest), fastest, 0.0)


class _Row:
    """What is counted of one row."""

    def __init__(self) -> None:
        self.ops, self.seconds = 0, 0.0
        self.labels: dict[str, dict[str, list[float]]] = defaultdict(dict)
        self.parameters: dict[str, dict[str, dict[str, None]]] = defaultdict(dict)
        self.updates: dict[str, dict[str, None]] = defaultdict(dict)

    def op(self, seconds: float, words: Mapping[str, list[str]], op: int, *, updates: bool) -> None:
        """Counts an op that runs."""
        self.ops += 1
        self.seconds += seconds
        for axis, column in words.items():
            if updates:
                self.updates[axis][column[op]] = None
            else:
                counts = self.labels[axis].setdefault(column[op], [0.0, 0.0])
                counts[0] += seconds
                counts[1] += 1

    def tensor(self, name: str, words: Mapping[str, list[str]], op: int) -> None:
        """Notes how a parameter, buffer or input lies."""
        last = name.rpartition(".")[2]
        for axis, column in words.items():
            self.parameters[axis].setdefault(last, {})[column[op]] = None

    def spec(self, module: str, total: float) -> ModuleSpec:
        """The row, out of so many seconds of all ops."""
        labels: dict[str, dict[str, float]] = {}
        for axis, counts in self.labels.items():
            by = 0 if any(seconds for seconds, _ in counts.values()) else 1
            all_of_it = sum(of[by] for of in counts.values())
            ranked = sorted(counts.items(), key=lambda row: -row[1][by])
            labels[axis] = {word: of[by] / all_of_it for word, of in ranked}
        return ModuleSpec(
            module,
            self.ops,
            self.seconds / total if total else 0.0,
            labels,
            {a: {name: tuple(of) for name, of in t.items()} for a, t in self.parameters.items()},
            {axis: tuple(of) for axis, of in self.updates.items()},
        )


class _Rows:
    """Rows by module."""

    def __init__(self) -> None:
        self._rows: dict[str, _Row] = {}

    def row(self, module: str) -> _Row:
        """The row of a module."""
        return self._rows.setdefault(module, _Row())

    def specs(self, total: float) -> Iterator[ModuleSpec]:
        """Every row."""
        for module, row in self._rows.items():
            yield row.spec(module, total)


def recipe_in_words(plan: Plan) -> str:
    """The mesh of a plan with a recipe, and how the work is shared on each axis, in a line.

    Shares are of the time of all ops, each as a whole.
    """
    assert plan.recipe is not None
    seconds, runs = _seconds(plan), np.flatnonzero(plan.graph.reduced.runs)
    said = []
    for axis, column in plan.recipe.words(plan.graph).items():
        by_word: dict[str, float] = defaultdict(float)
        for op in runs.tolist():
            by_word[column[op]] += float(seconds[op])
        total = sum(by_word.values())
        ranked = sorted(by_word.items(), key=lambda row: -row[1])
        shares = {word: of / total for word, of in ranked} if total else {}
        said.append(f"{axis}: {shares_in_words(shares) or counted(len(runs), 'op')}")
    return f"{mesh_in_words(plan.recipe.mesh)}; {'; '.join(said)}"


@dataclass(frozen=True)
class SpecChange:
    """What lies otherwise in another plan.

    Attributes
    ----------
    module : str
        As that of a :class:`ModuleSpec`.
    axis : str
    what : str
        "ops", the last word of a parameter's name, or "update".
    before, after : str
        How it lies, in words; "-": the mesh has no such axis.
    """

    module: str
    axis: str
    what: str
    before: str
    after: str


def spec_changes(before: Plan, after: Plan) -> tuple[SpecChange, ...]:
    """What lies otherwise in the second of two plans with recipes, most time first."""
    if before.recipe is None or after.recipe is None:
        return ()
    axes = dict.fromkeys((*before.recipe.mesh.names, *after.recipe.mesh.names))
    was = {spec.module: spec for spec in specs(before)}
    changes = []
    for spec in sorted(specs(after), key=lambda spec: -spec.share):
        for axis in axes:
            old, new = was[spec.module].parts_on(axis), spec.parts_on(axis)
            for what in dict.fromkeys((*old, *new)):
                row = old.get(what, "-"), new.get(what, "-")
                if row[0] != row[1]:
                    changes.append(SpecChange(spec.module, axis, what, *row))
    return tuple(changes)
