"""The effort of a search: seconds of counted work, seconds on the clock, or both.

Work is counted in seconds of a reference machine, by what it visits or simulates. So the same input
gives the same plan on every machine, however busy. The clock ends a search only where the user gave
a time limit.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Literal

from loadmaster.base import checks

#: The efforts that have a name.
Effort = Literal["fast", "normal", "max"]

#: Seconds of the reference machine that each named effort counts: with what is not counted it takes
#: about 1, 15 and 60 seconds there.
EFFORTS: dict[str, float] = {"fast": 0.75, "normal": 11.25, "max": 45.0}


@dataclass
class Budget:
    """Work that may still be done.

    Attributes
    ----------
    effort : float or None
        Seconds of work that may be counted; None: as far as the clock goes.
    seconds : float or None
        Seconds on the clock; None: no limit.
    spent : float
        Seconds of work counted so far.
    is_cut : bool
        Whether the clock has ended work that the count would have allowed.
    began : float
        When the clock started, by ``time.perf_counter``.

    Examples
    --------
    >>> budget = Budget.make("fast", None)
    >>> budget.spend(0.25)
    >>> budget.left, budget.seconds
    (0.5, None)
    """

    effort: float | None
    seconds: float | None
    spent: float = 0.0
    is_cut: bool = False
    began: float = field(default_factory=time.perf_counter)

    @classmethod
    def make(cls, effort: Effort | float | None, time_limit: float | None) -> Budget:
        """From what a user asks for: an effort by name or in seconds, a limit in seconds, or both.
        Neither is the effort ``"fast"``.

        Raises
        ------
        InputError
            An effort that is no name, and no seconds.
        """
        limit = None if time_limit is None else checks.time_limit(time_limit)
        if effort is None and limit is not None:
            return cls(None, limit)
        effort = "fast" if effort is None else effort
        if isinstance(effort, str) and effort in EFFORTS:
            return cls(EFFORTS[effort], limit)
        wants = f"one of {', '.join(EFFORTS)}, or seconds"
        seconds = checks.number("effort", effort, wants, lambda v: 0 <= v < float("inf"))
        # Work is counted in 64 bits, so it has to end.
        return cls(min(seconds, checks.YEAR), limit)

    def part(self, share: float) -> Budget:
        """A budget of its own for a part of the work: a share of all that may be counted, and of
        what is left on the clock.

        >>> Budget.make("normal", None).part(0.2).left
        2.25
        """
        clock = self.clock
        return Budget(
            None if self.effort is None else share * self.effort,
            None if clock is None else share * max(clock, 0.0),
        )

    @property
    def whole(self) -> float:
        """Seconds of work in all: by the count if there is one, else by the clock."""
        if self.effort is not None:
            return self.effort
        assert self.seconds is not None
        return self.seconds

    @property
    def clock(self) -> float | None:
        """Seconds left on the clock; None: no limit."""
        if self.seconds is None:
            return None
        return self.seconds - (time.perf_counter() - self.began)

    @property
    def left(self) -> float:
        """Seconds of work left: by the count if there is one, else by the clock."""
        if self.effort is not None:
            return self.effort - self.spent
        assert self.clock is not None
        return self.clock

    @property
    def is_spent(self) -> bool:
        """True if nothing is left, of the count or on the clock."""
        return self.left <= 0 or self.lacks(0.0)

    def spend(self, seconds: float) -> None:
        """Counts seconds of work."""
        self.spent += seconds

    def lacks(self, seconds: float) -> bool:
        """True if the clock leaves no time for work of so many seconds. If it does not, but the
        count would, :attr:`is_cut` says so from now on.
        """
        clock = self.clock
        late = clock is not None and clock <= seconds
        if late:
            self.cut()
        return late

    def cut(self) -> None:
        """Notes that the clock ends work, where the count is what should have ended it."""
        self.is_cut = self.is_cut or self.effort is not None
