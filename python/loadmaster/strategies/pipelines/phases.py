"""The pass of each op of a micro-batched program: forward pass, backward pass, gradients of
weights, or once a step.

Gradients of weights can wait, since nothing in the backward pass reads them. An op makes one where
its result leads to the gradient of one parameter and to nothing else. What leads to several lies on
the way of the backward pass.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadmaster.model.graph import OpGraph
from loadmaster.model.program import Program
from loadmaster.transforms.base import ranks

#: Source, destination, distinct tensors and bytes between pairs of reduced ops.
Flows = tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.uint32], NDArray[np.uint64]]

#: Phases of the ops of one micro-batch; values of :func:`passes` are indices into them.
PASSES = ("F", "B", "W")
FORWARD, BACKWARD, WEIGHT = range(len(PASSES))

#: Phases of work that is done once for all micro-batches.
ONCE = -1


def passes(program: Program) -> NDArray[np.int8]:
    """The pass of each op of the graph that runs: index into :data:`PASSES`, or ONCE.

    What waits for the backward pass of its micro-batch is a part of that: collectives that bring
    what the forward pass made are held back until it is read.

    Without micro-batches nothing is a part of one. A graph that has no phases is a forward pass.

    Returns
    -------
    int8 [program.graph.n_ops]

    Notes
    -----
    O(V + E).

    Examples
    --------
    >>> import loadmaster as lm
    >>> passes(lm.transforms.recompute(lm.read("example:gpt3-330m"), ["h.0"])).max().item()
    -1
    """
    graph, many = program.graph, program.micro >= 0
    pass_of = np.where(many, FORWARD, ONCE).astype(np.int8)
    is_backward = np.fromiter(map("b".__eq__, graph.phases), bool, graph.n_ops) & many
    is_backward |= _after(graph, is_backward, program.micro)
    pass_of[is_backward] = BACKWARD
    pass_of[is_backward & _leads_to_one(program, is_backward)] = WEIGHT
    return pass_of


def passes_of_places(part: NDArray[np.int8], place: NDArray[Any]) -> NDArray[np.int8]:
    """The same for ops that have places, such as stages or devices: where all of the backward pass
    of a place leads to one parameter's gradient, that is its backward pass.

    >>> passes_of_places(np.array([0, 2, 0, 1, 2]), np.array([0, 0, 1, 1, 1])).tolist()
    [0, 1, 0, 1, 2]
    """
    has_backward = np.isin(place, place[part == BACKWARD])
    return np.where((part == WEIGHT) & ~has_backward, BACKWARD, part).astype(np.int8)


def aside(
    flows: Flows, part: NDArray[np.int8], micro: NDArray[Any], stage: NDArray[Any]
) -> NDArray[np.bool_]:
    """Ops of micro-batches that are on the side of their stage's passes, which go on without them:
    bool [n_reduced].

    In the forward pass an op that reads nothing of it, such as a look-up in a tied weight, and that
    an earlier stage reads; in the backward pass the gradient of that weight, which reads an earlier
    stage. ``flows`` are those of the reduced graph, and columns are of its ops: what :func:`passes`
    says of each, micro-batch, stage. O(V + E) for each op on the way of such a gradient.
    """
    src, dst, tensors, _ = flows
    inner = (micro[src] >= 0) & (micro[src] == micro[dst]) & (tensors > 0)
    src, dst = src[inner], dst[inner]
    is_aside = np.zeros(len(part), dtype=bool)
    forward = (part[src] == FORWARD) & (part[dst] == FORWARD)
    is_aside[src[forward & (stage[dst] < stage[src])]] = True
    is_aside[dst[forward]] = False
    late = (part[dst] == WEIGHT) & (part[src] > FORWARD)
    is_aside[dst[late & (stage[src] < stage[dst])]] = True
    follows = late & (part[src] == WEIGHT) & (stage[src] == stage[dst])
    while (more := follows & is_aside[src] & ~is_aside[dst]).any():
        is_aside[dst[more]] = True
    return is_aside


def _after(
    graph: OpGraph, is_backward: NDArray[np.bool_], micro: NDArray[np.int32]
) -> NDArray[np.bool_]:
    """Mask of the ops of a micro-batch that come after one of its backward pass, whatever their
    phase.

    That they come after one of another micro-batch is the schedule's doing.
    """
    late = is_backward.copy()
    inner = (micro[graph.src] >= 0) & (micro[graph.src] == micro[graph.dst])
    src, dst = graph.src[inner], graph.dst[inner]
    while (more := late[src] & ~late[dst]).any():
        late[dst[more]] = True
    return late


def _leads_to_one(program: Program, is_backward: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Mask of the ops of the backward pass that lead to one parameter's gradient alone.

    A gradient is what leaves the micro-batches. It is known by the user's op that makes it.
    """
    graph = program.graph
    src, dst = graph.src, graph.dst
    reads = is_backward[src] & (
        np.ones(len(src), bool) if graph.tensor is None else graph.tensor >= 0
    )
    leaves = reads & (program.micro[dst] < 0)
    none = program.source.n_ops
    least = np.full(graph.n_ops, none)
    most = np.full(graph.n_ops, -1)
    least[src[leaves]] = most[src[leaves]] = program.serves[src[leaves]]
    inner = np.flatnonzero(reads & is_backward[dst])
    # Readers come first: what they lead to is known when it is handed on.
    inner = inner[np.argsort(-ranks(graph)[src[inner]], kind="stable")]
    low, high = least.tolist(), most.tolist()
    for a, b in zip(src[inner].tolist(), dst[inner].tolist(), strict=True):
        if low[b] < low[a]:
            low[a] = low[b]
        if high[b] > high[a]:
            high[a] = high[b]
    return np.equal(low, high)
