"""The graph as a tree of modules: what each takes on which device, and what it sends to others.

The page draws the modules that are open; see ``page.modules.js``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

import loadmaster.fast as fast
from loadmaster.judge.coarsening import coarsen_problem
from loadmaster.plans.plan import Plan
from loadmaster.writers.pictures.bars import of_ops

Ints = NDArray[np.int64]

#: Modules that one module opens into; of more, neighbours in time are taken together first.
MAX_CHILDREN = 40

#: Words of a path that open one after another; the rest of a longer one is one word.
DEEPEST = 24

#: Groups of a graph without modules.
GROUPS = 150


@dataclass(frozen=True)
class Tree:
    """Modules as a tree, parents before their children, siblings by when they first run.

    Attributes
    ----------
    name : list of str
        Of each node, without its parent's.
    parent : list of int
        -1: it is at the top.
    ops : int64 [nodes]
        Ops that stand in the node itself, and not in one of its children.
    start, finish : float64 [nodes]
        When its first op starts and its last ends, in seconds; children count.
    busy : (int64, int64, float64)
        Node, device and seconds, where ops of the node itself take any.
    sent : (int64, int64, float64, float64)
        Two nodes, the bytes of the tensors that the second reads from the first, and those of them
        that change devices. A tensor counts once for each node that reads it.
    """

    name: list[str]
    parent: list[int]
    ops: Ints
    start: NDArray[np.float64]
    finish: NDArray[np.float64]
    busy: tuple[Ints, Ints, NDArray[np.float64]]
    sent: tuple[Ints, Ints, NDArray[np.float64], NDArray[np.float64]]


@dataclass
class _TreeNode:
    """A node while the tree grows."""

    first: float = np.inf
    leaves: list[int] = field(default_factory=list)
    children: dict[str, _TreeNode] = field(default_factory=dict)


def tree(plan: Plan) -> Tree:
    """The modules of the graph that runs; groups of neighbours where it has no modules.

    O((V + E) log (V + E)).
    """
    ran = of_ops(plan)
    paths, leaf = _leaves(plan)
    first = np.full(len(paths), np.inf)
    np.minimum.at(first, leaf, ran.start)
    root = _TreeNode()
    for i in np.argsort(first, kind="stable").tolist():
        node = root
        node.first = min(node.first, float(first[i]))
        for word in paths[i]:
            node = node.children.setdefault(word, _TreeNode())
            node.first = min(node.first, float(first[i]))
        node.leaves.append(i)
    growing = _Growing(len(paths))
    growing.open(root, -1)
    name, parent, node_of = growing.name, growing.parent, growing.of_leaf[leaf]
    n = len(name)
    start, finish = np.full(n, np.inf), np.zeros(n)
    np.minimum.at(start, node_of, ran.start)
    np.maximum.at(finish, node_of, ran.finish)
    for i in reversed(range(n)):
        if parent[i] >= 0:
            start[parent[i]] = min(start[parent[i]], start[i])
            finish[parent[i]] = max(finish[parent[i]], finish[i])
    return Tree(
        name,
        parent,
        np.bincount(node_of, minlength=n),
        start,
        finish,
        _busy(node_of, ran.row, ran.finish - ran.start, plan.cluster.n_devices),
        _sent(plan, node_of, ran.row, n),
    )


def _leaves(plan: Plan) -> tuple[list[tuple[str, ...]], Ints]:
    """Paths of modules, and which of them each op of the reduced graph is in."""
    graph, op_of = plan.program.graph, plan.problem.reduced.op_of
    modules = [graph.modules[op] for op in op_of.tolist()]
    number = {module: i for i, module in enumerate(dict.fromkeys(modules))}
    if len(number) > 1:
        return [_path(module) for module in number], np.array(
            [number[module] for module in modules], dtype=np.int64
        )
    group = coarsen_problem(plan.problem, "sequential", GROUPS).group.astype(np.int64)
    ran = of_ops(plan)
    longest = np.lexsort((ran.start - ran.finish, group))
    at = np.searchsorted(group[longest], np.arange(int(group.max(initial=-1)) + 1))
    names = [graph.names[op_of[op]] for op in longest[at].tolist()]
    return [(f"{name} and its neighbours",) for name in names], group


def _path(module: str) -> tuple[str, ...]:
    words = [word for word in re.split(r"[./]", module) if word]
    return (*words[: DEEPEST - 1], ".".join(words[DEEPEST - 1 :])) if words[DEEPEST:] else (*words,)


class _Growing:
    """The nodes so far, and which of them each leaf is."""

    def __init__(self, leaves: int) -> None:
        self.name: list[str] = []
        self.parent: list[int] = []
        self.of_leaf = np.zeros(leaves, dtype=np.int64)

    def open(self, node: _TreeNode, at: int) -> None:
        """Appends what a node opens into; ``at`` is its number, -1 that of the root."""
        rows = sorted(node.children.items(), key=lambda row: row[1].first)
        if node.leaves and (rows or at < 0):
            own = _TreeNode(node.first, node.leaves)
            rows.insert(0, ("no module" if at < 0 else "its own ops", own))
        elif node.leaves:
            self.of_leaf[node.leaves] = at
        self.siblings(rows, at)

    def siblings(self, rows: Sequence[tuple[str, _TreeNode]], at: int) -> None:
        """Appends the nodes that one opens into; too many of them as runs that open again."""
        size = -(-len(rows) // MAX_CHILDREN)
        if size <= 1:
            for word, node in rows:
                self.append(word, node, at)
            return
        for begin in range(0, len(rows), size):
            run = rows[begin : begin + size]
            if len(run) == 1:
                self.append(*run[0], at)
            else:
                self.siblings(run, self._numbered(f"{run[0][0]} to {run[-1][0]}", at))

    def append(self, word: str, node: _TreeNode, at: int) -> None:
        """Appends a node; one that opens into a single other is named with it."""
        while not node.leaves and len(node.children) == 1:
            [(more, node)] = node.children.items()
            word = f"{word}.{more}"
        self.open(node, self._numbered(word, at))

    def _numbered(self, word: str, at: int) -> int:
        self.name.append(word)
        self.parent.append(at)
        return len(self.name) - 1


def _busy(
    node: Ints, device: Ints, seconds: NDArray[np.float64], n_devices: int
) -> tuple[Ints, Ints, NDArray[np.float64]]:
    pair, which = np.unique(node * n_devices + device, return_inverse=True)
    total = np.bincount(which, seconds, len(pair)).astype(np.float64)
    took = total > 0
    return pair[took] // n_devices, pair[took] % n_devices, total[took]


def _sent(
    plan: Plan, node: Ints, device: Ints, n: int
) -> tuple[Ints, Ints, NDArray[np.float64], NDArray[np.float64]]:
    src, dst, tensor, sizes, _ = fast.edges(plan.problem.graph)
    apart = (node[src] != node[dst]) & (tensor >= 0)
    src, dst, tensor = src[apart], dst[apart], tensor[apart].astype(np.int64)
    size, moves = sizes[apart].astype(np.float64), device[src] != device[dst]
    pair = node[src] * n + node[dst]
    # A tensor that some reader of a node has on another device counts as moving.
    order = np.lexsort((~moves, tensor, pair))
    once = np.unique(np.stack([pair[order], tensor[order]]), axis=1, return_index=True)[1]
    kept = order[once]
    pairs, which = np.unique(pair[kept], return_inverse=True)
    total = np.bincount(which, size[kept], len(pairs)).astype(np.float64)
    moved = np.bincount(which, size[kept] * moves[kept], len(pairs)).astype(np.float64)
    return pairs // n, pairs % n, total, moved
