"""Tells if the workers of a dask.distributed scheduler still get anywhere.

A task that dask loses with its worker is run again by dask. If workers die faster than they take
tasks, dask waits for ever and tells nobody. So the sweep counts the workers that are gone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from concurrent.futures import Executor

from loadmaster.base.units import counted, format_seconds

#: Workers that may be gone without a result, for each worker that was there at the same time.
LOSSES = 4

#: Seconds without a worker, after there have been some, in which others may come.
NO_WORKER = 120.0


class Losses:
    """Workers that are gone since there was last a result.

    Parameters
    ----------
    workers : callable
        Returns the names of the workers that are there. A worker that is started again has
        another name.
    clock : callable
        Returns seconds since any moment.
    """

    def __init__(
        self,
        workers: Callable[[], Collection[str]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._workers = workers
        self._clock = clock
        self._before: set[str] = set()
        self._gone: set[str] = set()
        self._most = 0
        self._began = self._seen = clock()

    @classmethod
    def of(cls, executor: Executor | None) -> Losses | None:
        """Those of an executor of dask.distributed; None for any other."""
        workers = getattr(getattr(executor, "_client", None), "nthreads", None)
        if workers is None:
            return None
        losses = cls(workers)
        losses.look()
        return losses

    def forget(self) -> None:
        """Starts anew: there is a result."""
        self._gone.clear()
        self._began = self._seen = self._clock()

    def look(self) -> str:
        """Looks at the workers; what is wrong with them, or nothing if they may still get on."""
        try:
            now = set(self._workers())
        except OSError:  # The scheduler does not answer. It is looked for again next time.
            now = set()
        self._gone |= self._before - now
        self._before = now
        self._most = max(self._most, len(now))
        moment = self._clock()
        if now or not self._most:
            self._seen = moment
        if self._most and len(self._gone) >= LOSSES * self._most:
            lost = counted(len(self._gone), "worker", "workers")
            return f"{lost} died in {format_seconds(moment - self._began)} without a result"
        if moment - self._seen >= NO_WORKER:
            return f"no worker is left, and none came in {format_seconds(NO_WORKER)}"
        return ""
