"""A stream: steps of a graph one after another, as a graph of its own.

Steps have parameters, buffers and constants in common. Inputs arrive with their step. In training,
what a step reads of a parameter is what the step before has written. The *window* says how
many steps are under way: a step begins when one op, the last of a step, has ended in the step a
window before it. Where another op ends later now and then, a little more is under way.
What a step puts out is kept until the next step has put out the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadmaster.base import checks
from loadmaster.model.graph import INPUT, OpGraph
from loadmaster.model.program import Program
from loadmaster.transforms.base import ranks
from loadmaster.transforms.copies import WholeCopies
from loadmaster.transforms.recomputation import storage_of


@dataclass(frozen=True)
class StepStream:
    """Steps of a graph.

    Attributes
    ----------
    program : Program
        Its source is the graph of one step.
    step : int64 [program.graph.n_ops]
        The step that each op is of; what steps have in common is of the first.
    """

    program: Program
    step: NDArray[np.int64]


def stream(graph: OpGraph, steps: int, window: int, last: int) -> StepStream:
    """So many steps of a graph, of which about a window is under way.

    Parameters
    ----------
    graph : OpGraph
        Of one step: that of a user, or of a program.
    steps, window : int
        At least 1 each.
    last : int
        The op of the graph whose end is the end of a step.

    Returns
    -------
    Stream
        Ops of step j are named ``name@s<j>``.

    Notes
    -----
    O(steps (V + E)).

    Examples
    --------
    >>> import loadmaster as lm
    >>> graph = lm.read("example:lenet")
    >>> made = stream(graph, 3, 2, graph.n_ops - 1)
    >>> int(made.program.graph.resident.sum()) < 2 * int(graph.resident.sum())
    True
    """
    checks.count("steps", steps)
    checks.integer("window", window)
    copies = WholeCopies(graph, [0] * steps, "s")
    is_input = graph.stands_for == INPUT
    edges = _with_control(_updated(copies, copies.edges()), *_gates(copies, window, last))
    edges = _joined(edges, _results(copies))
    columns = {
        "placeholder": graph.placeholder & ~is_input,
        "resident": np.where(is_input, np.uint64(0), graph.param_bytes),
    }
    return StepStream(copies.program(edges, columns), copies.copy)


def waits_for_updates(graph: OpGraph) -> bool:
    """True where a step changes what the next one reads, as in training."""
    return bool(len(_writers(graph)[0]))


def _writers(graph: OpGraph) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Pairs of what stays from step to step, and an op that writes it: in place, or as the
    optimizer's that reads it.
    """
    storage, state = storage_of(graph), graph.placeholder & (graph.stands_for != INPUT)
    runs = ~graph.view & ~graph.placeholder
    in_place = np.flatnonzero(runs & (graph.alias_of >= 0) & state[storage])
    carries = graph.src if graph.tensor is None else graph.tensor
    reads = (carries >= 0) & graph.updates[graph.dst] & state[storage[graph.src]] & runs[graph.dst]
    pairs = np.concatenate(
        [
            np.stack([storage[in_place], in_place]),
            np.stack([storage[graph.src[reads]], graph.dst[reads]]),
        ],
        axis=1,
    )
    pairs = np.unique(pairs, axis=1)
    return pairs[0], pairs[1]


def _updated(copies: WholeCopies, edges: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """The edges, with readers of what the step before has written at the ops that wrote it.

    What was written in place is read from the last op that did. Of what was not, readers wait.
    """
    graph, n = copies.graph, copies.n
    state, writer = _writers(graph)
    if not len(state) or n == 1:
        return edges
    m, rank = graph.n_edges, ranks(graph)
    order = np.lexsort((rank[writer], state))
    state, writer = state[order], writer[order]
    last = np.full(graph.n_ops, -1, dtype=np.int64)
    last[state] = writer
    reader = np.flatnonzero((last[graph.src] >= 0) & (copies.tensor >= 0))
    in_place = reader[graph.alias_of[last[graph.src[reader]]] >= 0]
    updated = {name: column.copy() for name, column in edges.items()}
    for step in range(1, n):
        at = step * m + in_place
        updated["src"][at] = copies.at[step - 1, last[graph.src[in_place]]]
        updated["tensor"][at] = copies.tensor[in_place] + (n + step) * copies.stride
    first = np.searchsorted(state, graph.src[reader])
    count = np.searchsorted(state, graph.src[reader], side="right") - first
    of = np.repeat(reader, count)
    number = np.arange(len(of)) - np.repeat(np.cumsum(count) - count, count)
    waits_on = writer[np.repeat(first, count) + number]
    later = copies.at[1:, graph.dst[of]].ravel()
    return _with_control(updated, copies.at[:-1, waits_on].ravel(), later)


def _with_control(
    edges: dict[str, NDArray[Any]], src: NDArray[np.int64], dst: NDArray[np.int64]
) -> dict[str, NDArray[Any]]:
    """The edges, and messages without data after them."""
    none, nothing = np.full(len(src), -1), np.zeros(len(src), dtype=np.uint64)
    return _joined(edges, {"src": src, "dst": dst, "tensor": none, "bytes": nothing})


def _joined(
    edges: dict[str, NDArray[Any]], more: dict[str, NDArray[Any]]
) -> dict[str, NDArray[Any]]:
    return {name: np.concatenate([column, more[name]]) for name, column in edges.items()}


def _results(copies: WholeCopies) -> dict[str, NDArray[Any]]:
    """Edges that keep what a step puts out until the next step has put out the same."""
    graph, n = copies.graph, copies.n
    read = np.zeros(graph.n_ops, dtype=bool)
    reads = (copies.tensor >= 0) & ~graph.view[graph.dst]
    read[graph.reduced.shows[graph.src[reads]]] = True
    is_result = ~read & ~graph.view & ~graph.placeholder & ~copies.common[storage_of(graph)]
    results = np.flatnonzero(is_result)
    # A tensor that only views show has an id; of other results it is made.
    tensor = 2 * n * copies.stride + results
    size = graph.output_bytes[results]
    shown = np.flatnonzero((copies.tensor >= 0) & is_result[graph.src])
    at = np.searchsorted(results, graph.src[shown])
    tensor[at], size[at] = copies.tensor[shown], graph.bytes[shown]
    step = np.arange(n - 1)[:, None]
    stride = np.where(tensor < copies.stride, copies.stride, graph.n_ops)
    return {
        "src": copies.at[:-1, results].ravel(),
        "dst": copies.at[1:, results].ravel(),
        "tensor": (tensor + step * stride).ravel(),
        "bytes": np.tile(size, n - 1),
    }


def _gates(
    copies: WholeCopies, window: int, last: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """From the end of a step to the first ops of the one a window later."""
    graph = copies.graph
    stays = copies.common[storage_of(graph)] & (graph.view | copies.common)
    heads = ~stays & ~graph.view
    heads[graph.dst[~stays[graph.src]]] = False
    begins = np.flatnonzero(heads)
    later = copies.at[window:, begins]
    ends = np.repeat(copies.at[: max(copies.n - window, 0), last], len(begins))
    return ends, later.ravel()
