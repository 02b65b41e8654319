"""The cross-entropy method on placements (Post: Gao, Chen and Li, "Post: Device Placement with
Cross-Entropy Minimization and Proximal Policy Optimization", NeurIPS 2018).

Each group has a distribution over devices of its own. Placements are drawn from them and simulated;
the distributions that are likeliest to draw the fastest tenth (the minimum of the cross-entropy,
in closed form: how often a group is where among them) take the place of the old ones, and so on.

What differs: Post takes a few steps of proximal policy optimization between two such updates. They
are left out: the method ``policy-gradient`` is the one that learns by gradients. New distributions
are mixed with the old ones (Rubinstein's smoothing). Otherwise a device that a handful of
placements did not use could never be drawn again. Early on, uniform distributions are mixed in as
well.
"""

from __future__ import annotations

from functools import partial
from typing import Unpack

import numpy as np
from numpy.typing import NDArray

from loadmaster.base import checks
from loadmaster.judge.problem import Problem
from loadmaster.strategies.candidate import Candidate
from loadmaster.strategies.registry import strategy
from loadmaster.strategies.rivals.trials import TrialOptions, Trials, by_trials, first_largest

#: Placements drawn per update, and the share of them that is learned from.
BATCH = 20
ELITE = 0.1

#: Weight of what the elite says against the distribution it was drawn from.
SMOOTHING = 0.5

#: Share of uniform draws at first, falling to none.
EXPLORATION = 0.1


@strategy("cross-entropy", "distributions over devices that learn from the best draws (Post)")
def place(
    problem: Problem,
    *,
    batch: int = BATCH,
    elite: float = ELITE,
    smoothing: float = SMOOTHING,
    **shared: Unpack[TrialOptions],
) -> Candidate:
    """The best placement drawn from distributions that learn from the best.

    Parameters
    ----------
    batch : placements drawn between two updates.
    elite : share of them, the fastest, that an update learns from.
    smoothing : weight of an update against what was learned before.
    shared : see :class:`~loadmaster.strategies.rivals.trials.TrialOptions`.

    Raises
    ------
    InputError
        An option out of range.
    InfeasibleError
        No placement that was simulated fits.

    Examples
    --------
    >>> import loadmaster as lm
    >>> graph, cluster = lm.read("example:lenet"), lm.Cluster.preset("2xV100-NVLink")
    >>> few = lm.place(graph, cluster, "cross-entropy", steps=10)
    >>> lm.place(graph, cluster, "cross-entropy", steps=200).makespan <= few.makespan
    True
    """
    search = partial(
        draws,
        batch=checks.integer("batch", batch),
        elite=checks.share("elite", elite),
        smoothing=checks.share("smoothing", smoothing),
    )
    return by_trials(problem, "cross-entropy", search, **shared)


def draws(trials: Trials, *, batch: int, elite: float, smoothing: float) -> None:
    """Batches of placements, an update after each."""
    rng = np.random.default_rng(trials.problem.seed)
    uniform = trials.groups.allowed / trials.groups.allowed.sum(axis=1, keepdims=True)
    chances = uniform
    while trials.left:
        explored = EXPLORATION * trials.left / trials.steps
        mixed = (1 - explored) * chances + explored * uniform
        drawn: list[NDArray[np.int32]] = []
        costs: list[float] = []
        while len(drawn) < batch and trials.left:
            drawn.append(draw(mixed, rng))
            costs.append(trials.cost(drawn[-1]))
        best = np.argsort(costs, kind="stable")[: max(1, round(elite * len(costs)))]
        often = frequencies(np.stack(drawn)[best], chances.shape[1])
        chances = (1 - smoothing) * chances + smoothing * often


def draw(chances: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.int32]:
    """A device per row, by its chances."""
    until = np.cumsum(chances, axis=1)
    threshold = rng.random(len(chances)) * until[:, -1]
    return first_largest(until > threshold[:, None])


def frequencies(placements: NDArray[np.int32], n_devices: int) -> NDArray[np.float64]:
    """Frequency of each device for each group: float64 [n_groups, n_devices], rows sum to 1.

    >>> frequencies(np.array([[0, 1], [0, 0]], dtype=np.int32), 2).tolist()
    [[1.0, 0.0], [0.5, 0.5]]
    """
    often: NDArray[np.float64] = (placements[:, :, None] == np.arange(n_devices)).mean(axis=0)
    return often
