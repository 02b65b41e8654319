"""MCMC on placements (FlexFlow: Jia, Zaharia and Aiken, "Beyond Data and Model Parallelism for Deep
Neural Networks", MLSys 2019, section 6.2).

A Metropolis walk: the proposal gives one group, drawn at random, another device, drawn at random;
it is symmetric, so a placement that costs c' is accepted over one that costs c with probability
min(1, exp(beta (c - c'))). Walks start, in turn, from contiguous layers and from a random
placement, with an equal part of the steps each; one that has found nothing better for half of its
part ends.

What differs: a configuration of FlexFlow also splits an op, so that data parallelism is one of its
starts; here a group has a device and no more (the method ``data-parallel`` is that start). Costs
are shares of what all ops take on one device, so that ``beta`` has no unit. FlexFlow simulates by
the change since the last proposal; here each is one simulation, counted as such.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Unpack

import numpy as np
from numpy.typing import NDArray

from loadmaster.base import checks
from loadmaster.judge.assignment import Assignment
from loadmaster.judge.problem import Problem
from loadmaster.strategies.candidate import Candidate
from loadmaster.strategies.registry import strategy
from loadmaster.strategies.rivals.trials import (
    Choices,
    TrialOptions,
    Trials,
    by_trials,
    first_largest,
)
from loadmaster.strategies.simple.layer_ranges import layers, ranges

#: Inverse temperature per share of one device's time.
BETA = 1000.0


@strategy("mcmc", "a Metropolis walk over placements of groups (FlexFlow)")
def place(
    problem: Problem,
    *,
    beta: float = BETA,
    warm_start: Assignment | None = None,
    **shared: Unpack[TrialOptions],
) -> Candidate:
    """The best placement of a Metropolis walk.

    Parameters
    ----------
    beta : inverse temperature: a step slower by a share s of one device's time is accepted with
        probability exp(-beta s).
    warm_start : a placement from which another walk begins, before the two.
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
    >>> few = lm.place(graph, cluster, "mcmc", steps=10)
    >>> lm.place(graph, cluster, "mcmc", steps=200).makespan <= few.makespan
    True
    """
    return by_trials(
        problem,
        "mcmc",
        partial(walks, beta=checks.positive("beta", beta), warm_start=warm_start),
        **shared,
    )


def walks(trials: Trials, *, beta: float, warm_start: Assignment | None = None) -> None:
    """A walk from each start, with equal parts of what is left of the steps."""
    problem, groups = trials.problem, trials.groups
    rng = np.random.default_rng(problem.seed)
    warm = [] if warm_start is None else [by_most_time(groups, warm_start.devices)]
    starts = (*warm, by_layers(groups), at_random(groups, rng))
    for i, start in enumerate(starts):
        part = trials.left // (len(starts) - i)
        if part:
            walk(trials, start, part, beta, rng)


def walk(
    trials: Trials, devices: NDArray[np.int32], part: int, beta: float, rng: np.random.Generator
) -> None:
    """Metropolis from one placement, which is overwritten, for at most ``part`` steps."""
    groups = trials.groups
    free = groups.free
    current = least = trials.cost(devices)
    improved = 0
    for step in range(1, part):
        if not trials.left or 2 * (step - improved) > part:
            break
        group = int(rng.choice(free))
        before = int(devices[group])
        others = np.flatnonzero(groups.allowed[group])
        devices[group] = rng.choice(others[others != before])
        proposed = trials.cost(devices)
        rise = beta * (proposed - current) / trials.serial if trials.serial else 0.0
        if rise <= 0 or rng.random() < math.exp(-rise):
            current = proposed
        else:
            devices[group] = before
        if current < least:
            least, improved = current, step


def by_layers(groups: Choices) -> NDArray[np.int32]:
    """Each group where contiguous layers have most of its time, of what it allows."""
    problem = groups.problem
    unlimited = np.full(problem.cluster.n_devices, np.iinfo(np.int64).max, dtype=np.uint64)
    layer = layers(problem).layer
    devices = ranges(problem, layer, problem.reduced.held_at_peak, unlimited)
    return by_most_time(groups, devices)


def by_most_time(groups: Choices, devices: NDArray[np.int32]) -> NDArray[np.int32]:
    """Each group where a placement of the reduced ops has most of its time, of what it allows."""
    problem = groups.problem
    per_device = [
        groups.sum(np.where(devices == d, problem.op_time, 0.0))
        for d in range(problem.cluster.n_devices)
    ]
    there = np.stack(per_device, axis=1)
    return first_largest(np.where(groups.allowed, there, -1.0))


def at_random(groups: Choices, rng: np.random.Generator) -> NDArray[np.int32]:
    """A device per group, uniform over those it allows."""
    draws = np.where(groups.allowed, rng.random(groups.allowed.shape), -1.0)
    return first_largest(draws)
