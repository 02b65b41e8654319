"""Cuts a placed graph into segments that each run on one device, one after another.

A device needs several segments where its ops need results of another device in between. To get few
segments, all ops of a device that can run are taken before the next device's turn. With two devices
and a given first device, there can be no fewer.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def segments(devices: Sequence[int], reads: Sequence[Sequence[int]]) -> list[tuple[int, list[int]]]:
    """Segments of a graph whose nodes are numbered in an order in which they can run.

    A segment takes every node of its device that can run by then, and nodes of the device that can
    run once these have. The first device is the one that leads to the fewest segments. The next
    device is always the one on which most nodes can run. Ties go to the smaller index.
    O(D (V log V + E + S D)) for D devices and S segments.

    Parameters
    ----------
    devices
        Device per node.
    reads
        Per node the nodes that it reads.

    Returns
    -------
    list of (int, list of int)
        Device and nodes of each segment, in an order in which both can run; all nodes, once.

    Examples
    --------
    >>> segments([0, 1, 0, 0], [[], [0], [1], [0]])
    [(0, [0, 3]), (1, [1]), (0, [2])]
    """
    readers: list[list[int]] = [[] for _ in devices]
    for node, sources in enumerate(reads):
        for source in set(sources):
            readers[source].append(node)
    found = [_from(first, devices, reads, readers) for first in sorted(set(devices))]
    return min(found, key=len, default=[])


def _from(
    first: int,
    devices: Sequence[int],
    reads: Sequence[Sequence[int]],
    readers: Sequence[Sequence[int]],
) -> list[tuple[int, list[int]]]:
    missing = [len(set(sources)) for sources in reads]
    ready: dict[int, list[int]] = {device: [] for device in sorted(set(devices))}
    for node, count in enumerate(missing):
        if count == 0:
            ready[devices[node]].append(node)
    found: list[tuple[int, list[int]]] = []
    device = first
    while any(ready.values()):
        nodes: list[int] = []
        heap = ready[device]
        heapq.heapify(heap)
        while heap:
            node = heapq.heappop(heap)
            nodes.append(node)
            for reader in readers[node]:
                missing[reader] -= 1
                if missing[reader] == 0:
                    heapq.heappush(ready[devices[reader]], reader)
        if nodes:
            found.append((device, nodes))
        device = max(ready, key=lambda d: (len(ready[d]), -d))
    return found


def segment_of(n: int, found: Sequence[tuple[int, list[int]]]) -> NDArray[np.int32]:
    """The segment of each of ``n`` nodes."""
    column = np.zeros(n, dtype=np.int32)
    for index, (_, nodes) in enumerate(found):
        column[nodes] = index
    return column
