"""Documents of plans of versions 1 and 2, brought to version 3.

Version 2 says nothing of parallelism. Its first documents lack what came to be said of plans.

A document of version 1 held the transformed graph alone, but its constraints name the ops of the
user's graph. Such a plan is read as a plan of the transformed graph, and the constraints are
rewritten to name the ops of that graph. The digest of the user's graph stands beside it, so that
the plan is known to be for that graph; a document of version 2 may have it from one of version 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from loadmaster.base.errors import InputError
from loadmaster.judge.bounds import WHOLE_OPS
from loadmaster.model.graph import OpGraph
from loadmaster.model.module_paths import module_path
from loadmaster.rules.constraints import REGEX, Constraints, matcher
from loadmaster.strategies.registry import DEFAULT

#: The versions that are read beside the one that is written.
VERSIONS = (1, 2)

#: The kinds of the ops that transforms added.
_ADDED = ("split", "concat", "sum", "aggregate")

#: Fields that documents of version 3 have of every plan, with their values where older ones are
#: silent.
_USUAL = {
    "objective": "step", "space": WHOLE_OPS, "bounds": {}, "offers": [], "left_out": [],
}  # fmt: skip

#: The last fields of an offer, where a document ends before them.
_UNSAID = ("", None, None, "")

#: The digest of the user's graph, in a document that holds the transformed graph alone.
_ORIGINAL = "original_sha256"


def upgraded(
    document: Mapping[str, Any], source: str, graph: OpGraph | None
) -> tuple[dict[str, Any], OpGraph | None]:
    """The document of version 3, and what graph it must be a plan for; None: any.

    Parameters
    ----------
    document : mapping
        Of version 1 or 2.
    source : str
        What errors name.
    graph : OpGraph or None
        The graph that the plan should be for.

    Raises
    ------
    InputError
        The plan was made from another graph than the one that is wanted.
    """
    upgraded = {**_USUAL, **document, "version": 3}
    if "program" in document:
        program = document["program"]
        columns = {"rank": [-1] * len(program["columns"]["part"]), **program["columns"]}
        upgraded["program"] = {"batches": 1, **program, "columns": columns}
    upgraded["offers"] = [_offer(row) for row in upgraded["offers"]]
    if (original := upgraded.pop(_ORIGINAL, None)) is None:
        return upgraded, graph
    if not isinstance(original, str):
        raise InputError(f"{source} is damaged: {_ORIGINAL} is no text")
    own = OpGraph.from_document(document["graph"], source)
    if document["version"] == 1 and "constraints" in document:
        asked = Constraints.from_document(document["constraints"], source)
        upgraded["constraints"] = constraints_of_version_1(asked, own).to_document()
    if graph is None or own.is_same(graph) or original in _digests(graph):
        return upgraded, None
    raise InputError(
        f"{source} is a plan for another graph: {own!r}, made from the one with hash {original}, "
        f"not {graph!r}"
    )


def _offer(row: Sequence[Any]) -> dict[str, Any]:
    """An offer of version 3 from its row of version 2, which may end after any of its fields.

    >>> _offer(["whole ops", "on 2 devices", 0.5, "whole ops", 8, 9, "--split none"])["request"]
    {'method': 'auto', 'options': {'split': 'none'}}
    """
    fields: list[Any] = [*row, *_UNSAID[len(row) - 3 :]]
    space, words, seconds, kind, peak, memory, arguments = fields
    return {
        "space": space,
        "what": words,
        "seconds": seconds,
        "kind": kind,
        "peak": peak,
        "memory": memory,
        "request": _request(arguments) if arguments else None,
    }


def _request(arguments: str) -> dict[str, Any]:
    """A method and options from arguments of ``loadmaster place``, as version 2 has them."""
    flags = arguments.split()
    method: str = DEFAULT
    options: dict[str, int | str] = {}
    for flag, value in zip(flags[::2], flags[1::2], strict=True):
        if flag == "--method":
            method = value
        elif flag == "--split":
            options["split"] = value
        else:
            name, _, text = value.partition("=")
            options[name] = int(text) if text.isdecimal() else text
    return {"method": method, "options": options}


def _digests(graph: OpGraph) -> tuple[str, str]:
    """Of a graph as it is, and without the arguments of its ops, of which version 1 knew none."""
    return graph.digest, graph.with_columns({"args": None}).digest


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
        pinned = f"{pattern}@*" if text == pattern else f"{REGEX}(?:{text})@.*"
        return [p for p in (pattern, pinned) if any(map(matcher(p), words))]

    added = [kind for kind in _ADDED if kind in graph.kinds]
    return Constraints(
        pin={p: to for pattern, to in asked.pin.items() for p in meant(pattern)},
        reserve=asked.reserve,
        contiguous=asked.contiguous,
        kinds={device: [*kinds, *added] for device, kinds in asked.kinds.items()},
    )
