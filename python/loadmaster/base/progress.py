"""Reports of long work to its caller: the stage of the work, and the best placement so far."""

from __future__ import annotations

from collections.abc import Callable


class Incumbent(float):
    """The step time of the best placement so far, in seconds, and how good that is.

    Attributes
    ----------
    lower_bound : float
        Seconds below which no placement can go; 0 where nothing better is known.

    Examples
    --------
    >>> Incumbent(2.0, lower_bound=1.5).gap
    0.25
    """

    lower_bound: float

    def __new__(cls, makespan: float, lower_bound: float = 0.0) -> Incumbent:
        """A step time, in seconds, beside a bound."""
        incumbent = super().__new__(cls, makespan)
        incumbent.lower_bound = lower_bound
        return incumbent

    @property
    def gap(self) -> float:
        """(step time - bound) / step time: how much could be gained at most."""
        return (self - self.lower_bound) / self if self > 0 else 0.0


#: Called with the stage of the work, and with the best placement so far; None: there is none yet.
Progress = Callable[[str, Incumbent | None], None]


def of_case(progress: Progress | None, case: str) -> Progress | None:
    """Progress of one of several pieces of work: its stages, behind the name of the piece.

    >>> of_case(lambda stage, best: print(stage), "ddp, 2 of 5")("costs", None)
    ddp, 2 of 5: costs
    """
    if progress is None:
        return None
    return lambda stage, best: progress(f"{case}: {stage}", best)
