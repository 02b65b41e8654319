"""Progress of long work on a terminal: stage, incumbent, bound, gap and time left.

One line that is redrawn on stderr, by rich; nothing where nobody watches.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from loadmaster.base.text import escaped
from loadmaster.base.units import format_seconds

if TYPE_CHECKING:
    from rich.live import Live

    from loadmaster.base.progress import Incumbent

#: Seconds before the line appears: most work is done by then.
PATIENCE = 2.0


class ProgressLine:
    """A progress callback for :func:`loadmaster.place` and the like, to be used in a ``with``.

    Parameters
    ----------
    time_limit : float, optional
        Seconds that the work may take; the line then shows the time left.
    clock : callable
        Returns seconds since any moment; tests give their own.
    is_of_cases : bool
        Whether each of several pieces of work has that time, with its name before a colon
        (:func:`loadmaster.base.progress.of_case`).

    Examples
    --------
    >>> from loadmaster import Incumbent
    >>> with ProgressLine() as progress:
    ...     progress("heft", Incumbent(0.012, lower_bound=0.010))
    >>> progress.line()
    'heft | best 12 ms | bound 10 ms | gap 16.7%'
    """

    def __init__(
        self,
        time_limit: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        *,
        is_of_cases: bool = False,
    ) -> None:
        self._clock = clock
        self._began = clock()
        self._time_limit = time_limit
        self._is_of_cases = is_of_cases
        self._stage = ""
        self._best: Incumbent | None = None
        self._live: Live | None = None
        self._timer = threading.Timer(PATIENCE, self._show)

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            self._timer.daemon = True
            self._timer.start()
        return self

    def _show(self) -> None:
        self._live = _live(self.line)
        self._live.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._timer.cancel()
        if self._timer.is_alive():
            self._timer.join()
        if self._live is not None:
            self._live.stop()
            self._live = None

    def __call__(self, stage: str, best: Incumbent | None = None) -> None:
        """Notes the stage and the best placement so far; None: there is none yet."""
        if self._is_of_cases and _case(stage) != _case(self._stage):
            self._began = self._clock()
        self._stage, self._best = stage, best

    def line(self) -> str:
        """The text of the line."""
        parts = [self._stage]
        if self._best is not None:
            parts.append(f"best {format_seconds(self._best)}")
            parts.append(f"bound {format_seconds(self._best.lower_bound)}")
            parts.append(f"gap {self._best.gap:.1%}")
        if self._time_limit is not None:
            left = max(self._time_limit - (self._clock() - self._began), 0.0)
            parts.append(f"{left:.0f} s left")
        return escaped(" | ".join(parts))


def _case(stage: str) -> str:
    return stage.partition(": ")[0]


def _live(line: Callable[[], str]) -> Live:
    """A line on stderr that is redrawn four times a second, and gone at the end."""
    from rich.console import Console
    from rich.live import Live
    from rich.spinner import Spinner
    from rich.text import Text

    class _TerminalLine:
        def __init__(self) -> None:
            self.spinner = Spinner("dots")

        def __rich_console__(self, *_: Any) -> Any:
            self.spinner.update(text=Text(line()))
            yield self.spinner

    return Live(_TerminalLine(), console=Console(stderr=True), refresh_per_second=4, transient=True)
