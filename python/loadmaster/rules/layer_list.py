"""The layers of a model, for systems that divide it by layers only: a list of modules, one after
another in the forward pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

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
        lists: dict[str, set[int]] = {}
        for path in dict.fromkeys(cuts.module_of):
            words = path.split(".")
            for at, word in enumerate(words):
                if word.isdecimal():
                    lists.setdefault(".".join(words[:at]), set()).add(int(word))
        if layers is not None and layers not in lists:
            raise InputError(
                f"{layers!r} is no list of layers; there are {', '.join(map(repr, lists))}"
            )
        if layers is None:
            longest = max(map(len, lists.values()), default=0)
            best = [name for name, members in lists.items() if len(members) == longest]
            if not best:
                raise InputError("the model has no list of layers: no module path has a number")
            if len(best) > 1:
                raise InputError(
                    f"the layers of the model could be {', '.join(map(repr, best))}: say which "
                    "with the option layers"
                )
            layers = best[0]
        return cls(cuts, layers, tuple(sorted(lists[layers])))

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


def layer_number(module: str, layer_list: LayerList) -> int:
    """The number of the layer that a module path is in; -1: none."""
    path = inside(".".join(module_path(module)), layer_list.cuts.root) or ""
    prefix = f"{layer_list.name}." if layer_list.name else ""
    word = path[len(prefix) :].partition(".")[0] if path.startswith(prefix) else ""
    return int(word) if word.isdecimal() else -1
