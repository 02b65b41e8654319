"""The roles of TensorFlow's nodes: parameters and slots, phases, modules, colocated sets."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping

from loadmaster.base.disjoint_sets import DisjointSets
from loadmaster.readers.tensorflow.costs import INPUTS, VARIABLES, is_optimizer, is_update
from loadmaster.readers.tensorflow.nodes import GraphNode
from loadmaster.readers.tensorflow.run import Execution

_LOCATION = "loc:@"
_GRADIENTS = re.compile(r"(?:^|/)(?:gradients(?:_\d+)?|gradient_tape)/")
_UPDATE = "/update_"


class NodeRoles:
    """The roles of a graph's nodes, told by their kinds, their names and ``_class``."""

    def __init__(self, nodes: Mapping[str, GraphNode], run: Mapping[str, Execution]) -> None:
        self._nodes = nodes
        self._run = run
        self._writers = _writers(nodes.values())
        self._optimizers = _optimizer_scopes(nodes.values())
        self._groups = _colocated(nodes)

    def kind(self, node: GraphNode) -> str:
        """The kind as in the graph's column; the kind that ran, where an optimiser changed it."""
        execution = self._run.get(node.name)
        kind = (execution.kind if execution is not None else "") or node.kind
        if kind in INPUTS:
            return "input"
        if kind == "Const":
            return "constant"
        if kind in VARIABLES:
            own = self._writers.get(node.name, ())
            trained = any(is_optimizer(k) for k in own)
            moved = any("AssignSub" in k or "AssignAdd" in k for k in own)
            slot = self._variable(node) != node.name
            return "buffer" if slot or (moved and not trained) else "parameter"
        return kind

    def _variable(self, node: GraphNode) -> str:
        """The variable that an op changes or is made for; its own name if there is none."""
        if is_update(node.kind) and node.data and self._nodes[node.data[0][0]].kind in VARIABLES:
            return node.data[0][0]
        for other in _companions(node):
            if other in self._nodes and self._nodes[other].kind in VARIABLES:
                return other
        return node.name

    def phase(self, node: GraphNode) -> str:
        """Forward, backward or optimizer."""
        if is_optimizer(node.kind) or node.name.startswith(self._optimizers):
            return "o"
        if node.kind in VARIABLES:
            return "o" if self._variable(node) != node.name else "f"
        return "b" if _GRADIENTS.search(node.name) else "f"

    def module(self, node: GraphNode) -> str:
        """The name scope; for ops that an optimizer adds, ``optim`` and the variable's scope."""
        name, prefix = node.name, ""
        if self.phase(node) == "o":
            name, prefix = self._variable(node), "optim."
        return prefix + name.rpartition("/")[0].replace("/", ".")

    def colocation(self, names: Iterable[str]) -> dict[str, str]:
        """The colocated set of each named op that is in one."""
        named = [name for name in names if name in self._groups]
        members = Counter(self._groups[name] for name in named)
        return {n: self._groups[n] for n in named if members[self._groups[n]] > 1}


def _writers(nodes: Iterable[GraphNode]) -> dict[str, set[str]]:
    """Kinds of the ops that change each variable."""
    kinds: dict[str, set[str]] = {}
    for node in nodes:
        if is_update(node.kind) and node.data:
            kinds.setdefault(node.data[0][0], set()).add(node.kind)
    return kinds


def _optimizer_scopes(nodes: Iterable[GraphNode]) -> tuple[str, ...]:
    """Name scopes of optimizers: what stands before ``/update_`` in the names of their ops."""
    scopes = {
        node.name.partition(_UPDATE)[0] + "/"
        for node in nodes
        if is_optimizer(node.kind) and _UPDATE in node.name
    }
    return tuple(sorted(scopes))


def _companions(node: GraphNode) -> list[str]:
    """The nodes that ``_class`` puts a node with."""
    if "_class" not in node.proto.attr:
        return []
    texts = [text.decode(errors="replace") for text in node.proto.attr["_class"].list.s]
    return [text.removeprefix(_LOCATION) for text in texts if text.startswith(_LOCATION)]


def _colocated(nodes: Mapping[str, GraphNode]) -> dict[str, str]:
    """For each node that ``_class`` puts with others, the name of its set: the set's first
    variable, or else its first node.
    """
    sets = DisjointSets[str]()
    for node in nodes.values():
        for other in _companions(node):
            sets[sets.find(node.name)] = sets.find(other)
    members = [node for node in nodes.values() if node.name in sets]
    members.sort(key=lambda node: node.kind not in VARIABLES)
    called: dict[str, str] = {}
    for node in members:
        called.setdefault(sets.find(node.name), node.name)
    return {node.name: called[sets.find(node.name)] for node in members}
