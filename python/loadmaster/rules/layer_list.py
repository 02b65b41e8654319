"""The layers of a model, for systems that divide it by layers only: a list of modules, one after
another in the forward pass.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from loadmaster.base.errors import InputError
from loadmaster.model.graph import OpGraph
from loadmaster.model.module_paths import module_path
from loadmaster.rules.module_cuts import ModuleCuts, inside


@dataclass(frozen=True, eq=False)
class LayerList:
    """The layers of a graph.

    Attributes
    ----------
    cuts : ModuleCuts
        The forward pass, and the modules in it.
    name : str
        The list, such as ``model.layers``, relative to the root.
    numbers : tuple of int
        Of its members that run, ascending.
    """

    cuts: ModuleCuts
    name: str
    numbers: tuple[int, ...]

    @classmethod
    def of(cls, graph: OpGraph, root: str = "", layers: str | None = None) -> LayerList:
        """The longest list of modules that run, or the one of a name.

        Of lists of one length those are left out that several members of another list have each,
        as blocks have their experts.

        Raises
        ------
        InputError
            There is no such list, or there are several of the same length.

        Examples
        --------
        >>> import loadmaster as lm
        >>> found = LayerList.of(lm.read("example:gpt3-330m"))
        >>> found.name, len(found)
        ('h', 24)
        """
        cuts = ModuleCuts(graph, root)
        lists = lists_of(cuts)
        if layers is not None and layers not in lists:
            raise InputError(
                f"{layers!r} is no list of layers; there are {', '.join(map(repr, lists))}"
            )
        if layers is None:
            best = longest(lists)
            if not best:
                raise InputError(
                    "the model has no list of layers, which are modules with numbers in their "
                    "paths, such as layers.0 and layers.1"
                )
            if len(best) > 1:
                raise InputError(
                    f"the layers of the model could be {', '.join(map(repr, best))}: say which "
                    "with the option layers"
                )
            layers = best[0]
        return cls(cuts, layers, lists[layers])

    def __len__(self) -> int:
        return len(self.numbers)

    @cached_property
    def begins(self) -> NDArray[np.int64]:
        """The place in the forward pass at which each layer begins.

        Raises
        ------
        InputError
            A layer runs in several parts, or before the one that it follows.
        """
        prefix = f"{self.name}." if self.name else ""
        begins: list[int] = []
        for number in self.numbers:
            span = self.cuts.spans.get(f"{prefix}{number}")
            if span is None or (begins and span[0] <= begins[-1]):
                raise InputError(
                    f"the layers {self.name!r} do not run one after another: {number} is apart"
                )
            begins.append(span[0])
        return np.array(begins, dtype=np.int64)

    @cached_property
    def layer(self) -> NDArray[np.int64]:
        """The layer that each place of the forward pass is in, from 0: what comes before the first
        is in it, and what follows one, before the next, too.
        """
        places = np.arange(len(self.cuts.order))
        return np.maximum(np.searchsorted(self.begins, places, "right") - 1, 0)

    @cached_property
    def first(self) -> int:
        """Places before the first layer: the embedding."""
        return int(self.begins[0])


def lists_of(cuts: ModuleCuts) -> dict[str, tuple[int, ...]]:
    """The numbers of the members that run of every list of modules, by its path."""
    lists: dict[str, set[int]] = {}
    for path in dict.fromkeys(cuts.module_of):
        words = path.split(".")
        for at, word in enumerate(words):
            if word.isdecimal():
                lists.setdefault(".".join(words[:at]), set()).add(int(word))
    return {name: tuple(sorted(numbers)) for name, numbers in lists.items()}


def longest(lists: Mapping[str, Sequence[int]]) -> list[str]:
    """The longest of some lists; of several, those that are in no member of another, if any.

    >>> longest({"block": (0, 1), "block.0.parts": (0, 1), "block.1.parts": (0, 1)})
    ['block']
    """
    shared = {pattern for pattern, n in Counter(chain(*map(patterns, lists))).items() if n > 1}
    single = {name: n for name, n in lists.items() if not shared & set(patterns(name))}
    most = max(map(len, lists.values()), default=0)
    best = [name for name, numbers in lists.items() if len(numbers) == most]
    return longest(single) if len(best) > 1 and 0 < len(single) < len(lists) else best


def patterns(name: str) -> list[str]:
    """The path of a list with each of its numbers left out in turn.

    >>> patterns("stages.2.blocks")
    ['stages.*.blocks']
    """
    words = name.split(".")
    return [
        ".".join([*words[:at], "*", *words[at + 1 :]])
        for at, word in enumerate(words)
        if word.isdecimal()
    ]


def layer_number(module: str, layer_list: LayerList) -> int:
    """The number of the layer that a module path is in; -1: none."""
    path = inside(".".join(module_path(module)), layer_list.cuts.root) or ""
    prefix = f"{layer_list.name}." if layer_list.name else ""
    word = path[len(prefix) :].partition(".")[0] if path.startswith(prefix) else ""
    return int(word) if word.isdecimal() else -1
