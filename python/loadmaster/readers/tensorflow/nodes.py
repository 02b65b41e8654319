"""The nodes of a GraphDef, with cycles of loops cut and nodes that did not run bridged.

A ``tf.while_loop`` (version 1) is a cycle: ``NextIteration`` feeds the ``Merge`` that begins the
next round. Here ``NextIteration`` hands its value to the ``Exit`` of the same variable instead, and
the edge back to ``Merge`` is cut. So ops after a loop wait for its body, and no edge leads back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

from loadmaster.base.errors import InputError
from loadmaster.base.reached import reached
from loadmaster.readers.tensorflow.costs import (
    ENTERS,
    EXITS,
    INPUTS,
    MERGES,
    NEXT_ITERATIONS,
    OF_SHAPES,
    SWITCHES,
    VARIABLES,
    VIEWS,
    plain_kind,
)

#: An output of a node: its name and the output's number.
Port = tuple[str, int]

#: The most ancestors that a node which did not run passes on. With more, it stays, at no cost.
MOST_BRIDGED = 64


@dataclass(slots=True)
class GraphNode:
    """A node: the outputs that it reads, and the nodes that it waits for."""

    name: str
    kind: str
    proto: Any
    data: list[Port] = field(default_factory=list)
    control: list[str] = field(default_factory=list)


def parse(graph: Any) -> dict[str, GraphNode]:
    """The nodes of a GraphDef message by name, in its order.

    Raises
    ------
    InputError
        A name given twice, an input that nothing produces.
    """
    nodes: dict[str, GraphNode] = {}
    for proto in graph.node:
        if proto.name in nodes:
            raise InputError(f"two nodes are called {proto.name!r}")
        nodes[proto.name] = GraphNode(proto.name, plain_kind(proto.op), proto)
    for node in nodes.values():
        for text in node.proto.input:
            if text.startswith("^"):
                source = text[1:]
                node.control.append(source)
            else:
                source, _, port = text.partition(":")
                node.data.append((source, int(port) if port.isascii() and port.isdigit() else 0))
            if source not in nodes:
                raise InputError(f"node {node.name!r} reads {text!r}, which no node produces")
    return nodes


@dataclass(frozen=True)
class Loops:
    """The loops of a graph: the innermost frame of each node in one, and back edges cut."""

    frame_of: dict[str, str]
    n_cut: int


def cut_loops(nodes: dict[str, GraphNode]) -> Loops:
    """Turns cycles through ``NextIteration`` into lines, in place. O(V + E)."""
    again = {
        node.name: next(port for port in node.data if nodes[port[0]].kind in NEXT_ITERATIONS)
        for node in nodes.values()
        if node.kind in MERGES and any(nodes[s].kind in NEXT_ITERATIONS for s, _ in node.data)
    }
    if not again:
        return Loops({}, 0)
    for name in again:
        node = nodes[name]
        node.data = [port for port in node.data if nodes[port[0]].kind not in NEXT_ITERATIONS]
    for node in nodes.values():
        if node.kind in EXITS and node.data and nodes[node.data[0][0]].kind in SWITCHES:
            switch = nodes[node.data[0][0]]
            last = again.get(switch.data[0][0]) if switch.data else None
            if last is not None:
                node.data = [last]
                node.control.append(switch.name)
    return Loops(_frames(nodes), len(again))


def _frames(nodes: dict[str, GraphNode]) -> dict[str, str]:
    """The innermost loop of each node in one. O(V + E); nodes on other cycles are in none."""
    frames: dict[str, tuple[str, ...]] = {}
    missing = {n.name: len(n.data) + len(n.control) for n in nodes.values()}
    readers: dict[str, list[str]] = {name: [] for name in nodes}
    for node in nodes.values():
        for source in (*(s for s, _ in node.data), *node.control):
            readers[source].append(node.name)
    ready = deque(name for name, count in missing.items() if not count)
    while ready:
        node = nodes[ready.popleft()]
        frame = frames.get(node.name, ())
        if node.kind in ENTERS:
            frame = (*frame, _text(node, "frame_name"))
            frames[node.name] = frame
        outside = frame[:-1] if node.kind in EXITS else frame
        for reader in readers[node.name]:
            if len(outside) > len(frames.get(reader, ())):
                frames[reader] = outside
            missing[reader] -= 1
            if not missing[reader]:
                ready.append(reader)
    return {name: frame[-1] for name, frame in frames.items() if frame}


def _text(node: GraphNode, attribute: str) -> str:
    value = node.proto.attr[attribute].s if attribute in node.proto.attr else b""
    return bytes(value).decode(errors="replace")


def ancestors(nodes: dict[str, GraphNode], fetches: Iterable[str]) -> set[str]:
    """Names of what some nodes need, themselves included.

    Raises
    ------
    InputError
        A name that no node has.
    """
    fetched = [text.removeprefix("^").partition(":")[0] for text in fetches]
    for name in fetched:
        if name not in nodes:
            import difflib

            near = difflib.get_close_matches(name, nodes, n=3, cutoff=0.5)
            hint = f"; did you mean {', '.join(map(repr, near))}?" if near else ""
            raise InputError(f"fetches: no node is called {name!r}{hint}")
    return reached(fetched, lambda n: [*(source for source, _ in nodes[n].data), *nodes[n].control])


class Bridges:
    """The kept nodes that nodes read, and wait for, through nodes that are not.

    A node that did not run was optimised away: merged into its reader or with a node like it,
    worked out beforehand, or only forwarding. So the readers of such a node read its inputs. They
    only wait for these where the node only told shapes. Inputs and variables that kept nodes read
    are kept as well.
    O(V + E), with at most :data:`MOST_BRIDGED` ancestors per node that did not run.

    Attributes
    ----------
    added
        Names kept beside those given.
    """

    def __init__(self, nodes: dict[str, GraphNode], kept: Collection[str]) -> None:
        self._nodes = nodes
        self._kept = set(kept)
        self._through: dict[str, tuple[list[Port], list[str]]] = {}
        self.added: list[str] = []

    def data(self, port: Port) -> tuple[list[Port], list[str]]:
        """The kept outputs that stand for an output, and the kept nodes that it had to wait for."""
        return self._passed(port[0]) or ([port], [])

    def control(self, names: list[str]) -> list[str]:
        """The kept nodes that stand for those that are waited for."""
        if self._kept.issuperset(names):
            return names
        kept: list[str] = []
        for name in names:
            data, control = self._passed(name) or ([], [name])
            kept += [source for source, _ in data]
            kept += control
        return kept

    def _passed(self, name: str) -> tuple[list[Port], list[str]] | None:
        """Outputs that a node passes on which is not kept; None: it is kept, even as of now."""
        stack, entered = [name], set()
        while stack:
            node = self._nodes[stack[-1]]
            if self._is_settled(node.name):
                stack.pop()
            elif node.kind in INPUTS or node.kind in VARIABLES:
                self._keep(node.name)
            elif node.name in entered:
                self._join(node)
            else:
                entered.add(node.name)
                needed = (*(source for source, _ in node.data), *node.control)
                unsettled = [n for n in needed if not self._is_settled(n)]
                if not entered.isdisjoint(unsettled):
                    raise InputError(f"the graph has a cycle through {node.name!r}")
                stack += unsettled
        return self._through.get(name)

    def _is_settled(self, name: str) -> bool:
        return name in self._kept or name in self._through

    def _join(self, node: GraphNode) -> None:
        sources = [self.data(port) for port in node.data]
        control = [*self.control(node.control), *(name for _, names in sources for name in names)]
        # Only a view's first input is data; an op that tells shapes has none.
        n_data = 1 if node.kind in VIEWS else 0 if node.kind in OF_SHAPES else len(sources)
        control += [source for ports, _ in sources[n_data:] for source, _ in ports]
        del sources[n_data:]
        data = list(dict.fromkeys(port for ports, _ in sources for port in ports))
        control = list(dict.fromkeys(control))
        if len(data) + len(control) > MOST_BRIDGED:
            self._keep(node.name)
        else:
            self._through[node.name] = (data, control)

    def _keep(self, name: str) -> None:
        self._kept.add(name)
        self.added.append(name)
