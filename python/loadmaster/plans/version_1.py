"""What version 1 of a plan's document said of a transformed graph, in the words of version 2.

A document of version 1 held the transformed graph alone, but its constraints name the ops of the
user's graph. Such a plan is read as a plan of the transformed graph, and the constraints are
rewritten to name the ops of that graph.
"""

from __future__ import annotations

from loadmaster.model.graph import OpGraph
from loadmaster.model.module_paths import module_path
from loadmaster.rules.constraints import REGEX, Constraints, matcher

#: The kinds of the ops that transforms added.
_ADDED = ("split", "concat", "sum", "aggregate")


def constraints_of_version_1(asked: Constraints, graph: OpGraph) -> Constraints:
    """Constraints that name ops of the user's graph, rewritten for the transformed graph.

    A pin of an op becomes a pin of the op's parts. A device that runs only some kinds may also run
    the kinds that transforms add. ``no_split`` is dropped: colocation sets of the transformed graph
    keep the modules whole.

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
        """The pattern itself and the pattern of the ops' parts, those of the two that match."""
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
