"""The modules of a plan with a recipe: labels, specs of parameters, how updates are sharded.

Modules whose paths differ in numbers alone, as those of layers do, and that lie alike are one row.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loadmaster.base.units import counted
from loadmaster.model.module_paths import module_path
from loadmaster.model.patterns import layerless
from loadmaster.model.recipe import REPLICATE, WHOLE, DeviceMesh
from loadmaster.plans.plan import Plan
from loadmaster.plans.told import stage_of, told_words

#: Beginning of the module paths of an optimizer's ops.
_OPTIM = "optim."

#: A share of less than this is not told.
_LITTLE = 0.005


@dataclass(frozen=True)
class ModuleSpec:
    """The specs of a module, or of those that are like it, on a mesh.

    Attributes
    ----------
    module : str
        Its path; ``"."``: the model itself. With ``*`` for numbers, where all modules of such paths
        lie alike; else the first that lies so, and how many are like it.
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
        """The specs of its ops, its parameters and their updates on an axis, in words."""
        said = {"ops": shares_in_words(self.labels.get(axis, {}))}
        tensors = self.parameters.get(axis, {})
        said |= {name: " or ".join(of) for name, of in tensors.items()}
        said["update"] = " or ".join(self.updates.get(axis, ()))
        return {part: words for part, words in said.items() if words}

    def on(self, axis: str) -> str:
        """Its specs on an axis, in words.

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
    shown = {word: share for word, share in shares.items() if share >= _LITTLE}
    if len(shown) == 1:
        return next(iter(shown))
    return ", ".join(f"{word} {share:.0%}" for word, share in shown.items())


def mesh_in_words(mesh: DeviceMesh) -> str:
    """The axes of a mesh.

    >>> mesh_in_words(DeviceMesh.of({"dp": 2, "tp": 4}))
    'dp 2 x tp 4'
    """
    return " x ".join(f"{axis.name} {axis.size}" for axis in mesh.axes)


def specs(plan: Plan) -> tuple[ModuleSpec, ...]:
    """A row per module of a plan with a recipe, or for several that lie alike, in the order of the
    graph; none without a recipe.

    What runs under ``optim`` counts as an update of the module of its parameter.
    """
    rows = _rows(plan)
    total = sum(row.seconds for row in rows.values())
    alike: dict[str, dict[str, list[str]]] = defaultdict(dict)
    for path, row in rows.items():
        alike[layerless(path)].setdefault(row.look, []).append(path)
    return tuple(
        _SpecRow.joined(rows[path] for path in paths).spec(_named(family, paths, len(looks)), total)
        for family, looks in alike.items()
        for paths in looks.values()
    )


def _named(family: str, paths: Sequence[str], n_looks: int) -> str:
    """A family of modules that all lie alike, or the first of some and how many are like it."""
    if n_looks == 1:
        return family if len(paths) > 1 else paths[0] or family
    return paths[0] + (f" and {len(paths) - 1} like it" if len(paths) > 1 else "")


def _rows(plan: Plan) -> dict[str, _SpecRow]:
    """Figures of each module, by path."""
    if plan.recipe is None:
        return {}
    words, graph = told_words(plan), plan.graph
    rows: dict[str, _SpecRow] = defaultdict(_SpecRow)
    seconds = _seconds(plan)
    runs = graph.reduced.runs
    for op in np.flatnonzero(runs | graph.placeholder).tolist():
        path, is_optimizer = module_path(graph.modules[op]), graph.modules[op].startswith(_OPTIM)
        row = rows[".".join(path[:-1] if is_optimizer else path)]
        if runs[op]:
            row.op(float(seconds[op]), words, op, updates=bool(graph.updates[op]))
        elif not is_optimizer:
            row.tensor(graph.names[op], words, op)
    return rows


def _seconds(plan: Plan) -> NDArray[np.float64]:
    """Seconds of each of the user's ops, as a whole, on the fastest device that may run it."""
    fastest = plan.costs.time.min(axis=1)
    return np.where(np.isfinite(fastest), fastest, 0.0)


class _SpecRow:
    """Figures of a module."""

    def __init__(self) -> None:
        self.ops, self.seconds = 0, 0.0
        #: Per axis and label, seconds and number of ops.
        self.labels: dict[str, dict[str, list[float]]] = defaultdict(dict)
        self.parameters: dict[str, dict[str, dict[str, None]]] = defaultdict(dict)
        self.updates: dict[str, dict[str, None]] = defaultdict(dict)

    @classmethod
    def joined(cls, rows: Iterable[_SpecRow]) -> _SpecRow:
        """Several as one; they lie alike."""
        joint = cls()
        for row in rows:
            joint.ops += row.ops
            joint.seconds += row.seconds
            for axis, counts in row.labels.items():
                for word, of in counts.items():
                    sums = joint.labels[axis].setdefault(word, [0.0, 0.0])
                    sums[:] = [sums[0] + of[0], sums[1] + of[1]]
            joint.parameters, joint.updates = row.parameters, row.updates
        return joint

    def op(self, seconds: float, words: Mapping[str, list[str]], op: int, *, updates: bool) -> None:
        """Counts an op that runs."""
        self.ops += 1
        self.seconds += seconds
        for axis, column in words.items():
            if updates:
                self.updates[axis][column[op]] = None
            else:
                counts = self.labels[axis].setdefault(column[op], [0.0, 0.0])
                counts[:] = [counts[0] + seconds, counts[1] + 1]

    def tensor(self, name: str, words: Mapping[str, list[str]], op: int) -> None:
        """Notes how a parameter, buffer or input lies."""
        last = name.rpartition(".")[2]
        for axis, column in words.items():
            self.parameters[axis].setdefault(last, {})[column[op]] = None

    @property
    def look(self) -> str:
        """Equal where two rows have the same words for the same things."""
        labels = {axis: frozenset(counts) for axis, counts in self.labels.items()}
        return repr(
            [
                sorted((axis, sorted(of)) for axis, of in labels.items()),
                sorted((axis, sorted(of.items(), key=str)) for axis, of in self.parameters.items()),
                sorted((axis, sorted(of)) for axis, of in self.updates.items()),
            ]
        )

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


def recipe_in_words(plan: Plan) -> str:
    """The mesh of a plan with a recipe, and how the work is shared on each axis, in a line.

    Shares are of the time of all ops, each as a whole.
    """
    assert plan.recipe is not None
    seconds, runs = _seconds(plan), np.flatnonzero(plan.graph.reduced.runs)
    said, stages = [], stage_of(plan)
    for axis, column in told_words(plan).items():
        by_word: dict[str, float] = defaultdict(float)
        for op in runs.tolist():
            by_word[column[op]] += float(seconds[op])
        total = sum(by_word.values())
        if stages is not None and axis == plan.recipe.mesh.names[0]:
            # Stages in their order, all else by its share.
            ranked = list(dict.fromkeys(column[op] for op in runs[np.argsort(stages[runs])]))
        else:
            ranked = sorted(by_word, key=lambda word: -by_word[word])
        shares = {word: by_word[word] / total for word in ranked} if total else {}
        said.append(f"{axis}: {shares_in_words(shares) or counted(len(runs), 'op')}")
    if (micro := plan.recipe.micro) is not None:
        said.append(f"{counted(micro.n, 'micro-batch', 'micro-batches')}, {micro.schedule}")
        turns = "-".join(map(str, micro.in_turn))
        said += [f"stages of {turns} devices, which take them in turn"] if turns else []
    again = plan.recipe.recompute
    said += [f"recomputed in the backward pass: {', '.join(again)}"] if again else []
    return f"{mesh_in_words(plan.recipe.mesh)}; {'; '.join(said)}"


@dataclass(frozen=True)
class SpecChange:
    """A module whose specs another plan has otherwise.

    Attributes
    ----------
    module : str
        As that of a :class:`ModuleSpec`.
    what : str
        What of it: "ops", the last word of a parameter's name, or "update".
    before, after : str
        How it lies, in words, on each axis where it is not whole.
    """

    module: str
    what: str
    before: str
    after: str


def spec_changes(before: Plan, after: Plan) -> tuple[SpecChange, ...]:
    """Modules whose specs differ between two plans with recipes, most time first."""
    if before.recipe is None or after.recipe is None:
        return ()
    was, now = _rows(before), _rows(after)
    size = Counter(map(layerless, now))
    alike: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for path, row in now.items():
        one, other = _on_axes(before, was[path]), _on_axes(after, row)
        for aspect in one:
            if one[aspect] != other[aspect]:
                alike[layerless(path), aspect, one[aspect], other[aspect]].append(path)
    seconds = {key: sum(now[path].seconds for path in paths) for key, paths in alike.items()}
    return tuple(
        SpecChange(
            _named(key[0], alike[key], 1 if size[key[0]] == len(alike[key]) else 2), *key[1:]
        )
        for key in sorted(alike, key=lambda key: -seconds[key])
    )


def _on_axes(plan: Plan, row: _SpecRow) -> dict[str, str]:
    """By part of a module, how it lies on all axes."""
    assert plan.recipe is not None
    spec = row.spec("", 0.0)
    said: dict[str, list[str]] = defaultdict(list)
    for axis in plan.recipe.mesh.names:
        for part, words in spec.parts_on(axis).items():
            said[part] += [] if words in (WHOLE, REPLICATE) else [f"{axis} {words}"]
    return {part: "; ".join(words) or WHOLE for part, words in said.items()}
