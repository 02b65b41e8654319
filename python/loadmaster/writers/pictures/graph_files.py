"""DOT for Graphviz and GraphML for Gephi, yEd and networkx: the text, given nodes and edges."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from loadmaster.base.quoting import dot, markup

#: GraphML's name of a type.
_KINDS = {str: "string", float: "double", int: "long"}

Attributes = Mapping[str, object]


def dot_text(
    name: str, nodes: Iterable[Attributes], edges: Iterable[tuple[int, int, Attributes]]
) -> str:
    """A directed graph as DOT; nodes are numbered as they come.

    >>> print(dot_text("g", [{"label": "a"}, {}], [(0, 1, {})]), end="")
    digraph "g" {
      node [shape=ellipse, style=filled];
      0 [label="a"];
      1 [];
      0 -> 1 [];
    }
    """
    lines = [f"digraph {dot(name)} {{", "  node [shape=ellipse, style=filled];"]
    lines += [f"  {i} [{_attributes(values)}];" for i, values in enumerate(nodes)]
    lines += [f"  {src} -> {dst} [{_attributes(values)}];" for src, dst, values in edges]
    return "\n".join([*lines, "}", ""])


def graphml_text(
    name: str,
    node_keys: Mapping[str, type],
    nodes: Iterable[Attributes],
    edge_keys: Mapping[str, type],
    edges: Iterable[tuple[int, int, Attributes]],
) -> str:
    """A directed graph as GraphML; nodes are numbered as they come."""
    keys = [("node", key, kind) for key, kind in node_keys.items()]
    keys += [("edge", key, kind) for key, kind in edge_keys.items()]
    lines = [
        '<?xml version="1.0" encoding="UTF-8"?>',
        '<graphml xmlns="http://graphml.graphdrawing.org/xmlns">',
        *(
            f'  <key id="{key}" for="{owner}" attr.name="{key}" attr.type="{_KINDS[kind]}"/>'
            for owner, key, kind in keys
        ),
        f'  <graph id="{markup(name)}" edgedefault="directed">',
    ]
    lines += [f'    <node id="{i}">{_data(values)}</node>' for i, values in enumerate(nodes)]
    lines += [
        f'    <edge source="{src}" target="{dst}">{_data(values)}</edge>'
        for src, dst, values in edges
    ]
    return "\n".join([*lines, "  </graph>", "</graphml>", ""])


def _attributes(values: Attributes) -> str:
    return ", ".join(
        f"{key}={dot(value) if isinstance(value, str) else value}" for key, value in values.items()
    )


def _data(values: Attributes) -> str:
    return "".join(
        f'<data key="{key}">{markup(str(value))}</data>' for key, value in values.items()
    )
