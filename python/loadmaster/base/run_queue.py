"""For how long a thread was ready to run and had no core: whether a measurement was disturbed."""

from __future__ import annotations

import os
from collections.abc import Callable

#: Nanoseconds on a core, nanoseconds of waiting for one, and turns, of the thread that reads it.
_PATH = "/proc/thread-self/schedstat"


def waited_for_a_core() -> Callable[[], int]:
    """Tells for how many nanoseconds the thread that asks has waited; 0: no system says.

    >>> waited = waited_for_a_core()
    >>> before = waited()
    >>> waited() >= before
    True
    """

    def waited() -> int:
        try:
            with open(_PATH, "rb") as file:
                return int(file.read().split()[1])
        except OSError:
            return 0

    return waited if os.path.exists(_PATH) else lambda: 0
