"""Several plans measured beside each other, in rounds, so that a machine that drifts favours none.

The speed of a machine changes within minutes. Each round runs some steps of every plan, and no plan
always comes first. Intervals come from the bootstrap over rounds: all that was measured in a round
is drawn together (Efron 1979; percentile intervals).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack

import numpy as np
from numpy.typing import NDArray

from loadmaster.base import checks
from loadmaster.base.progress import Incumbent, Progress
from loadmaster.plans.plan import Plan
from loadmaster.running.measured.measured import Measured

#: Runs so many steps of a plan that is ready to run.
Session = Callable[[int], Measured]

#: Makes a plan ready to run, for as long as the context lasts.
Runner = Callable[[Plan], AbstractContextManager[Session]]

#: Numbers that the bootstrap draws.
_DRAWS = 1000


def interleaved(
    plans: Sequence[Plan],
    runner: Runner,
    rounds: int,
    steps: int = 1,
    *,
    progress: Progress | None = None,
) -> tuple[Measured, ...]:
    """Runs steps of every plan in every round.

    Parameters
    ----------
    plans : sequence of Plan
    runner : callable
        Makes a plan ready to run; all plans are ready at once.
    rounds : int
    steps : int
        Steps of a plan in each round.
    progress : callable, optional
        Told which round it is.

    Returns
    -------
    tuple of Measured
        Of each plan its steps, ``steps`` of every round, in turn.
    """
    rounds, steps = checks.count("rounds", rounds), checks.count("steps", steps)
    seen: list[list[Measured]] = [[] for _ in plans]
    with ExitStack() as stack:
        ready = [stack.enter_context(runner(plan)) for plan in plans]
        for turn in range(rounds):
            if progress is not None:
                best = min((runs[0].step for runs in seen if runs), default=None)
                incumbent = None if best is None else Incumbent(best)
                progress(f"round {turn + 1} of {rounds}", incumbent)
            for i in range(len(plans)):
                at = (turn + i) % len(plans)
                seen[at].append(ready[at](steps))
    return tuple(joined(runs) for runs in seen)


def joined(runs: Sequence[Measured]) -> Measured:
    """Runs of one plan on the same devices as one run, their steps in turn."""
    first = runs[0]
    return Measured(
        first.plan, first.steps.joined([run.steps for run in runs[1:]]), first.on, first.stretch
    )


def interval(
    statistic: Callable[[NDArray[np.int64]], float],
    rounds: int,
    *,
    share: float = 0.9,
    seed: int = 0,
) -> tuple[float, float]:
    """The bootstrap's interval of a statistic of some rounds.

    Parameters
    ----------
    statistic : callable
        Its value for rounds given by index, int64 [rounds], some of them several times.
    rounds : int
        How many were measured.
    share : float
        Of the drawn values that lie within the interval.
    seed : int

    Examples
    --------
    >>> seconds = np.array([1.0, 1.1, 1.2, 1.1, 1.0, 1.3])
    >>> low, high = interval(lambda rounds: float(np.median(seconds[rounds])), 6)
    >>> low <= 1.1 <= high
    True
    """
    random = np.random.default_rng(seed)
    drawn = random.integers(0, rounds, (_DRAWS, rounds))
    values = [statistic(rows) for rows in drawn]
    low, high = np.quantile(values, [(1 - share) / 2, (1 + share) / 2])
    return float(low), float(high)
