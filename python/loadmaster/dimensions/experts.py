"""Experts that are modules of their own: which ops are of which, by the structure of the graph.

Modules whose paths differ in one number are the experts of a layer if

* what they make comes together only after them: the layers of a stack read each other;
* all of them have the same ops and parameters: only such ops count;
* a top-k that chooses among as many comes before what each of them does in the forward pass.

Ops of other modules that only one expert comes before, such as the activation between its products,
are that expert's. So are ops of the backward pass that only that expert's own come before, and what
is made for one expert alone. Ops that pick rows for an expert, or add its rows to those of others,
are of none: tokens go to the experts after the former, and come back before the latter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

import loadmaster.fast as fast
from loadmaster.model.graph import PARAMETER, OpGraph
from loadmaster.model.module_paths import module_path
from loadmaster.model.shapes import parse_output

#: A list of modules, and a number in it.
Spot = tuple[tuple[str, ...], int]

#: The number where several modules of a list come together.
_JOINED = -1


@dataclass(frozen=True, eq=False)
class Experts:
    """The experts of a graph's layers.

    Attributes
    ----------
    of_op : int32 [n_ops]
        Which expert of its layer each op or parameter is of, from 0; -1: of none.
    layer : int32 [n_ops]
        The layer, from 0; -1: of no expert.
    part : int32 [n_ops]
        Which op of its expert each is, the same in all experts of a layer; -1: of no expert.
    count : int32 [n_ops]
        How many experts the layer has; 0: of no expert.
    """

    of_op: NDArray[np.int32]
    layer: NDArray[np.int32]
    part: NDArray[np.int32]
    count: NDArray[np.int32]

    @classmethod
    def of(cls, graph: OpGraph, picks: NDArray[np.bool_]) -> Experts:
        """The experts of a graph. O(V + E) for each number in the paths of its modules.

        ``picks``, bool [n_ops], are the ops that read or write rows by an index.
        """
        experts = cls(*(np.full(graph.n_ops, fill, dtype=np.int32) for fill in (-1, -1, -1, 0)))
        chosen = _chosen(graph)
        if not chosen:
            return experts
        flow = _Flow(graph, picks)
        routed = {n: flow.after(ops) for n, ops in chosen.items()}
        level, lists = 0, _lists(graph, 0)
        while lists:
            for members in flow.members(lists):
                after = routed.get(len(members))
                if after is not None and all(after & flow.before(of) for of in members):
                    experts._add(members)
            level += 1
            lists = {op: spot for op, spot in _lists(graph, level).items() if experts.of_op[op] < 0}
        return experts

    def _add(self, members: Sequence[Sequence[int]]) -> None:
        """Notes the experts of a layer, each with its ops by the part that they play."""
        layer = int(self.layer.max(initial=-1)) + 1
        for number, ops in enumerate(members):
            self.of_op[ops], self.part[ops] = number, np.arange(len(ops))
            self.layer[ops], self.count[ops] = layer, len(members)


def _chosen(graph: OpGraph) -> dict[int, list[int]]:
    """Top-k ops by the sizes of what they choose among."""
    by_size: dict[int, list[int]] = {}
    for op, kind in enumerate(graph.kinds):
        if "topk" in kind.lower().replace("_", ""):
            sources = graph.src[graph.dst == op].tolist()
            shapes = (parse_output(graph.outputs[source]) for source in sources)
            for size in {
                size for outputs in shapes for _, sizes in outputs for size in sizes or ()
            }:
                by_size.setdefault(size, []).append(op)
    return by_size


def _lists(graph: OpGraph, level: int) -> dict[int, Spot]:
    """Parameters whose module has a number at a level, and which of which list that makes it.

    Lists of one module are one: the first products of all experts, and the second ones.
    """
    spots: dict[int, Spot] = {}
    for op in np.flatnonzero(graph.stands_for == PARAMETER).tolist():
        path = module_path(graph.modules[op])
        numbers = [at for at, word in enumerate(path) if word.isdigit()]
        if level < len(numbers):
            at = numbers[level]
            named = at > 0 and not path[at - 1].isdigit()
            spots[op] = path[: at - named], int(path[at])
    return spots


def in_order(graph: OpGraph) -> list[int]:
    """Ops after all that they read: in the program's own order, if that is such."""
    if (graph.src < graph.dst).all():
        return list(range(graph.n_ops))
    order_only = fast.Graph(graph.n_ops, graph.src, graph.dst, np.full(graph.n_edges, -1))
    order: list[int] = fast.m_topo(order_only).tolist()
    return order


class _Flow:
    """The ops before each op."""

    def __init__(self, graph: OpGraph, picks: NDArray[np.bool_]) -> None:
        self.graph, self.picks = graph, picks
        data = np.ones(graph.n_edges, dtype=bool) if graph.tensor is None else graph.tensor >= 0
        src, dst = graph.src[data], graph.dst[data]
        order = np.argsort(dst, kind="stable")
        ends = np.cumsum(np.bincount(dst, minlength=graph.n_ops))[:-1]
        self.reads = [part.tolist() for part in np.split(src[order], ends)]
        self.readers: list[list[int]] = [[] for _ in range(graph.n_ops)]
        for a, b in zip(src.tolist(), dst.tolist(), strict=True):
            self.readers[a].append(b)
        runs = [op for op in in_order(graph) if not graph.placeholder[op]]
        phases = graph.phases
        self.forward = [op for op in runs if phases[op] not in ("b", "o")]
        self._runs_forward = {op for op in self.forward if not graph.view[op]}
        self.backward = [op for op in runs if phases[op] == "b"]
        self.updates = [op for op in runs if phases[op] == "o"]

    def after(self, ops: Iterable[int]) -> set[int]:
        """Some ops of the forward pass, and all that they come before there."""
        later = set(ops)
        for op in self.forward:
            if not later.isdisjoint(self.reads[op]):
                later.add(op)
        return later

    def before(self, ops: Iterable[int]) -> set[int]:
        """Those of some ops that run in the forward pass, and the ops that they read."""
        mine = self._runs_forward.intersection(ops)
        return mine.union(*(self.reads[op] for op in mine))

    def members(self, lists: Mapping[int, Spot]) -> Iterator[list[list[int]]]:
        """Per list of modules, what all of these have alike: ops of each, part by part."""
        forward = self._alike({**lists, **self._spread(self.forward, lists)})
        both = {**forward, **self._spread(self.backward, forward)}
        alone = {op: spot for op, spot in both.items() if spot[1] != _JOINED}
        everything = self._alike({**alone, **self._made_for({**alone, **self._updates(lists)})})
        of_list: dict[tuple[str, ...], dict[int, list[int]]] = {}
        for op, (path, number) in everything.items():
            if not self.graph.view[op]:
                of_list.setdefault(path, {}).setdefault(number, []).append(op)
        for of in of_list.values():
            if len(of) > 1:
                yield [self._by_part(of[number]) for number in sorted(of)]

    def _spread(self, ops: Sequence[int], known: Mapping[int, Spot]) -> dict[int, Spot]:
        """The spots of ops from those of what they read. What several lists come before is of the
        one that is read last for the first time.
        """
        spread: dict[int, Spot] = {}
        turn: dict[tuple[str, ...], int] = {}
        for op in ops:
            spots = {spot for read in self.reads[op] if (spot := spread.get(read, known.get(read)))}
            for path, _ in () if self.graph.view[op] else spots:
                turn.setdefault(path, len(turn))
            if spots:
                last = max((path for path, _ in spots), key=lambda path: turn.get(path, len(turn)))
                numbers = {number for path, number in spots if path == last}
                spread[op] = last, numbers.pop() if len(numbers) == 1 else _JOINED
        return spread

    def _updates(self, lists: Mapping[int, Spot]) -> dict[int, Spot]:
        """The spots of ops that update the parameters of modules."""
        labels = self.graph.colocation
        of_label = {labels[op]: spot for op, spot in lists.items() if labels[op]}
        return {op: of_label[labels[op]] for op in self.updates if labels[op] in of_label}

    def _made_for(self, known: Mapping[int, Spot]) -> dict[int, Spot]:
        """The spots of other ops from those of what reads them, if that is one module alone."""
        of_ops: dict[int, Spot] = {}
        for op in reversed([*self.forward, *self.backward]):
            if op not in known and not self.picks[op]:
                spots = {known.get(at) or of_ops.get(at) for at in self.readers[op]}
                if len(spots) == 1 and (spot := spots.pop()) is not None:
                    of_ops[op] = spot
        return of_ops

    def _alike(self, spots: Mapping[int, Spot]) -> dict[int, Spot]:
        """Those of spots that all modules of a list have; views are left as they are."""
        alone = {
            op: spot
            for op, spot in sorted(spots.items())
            if spot[1] != _JOINED and not self.picks[op]
        }
        n_modules = Counter(path for path, _ in set(alone.values()))
        parts: dict[tuple[object, ...], list[int]] = {}
        seen: Counter[tuple[object, ...]] = Counter()
        for op, spot in alone.items():
            which = (spot, *self._look(op))
            parts.setdefault((*self._look(op), spot[0], seen[which]), []).append(op)
            seen[which] += 1
        kept = {op for ops in parts.values() for op in ops if len(ops) == n_modules[alone[op][0]]}
        return {op: spot for op, spot in alone.items() if op in kept or self.graph.view[op]}

    def _look(self, op: int) -> tuple[str, str, str]:
        graph = self.graph
        return graph.kinds[op], graph.outputs[op], graph.phases[op]

    def _by_part(self, ops: Sequence[int]) -> list[int]:
        """Ops by what they are, and in the order of the graph where several are alike."""
        return sorted(ops, key=lambda op: (self._look(op), op))
