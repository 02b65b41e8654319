"""For how long a thread was ready to run and had no core: whether a measurement was disturbed."""

from __future__ import annotations

import os
from collections.abc import Callable

#: Nanoseconds on a core, nanoseconds of waiting for one, and turns, of the thread that reads it.
_PATH = "/proc/thread-self/schedstat"

#: Nanoseconds from when a thread is to run until it does where its core is free; measured: 1.5 to 4
#: us. Where it is not, they are milliseconds.
WAKING = 5_000


def waited_for_a_core() -> Callable[[], int]:
    """Tells for how many nanoseconds the thread that asks has waited since it asked before.

    The first answer is since the thread began; 0: no system says. Each time that the thread gets a
    core, :data:`WAKING` are taken off: so long it takes where cores are free, and a worker that
    waits for news naps thousands of times a second.

    >>> waited = waited_for_a_core()
    >>> waited() >= 0
    True
    """
    if not os.path.exists(_PATH):
        return lambda: 0
    descriptor = os.open(_PATH, os.O_RDONLY)
    before = 0

    def waited() -> int:
        nonlocal before
        _, ready, turns = map(int, os.pread(descriptor, 80, 0).split())
        since, before = ready - WAKING * turns - before, ready - WAKING * turns
        return max(since, 0)

    return waited
