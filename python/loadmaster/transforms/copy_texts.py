"""Texts of the ops of graphs that stand on several devices, made when they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

import loadmaster.fast as fast
from loadmaster.model.graph import OpGraph, Texts
from loadmaster.model.shapes import parse_output


class CopyTexts:
    """Texts of copies, and of ops that are added.

    Known once the graph is made: per op, the op that it serves, its device, and what it was added
    for (-1: it is a copy).

    Parameters
    ----------
    graph : OpGraph
        What is copied.
    stems : sequence of str
        Of what is added: its kind, a slash and a name, which a collective's members share.
    mark : str
        An op's name ends in ``@``, this and the number of its device; that of an op on no device
        stays.
    """

    def __init__(self, graph: OpGraph, stems: Sequence[str], mark: str) -> None:
        self._graph, self._stems, self._mark = graph, list(stems), mark

    def fill(
        self, serves: NDArray[np.int32], device: NDArray[np.int32], added: NDArray[np.int64]
    ) -> None:
        """Takes what is known of the ops; ``added``: index into the stems."""
        self._serves, self._device, self._added = serves, device, added

    def columns(self) -> dict[str, Texts]:
        """Each column."""
        graph, none = self._graph, [""] * len(self._stems)
        kinds = [stem.partition("/")[0] for stem in self._stems]
        make: dict[str, Callable[[], list[str]]] = {
            "name": self._names,
            "kind": lambda: self._each(graph.kinds, kinds),
            "module": lambda: self._each(graph.modules, none),
            "phase": lambda: self._served(graph.phases),
            "colocation": self._sets,
            "output": lambda: self._served(dtypes(graph.outputs)),
            "device_types": lambda: self._each(graph.device_types, none),
            "collective": self._collectives,
        }
        return {column: Texts(texts) for column, texts in make.items()}

    def _names(self) -> list[str]:
        """A copy has the name of its op, what is added its stem, and both the device."""
        marks = [f"@{self._mark}{d}" for d in range(int(self._device.max(initial=0)) + 1)] + [""]
        stems = self._each(self._graph.names, self._stems)
        return [stem + marks[d] for stem, d in zip(stems, self._device.tolist(), strict=True)]

    def _collectives(self) -> list[str]:
        known = [stem if stem.partition("/")[0] in fast.COLLECTIVES else "" for stem in self._stems]
        return self._each([""] * self._graph.n_ops, known)

    def _each(self, of_copies: list[str], of_added: list[str]) -> list[str]:
        """Texts by the op that is copied, and by what is added."""
        texts = [*of_copies, *of_added]
        at = np.where(self._added < 0, self._serves, len(of_copies) + self._added)
        return [texts[i] for i in at.tolist()]

    def _served(self, texts: list[str]) -> list[str]:
        return [texts[i] for i in self._serves.tolist()]

    def _sets(self) -> list[str]:
        labels = self._each(self._graph.colocation, [""] * len(self._stems))
        marked = zip(labels, self._device.tolist(), strict=True)
        return [label and f"{label}@{self._mark}{d}" for label, d in marked]


def dtypes(outputs: list[str]) -> list[str]:
    """The dtype of the first output of each op."""
    of = {text: parse_output(text)[0][0] if text else "" for text in set(outputs)}
    return [of[text] for text in outputs]
