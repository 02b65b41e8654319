"""Processes that this one starts: they end with it, and leave Ctrl-C to it."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress


def end_with_parent(last: Callable[[], object] = lambda: None) -> None:
    """Ends this process as soon as its parent has ended, however that came; before, does ``last``.

    The parent holds the other end of the pipe that is stdin here, and sends nothing.
    """

    def watch() -> None:
        with suppress(OSError):
            while os.read(0, 1):
                pass
        last()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def sparing_children() -> Iterator[None]:
    """Keeps Ctrl-C from processes that are started meanwhile; this one hears of it afterwards.

    An interpreter that starts would end in a traceback before it can say that it ignores Ctrl-C.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
