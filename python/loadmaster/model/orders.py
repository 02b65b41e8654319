"""Orders in which one device may run all ops of a reduced graph. How much it holds at the worst
moment depends on the order.
"""

from __future__ import annotations

import heapq
from collections import defaultdict

import numpy as np
from numpy.typing import NDArray

import loadmaster.fast as fast


def program_order(graph: fast.Graph) -> NDArray[np.int32]:
    """The ops as the program lists them: int32 [n_ops]. Of the ops that are ready, the first."""
    return fast.priority_order(graph, np.arange(graph.n_ops, 0.0, -1.0))


def frugal_order(graph: fast.Graph) -> NDArray[np.int32]:
    """Of the ops that are ready, always the one after which least more bytes are held: what it
    makes, less what nobody else has yet to read. Ties go to the program's first.

    The list scheduler of XLA's ``hlo_memory_scheduler``. It is greedy, so the peak need not be the
    least there is.

    Returns
    -------
    int32 [n_ops]

    Notes
    -----
    O((V + E) log V).

    Examples
    --------
    Two branches, each of which makes 8 bytes and reduces them to 1:

    >>> import numpy as np
    >>> from loadmaster import fast
    >>> src, dst = np.array([0, 1, 2, 3]), np.array([2, 3, 4, 4])
    >>> g = fast.Graph(5, src, dst, tensor_bytes=np.array([8, 8, 1, 1, 0]))
    >>> [fast.peak_bytes(g, order)[0] for order in (fast.m_topo(g), frugal_order(g))]
    [17, 10]
    """
    n = graph.n_ops
    output_bytes = (graph.static_bytes - graph.resident).tolist()
    waits = [0] * n
    successors: list[list[int]] = [[] for _ in range(n)]
    inputs: list[list[int]] = [[] for _ in range(n)]
    readers: defaultdict[int, set[int]] = defaultdict(set)
    size: dict[int, int] = {}
    columns = (column.tolist() for column in fast.edges(graph))
    for src, dst, tensor, bytes_, is_home in zip(*columns, strict=True):
        if is_home:
            continue
        waits[dst] += 1
        successors[src].append(dst)
        if tensor >= 0:
            inputs[dst].append(tensor)
            readers[tensor].add(dst)
            size[tensor] = bytes_

    def entry(op: int) -> tuple[int, int]:
        return output_bytes[op] - sum(size[t] for t in inputs[op] if len(readers[t]) == 1), op

    # What an op adds only falls as others run, so the latest entry of an op is its first.
    ready = [entry(op) for op in range(n) if not waits[op]]
    heapq.heapify(ready)
    order: dict[int, None] = {}
    while ready:
        _, op = heapq.heappop(ready)
        if op in order:
            continue
        order[op] = None
        changed: list[int] = []
        for tensor in inputs[op]:
            readers[tensor].discard(op)
            if len(readers[tensor]) == 1:
                changed += readers[tensor]
        for after in successors[op]:
            waits[after] -= 1
            changed.append(after)
        for other in dict.fromkeys(changed):
            if not waits[other]:
                heapq.heappush(ready, entry(other))
    return np.fromiter(order, dtype=np.int32, count=n)


#: Orders by which one device is asked whether it holds a graph, in this order.
ORDERS = (fast.m_topo, program_order, frugal_order)
