"""Levels of recomputation of the layers, from nothing to all of each layer.

A level is lines of a recipe (:mod:`loadmaster.model.recomputed`), with what it costs and spares.
What a system can recompute of a layer is its own: :mod:`.modules` has Megatron-LM's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from loadmaster.judge.problem import Problem
from loadmaster.model.parallelism import Recompute
from loadmaster.model.patterns import escaped_pattern
from loadmaster.model.recomputed import RecomputeLine
from loadmaster.rules.layer_list import LayerList
from loadmaster.transforms.recomputation import is_recomputed, storage_of


def whole_layers(layer_list: LayerList) -> str:
    """The pattern of the layers."""
    path = ".".join(word for word in (layer_list.cuts.root, layer_list.name) if word)
    return f"{escaped_pattern(path)}.*" if path else "*"


@dataclass(frozen=True)
class RecomputationLevel:
    """A level.

    Attributes
    ----------
    recompute : str
        "none", "selective" or "full", as :class:`~loadmaster.model.parallelism.Parallelism` has it.
    modules : tuple of str
        Modules of a layer that are recomputed, in the words of the system, where it names them.
    lines : tuple of str
        Of a recipe.
    seconds : float
        Of what runs a second time, of a step on one device.
    spared : float
        Bytes of activations of a step that are not kept for the backward pass.
    """

    recompute: Recompute = "none"
    modules: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    seconds: float = 0.0
    spared: float = 0.0

    @classmethod
    def of(
        cls, problem: Problem, lines: tuple[str, ...], kind: int, modules: tuple[str, ...] = ()
    ) -> RecomputationLevel:
        """The level of lines, at the times of a type of device. O(V + E)."""
        is_full = not any(RecomputeLine.parse(line).only for line in lines)
        graph = problem.model
        twice = is_recomputed(graph, lines)
        seconds = problem.time[twice[problem.reduced.op_of], kind].sum()
        storage, backward = storage_of(graph), np.array([p == "b" for p in graph.phases])
        tensor = graph.src if graph.tensor is None else graph.tensor
        kept = (tensor >= 0) & twice[graph.src] & backward[graph.dst]
        spared = graph.output_bytes[np.unique(storage[graph.src[kept]])].sum()
        recompute: Recompute = "full" if is_full else "selective"
        return cls(recompute, modules, lines, float(seconds), float(spared))

    def __add__(self, other: RecomputationLevel) -> RecomputationLevel:
        """Both, of levels that name their modules."""
        return RecomputationLevel(
            "selective",
            (*self.modules, *other.modules),
            (*self.lines, *other.lines),
            self.seconds + other.seconds,
            self.spared + other.spared,
        )


#: Nothing is recomputed.
NOTHING = RecomputationLevel()


def worthwhile(
    parts: Mapping[str, RecomputationLevel], apart: tuple[tuple[str, str], ...] = ()
) -> tuple[RecomputationLevel, ...]:
    """Sets of parts which no other beats, the shortest first: each spares more than any before.

    Parameters
    ----------
    parts : mapping of str to RecomputationLevel
        A few: all sets of them are looked at.
    apart : tuple of (str, str)
        Pairs that do not go together.

    Examples
    --------
    >>> parts = {
    ...     "a": RecomputationLevel("selective", ("a",), seconds=1, spared=9),
    ...     "b": RecomputationLevel("selective", ("b",), seconds=2, spared=5),
    ... }
    >>> [level.modules for level in worthwhile(parts)]
    [('a',), ('a', 'b')]
    """
    levels: list[RecomputationLevel] = []
    for n in range(1, len(parts) + 1):
        for names in combinations(parts, n):
            if not any(set(pair) <= set(names) for pair in apart):
                first, *rest = (parts[name] for name in names)
                levels.append(sum(rest, start=first))
    best: list[RecomputationLevel] = []
    for one in sorted(levels, key=lambda level: (level.seconds, -level.spared)):
        if one.spared > max((level.spared for level in best), default=0.0):
            best.append(one)
    return tuple(best)
