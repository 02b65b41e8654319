"""A process that takes part in collectives of gloo, and times them.

Run as ``python -m loadmaster.costs.gloo_member RANK PROCESSES ASKED``, where ASKED is JSON: the
``meeting`` where processes join, ``kinds`` and ``sizes``. It prints JSON: of each kind and size,
seconds by the clock and of CPU, of all threads, in every repeat.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import distributed

from loadmaster.base.children import end_with_parent

#: Number of repeats: many of small tensors, few of large ones, which take long.
_MOST, _LEAST, _BYTES = 100, 12, 2**25

#: Bytes of an element.
_ELEMENT = 4


def collective(kind: str, size: int, k: int) -> Callable[[], object]:
    """A collective of ``k`` processes; ``size`` as :func:`measure_collectives` has it."""
    parts = max(1, size // _ELEMENT // k)
    whole, part = torch.zeros(parts * k), torch.zeros(parts)
    if kind == "all_reduce":
        return lambda: distributed.all_reduce(whole)
    if kind == "reduce_scatter":
        return lambda: distributed.reduce_scatter_tensor(part, whole)
    if kind == "all_gather":
        return lambda: distributed.all_gather_into_tensor(whole, part)
    if kind == "all_to_all":
        pieces = torch.zeros(max(1, parts // k) * k)
        output = torch.zeros_like(pieces)
        return lambda: distributed.all_to_all_single(output, pieces)
    return lambda: distributed.broadcast(whole, 0)


def timed(kind: str, size: int, k: int) -> tuple[list[float], list[float]]:
    """Seconds by the clock and of CPU, of every repeat but the first two, which warm up."""
    run = collective(kind, size, k)
    walls, busy = [], []
    for _ in range(2 + min(_MOST, max(_LEAST, _BYTES // size))):
        distributed.barrier()
        began, used = time.perf_counter(), time.process_time()
        run()
        walls.append(time.perf_counter() - began)
        busy.append(time.process_time() - used)
    return walls[2:], busy[2:]


def _main(rank: int, k: int, asked: dict[str, Any]) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[rank % len(cores)]})
    distributed.init_process_group("gloo", init_method=asked["meeting"], rank=rank, world_size=k)
    seconds = [[timed(kind, size, k) for size in asked["sizes"]] for kind in asked["kinds"]]
    sys.stdout.write(json.dumps(seconds))
    sys.stdout.flush()
    distributed.barrier()
    os._exit(0)  # at a normal exit gloo's threads sometimes end Python by an abort


if __name__ == "__main__":
    end_with_parent()
    _main(int(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3]))
