"""The ops that a recipe recomputes: modules as a whole, or some ops of each.

A line is a pattern of modules, such as ``"h.*"``. All ops of the forward pass in them are meant, or
those that selectors name behind bars: ``"h.* | h.*.attn aten._softmax.default | h.*.norm"``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from loadmaster.base.errors import InputError
from loadmaster.model.graph import OpGraph
from loadmaster.model.module_paths import module_path
from loadmaster.model.patterns import Places, Selector, escaped_pattern, instances, layerless

#: Separators of the modules of a line from its selectors, and of these from each other.
_BAR = " | "


@dataclass(frozen=True)
class RecomputeLine:
    """A line of ``recompute``.

    Attributes
    ----------
    modules : str
        A pattern of module paths.
    only : tuple of Selector
        The ops that are meant; none: all that are in the modules.
    """

    modules: str
    only: tuple[Selector, ...] = ()

    @classmethod
    def parse(cls, text: str) -> RecomputeLine:
        """From text.

        Raises
        ------
        InputError
            What stands behind a bar is no selector.

        Examples
        --------
        >>> RecomputeLine.parse("h.* | h.*.attn aten._softmax.default").only[0].kind
        'aten._softmax.default'
        """
        modules, *only = text.split(_BAR)
        return cls(modules, tuple(map(Selector.parse, only)))

    def __str__(self) -> str:
        return _BAR.join([self.modules, *map(str, self.only)])


@dataclass(frozen=True, eq=False)
class RecomputedSegments:
    """Ops that lines mean, by the modules that they are recomputed with.

    Attributes
    ----------
    of : int64 [n_ops]
        The segment of each op: one module of a line, with what the line means of it; -1: none. Of
        several lines that mean an op the first one counts.
    line : int64 [n_segments]
        Of each segment; all lines of whole modules count as one.
    module : list of int64 [n_ops]
        Of each line, the module of it that each op is in; -1: none.
    """

    of: NDArray[np.int64]
    line: NDArray[np.int64]
    module: list[NDArray[np.int64]]

    @classmethod
    def of_lines(cls, graph: OpGraph, lines: Iterable[str]) -> RecomputedSegments:
        """The segments of a graph. O(ops x lines).

        Raises
        ------
        InputError
            A pattern of no module, or a selector of no op in one.
        """
        parsed = [RecomputeLine.parse(text) for text in lines]
        whole = [one.modules for one in parsed if not one.only]
        module = [instances(graph.modules, whole, "recompute")]
        meant = [module[0] >= 0]
        for one in parsed:
            if one.only:
                module.append(instances(graph.modules, [one.modules], "recompute"))
                meant.append(_meant(graph, one, module[-1]))
        segment, line = np.full(graph.n_ops, -1, dtype=np.int64), np.empty(0, dtype=np.int64)
        for at, (of, is_meant) in enumerate(zip(module, meant, strict=True)):
            here = is_meant & (segment < 0)
            numbers, segment[here] = np.unique(of[here], return_inverse=True)
            segment[here] += len(line)
            line = np.concatenate([line, np.full(len(numbers), at, dtype=np.int64)])
        return cls(segment, line, module)

    def with_storage(
        self, storage: NDArray[np.int64], can: NDArray[np.bool_]
    ) -> RecomputedSegments:
        """The same, of ops that can be done again alone, and with all ops in the modules of a line
        that show or rewrite what it means. Storage is that of :func:`.recomputation.storage_of`.
        """
        segment, modules = np.where(can, self.of, -1), [np.where(can, m, -1) for m in self.module]
        for at, module in enumerate(modules):
            meant = np.flatnonzero((segment >= 0) & can[storage])
            meant = meant[self.line[segment[meant]] == at]
            of_storage = np.full(len(storage), -1, dtype=np.int64)
            of_storage[storage[meant]] = segment[meant]
            joins = (module >= 0) & (segment < 0) & (of_storage[storage] >= 0)
            joins[joins] = module[joins] == module[storage[joins]]
            segment[joins] = of_storage[storage[joins]]
        return replace(self, of=segment, module=modules)

    def leaves(self, src: NDArray[np.integer], dst: NDArray[np.integer]) -> NDArray[np.bool_]:
        """Mask of edges of the forward pass whose tensors are kept, since they end outside
        of the modules of the line that means it, or in another segment.
        """
        is_leaving: NDArray[np.bool_] = self.of[src] != self.of[dst]
        for at, module in enumerate(self.module):
            here = is_leaving & (self.of[src] >= 0) & (self.of[dst] < 0)
            here[here] = self.line[self.of[src[here]]] == at
            is_leaving[here] = module[src[here]] != module[dst[here]]
        return is_leaving


def line_of(graph: OpGraph, modules: str, ops: NDArray[np.bool_]) -> str | None:
    """The line that means some ops of the forward pass, and no others of it, in all modules alike.

    Parameters
    ----------
    graph : OpGraph
    modules : str
        A pattern of module paths: what is outside of each keeps what it reads.
    ops : bool [n_ops]
        Views, which go with what they show, and what is in none of the modules are left out.

    Returns
    -------
    str or None
        None: none of the ops is in one, or modules that have the same path but for their numbers
        differ in which of their ops are meant.

    Notes
    -----
    O(ops x selectors).

    Examples
    --------
    >>> import loadmaster as lm
    >>> graph = lm.read("example:gpt3-330m")
    >>> line_of(graph, "h.*", np.array([kind == "aten.gelu.default" for kind in graph.kinds]))
    'h.* | h.* aten.gelu.default'
    """
    inside = instances(graph.modules, [modules], "recompute") >= 0
    forward = np.array([phase == "f" for phase in graph.phases], dtype=bool)
    runs = inside & forward & ~graph.placeholder & ~graph.view
    wanted = runs & ops
    places = Places([".".join(module_path(module)) for module in graph.modules], graph.kinds)
    selectors: dict[Selector, None] = {}
    for op in np.flatnonzero(wanted).tolist():
        pattern = layerless(".".join(module_path(graph.modules[op])))
        kind = escaped_pattern(graph.kinds[op])
        for one in (Selector(pattern, kind), Selector(pattern, kind, int(places.ordinal[op]))):
            if one in selectors:
                break
            meant = places.matching(one)
            if wanted[meant[runs[meant]]].all():
                selectors[one] = None
                break
        else:
            return None
    return str(RecomputeLine(modules, tuple(selectors))) if selectors else None


def _meant(graph: OpGraph, line: RecomputeLine, module: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Mask of the ops in its modules that the selectors of a line mean."""
    paths: Sequence[str] = [".".join(module_path(path)) for path in graph.modules]
    places, is_meant = Places(paths, graph.kinds), np.zeros(graph.n_ops, dtype=bool)
    for one in line.only:
        at = places.matching(one)
        if not len(at):
            raise InputError(f"recompute: no op is {str(one)!r}{places.near(one)}")
        is_meant[at] = True
    return is_meant & (module >= 0)
