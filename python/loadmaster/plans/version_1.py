"""What version 1 of a plan's document said of a transformed graph, in the words of version 2.

Version 1 held the graph that runs, and not the user's, whose ops its constraints name. So the ops
of that graph count as the user's own, and the constraints are put in terms of their names.
"""

from __future__ import annotations

from loadmaster.model.graph import OpGraph
from loadmaster.model.module_paths import module_path
from loadmaster.rules.constraints import REGEX, Constraints, matcher

#: The kinds of the ops that transforms added.
_ADDED = ("split", "concat", "sum", "aggregate")


def constraints_of_version_1(asked: Constraints, graph: OpGraph) -> Constraints:
    """Constraints on the ops of a user's graph as ones on those of the transformed graph.

    A pin holds for what was made from an op, too. A device that runs some kinds may run what the
    transform added. Modules were kept whole by the graph's own sets.

    Examples
    --------
    >>> graph = OpGraph({"name": ["a@r0", "a@r1", "b"]}, {"src": [], "dst": []})
    >>> asked = Constraints(pin={"a": "gpu0", "b": "gpu1"})
    >>> dict(constraints_of_version_1(asked, graph).pin)
    {'a@*': ('gpu0',), 'b': ('gpu1',)}
    """
    paths = {module_path(module) for module in set(graph.modules)}
    words = {".".join(path[: i + 1]) for path in paths for i in range(len(path))}
    words |= set(graph.names)

    def meant(pattern: str) -> list[str]:
        """The pattern, and that of what was made from the ops it names, as far as they match."""
        text = pattern.removeprefix(REGEX)
        made = f"{pattern}@*" if text == pattern else f"{REGEX}(?:{text})@.*"
        return [p for p in (pattern, made) if any(map(matcher(p).match, words))]

    added = [kind for kind in _ADDED if kind in graph.kinds]
    return Constraints(
        pin={p: to for pattern, to in asked.pin.items() for p in meant(pattern)},
        reserve=asked.reserve,
        contiguous=asked.contiguous,
        kinds={device: [*kinds, *added] for device, kinds in asked.kinds.items()},
    )
