"""A placement policy learned by policy gradients, in the manner of HRL (Mirhoseini et al., "A
Hierarchical Model for Device Placement", ICLR 2018) and Placeto (Addanki et al., "Placeto: Learning
Generalizable Device Placement Algorithms for Distributed Machine Learning", NeurIPS 2019).

The policy places one group after another, in the order in which they run, and sees where their
inputs are: for each device a score from a few features of the group, the device and what has been
placed so far, by one hidden layer that all groups and devices share, and a softmax over devices.
It is learned from scratch for each problem by REINFORCE: placements are drawn and simulated, each
is rewarded with minus the square root of its step time (HRL), and the policy moves towards those
above a running mean (the baseline), by Adam.

What differs: groups come from a coarsener; HRL learns them by a second policy. The network is one
hidden layer in numpy over the placed inputs; HRL has a sequence-to-sequence network with attention,
Placeto a graph embedding. The simulator answers in milliseconds, and a larger network would take
longer than the steps it asks for. Advantages are scaled to unit variance within a batch, so that
the learning rate fits any graph.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Unpack

import numpy as np
from numpy.typing import NDArray

import loadmaster.fast as fast
from loadmaster.base import checks
from loadmaster.judge.problem import Problem
from loadmaster.strategies.candidate import Candidate
from loadmaster.strategies.registry import strategy
from loadmaster.strategies.rivals.trials import Choices, TrialOptions, Trials, by_trials

#: Placements drawn per update of the policy, and its learning rate.
BATCH = 10
LEARNING_RATE = 0.03

#: Units of the hidden layer.
HIDDEN = 16

#: Features of a group on a device; see :func:`observed`.
N_FEATURES = 6

#: Decay with which the baseline follows the rewards.
MEMORY = 0.9

#: Adam's decay rates and the least it divides by.
ADAM = (0.9, 0.999, 1e-8)

Floats = NDArray[np.float64]


@strategy(
    "policy-gradient", "a policy that learns to place groups from simulated steps (HRL, Placeto)"
)
def place(
    problem: Problem,
    *,
    batch: int = BATCH,
    learning_rate: float = LEARNING_RATE,
    **shared: Unpack[TrialOptions],
) -> Candidate:
    """The best placement drawn from a policy that learns from its draws.

    Parameters
    ----------
    batch : placements drawn per update of the policy.
    learning_rate : of Adam.
    shared : see :class:`~loadmaster.strategies.rivals.trials.TrialOptions`.

    Raises
    ------
    InputError
        An option out of range.
    InfeasibleError
        No placement that was simulated fits.

    Notes
    -----
    Besides its simulation each placement takes O(groups x devices + edges between groups) in numpy.

    Examples
    --------
    >>> import loadmaster as lm
    >>> graph, cluster = lm.read("example:lenet"), lm.Cluster.preset("2xV100-NVLink")
    >>> few = lm.place(graph, cluster, "policy-gradient", steps=10)
    >>> lm.place(graph, cluster, "policy-gradient", steps=200).makespan <= few.makespan
    True
    """
    search = partial(
        learn,
        batch=checks.integer("batch", batch),
        rate=checks.positive("learning_rate", learning_rate),
    )
    return by_trials(problem, "policy-gradient", search, **shared)


def learn(trials: Trials, *, batch: int, rate: float) -> None:
    """REINFORCE: batches of placements, an update of the policy after each."""
    rng = np.random.default_rng(trials.problem.seed)
    seen = Observation.of(trials.groups)
    policy = Policy.make(rng)
    optimizer = Adam(policy.weights, rate)
    baseline: float | None = None
    while trials.left:
        episode = Episode.play(seen, policy, min(batch, trials.left), rng)
        costs: list[float] = []
        for devices in episode.devices:
            if not trials.left:
                return
            costs.append(trials.cost(devices))
        rewards = -np.sqrt(np.array(costs))
        mean = float(rewards.mean())
        baseline = mean if baseline is None else MEMORY * baseline + (1 - MEMORY) * mean
        spread = float(rewards.std())
        if spread > 0:
            optimizer.ascend(policy.gradient(episode, (rewards - baseline) / spread))


@dataclass(frozen=True)
class Observation:
    """The observation that the policy has of a problem.

    Attributes
    ----------
    allowed : bool [n_groups, n_devices]
    work : float64 [n_groups, n_devices]
        Seconds of each group on each device, as a multiple of an even share of all work.
    held : float64 [n_groups, n_devices]
        Bytes of each group, as a share of each device's memory.
    urgency : float64 [n_groups]
        Longest path from the group to the end, as a share of the longest of all.
    inputs : list of (int [n], float64 [n], float64 [n])
        Per group the groups it reads from, the number of tensors and their bytes.
    latency, per_byte : float64 [n_devices, n_devices]
        Of the routes, in units of an even share of all work; 0 on the diagonal.
    """

    allowed: NDArray[np.bool_]
    work: Floats
    held: Floats
    urgency: Floats
    inputs: list[tuple[NDArray[np.intp], Floats, Floats]]
    latency: Floats
    per_byte: Floats

    @classmethod
    def of(cls, groups: Choices) -> Observation:
        """Figures of groups, devices and routes, free of units."""
        problem = groups.problem
        cluster = problem.cluster
        types = cluster.device_types
        seconds = groups.time[:, types]
        even = float(seconds.mean(axis=1).sum()) / cluster.n_devices or 1.0
        _, b_level = fast.levels(problem.weights)
        urgency = np.zeros(groups.n_groups)
        np.maximum.at(urgency, groups.group, b_level)
        latency, per_byte = np.zeros((2, cluster.n_devices, cluster.n_devices))
        for a in range(cluster.n_devices):
            for b in range(cluster.n_devices):
                if a != b:
                    route = cluster.route(a, b)
                    latency[a, b] = route.latency / even
                    per_byte[a, b] = 1 / route.bandwidth / even
        capacity = np.maximum(problem.capacity.astype(np.float64), 1.0)
        return cls(
            groups.allowed,
            seconds / even,
            groups.charge(problem.reduced.held_at_peak)[:, None] / capacity,
            urgency / (float(urgency.max()) or 1.0),
            _inputs(groups),
            latency,
            per_byte,
        )


def _inputs(groups: Choices) -> list[tuple[NDArray[np.intp], Floats, Floats]]:
    """Inputs of each group from groups placed before it: from which, how many tensors and bytes."""
    src, dst, tensor, size, _ = fast.edges(groups.problem.graph)
    a, b = groups.group[src], groups.group[dst]
    # A tensor counts once per group that reads it, messages without data once per pair.
    _, once = np.unique(np.stack([b, a, tensor]), axis=1, return_index=True)
    once = once[a[once] < b[once]]
    pairs, which = np.unique(np.stack([b[once], a[once]]), axis=1, return_inverse=True)
    which, n = which.reshape(-1), pairs.shape[1]
    tensors = np.bincount(which, minlength=n).astype(np.float64)
    bytes_ = np.bincount(which, weights=size[once], minlength=n).astype(np.float64)
    cut = np.searchsorted(pairs[0], np.arange(groups.n_groups + 1))
    return [(pairs[1, i:j].astype(np.intp), tensors[i:j], bytes_[i:j]) for i, j in pairwise(cut)]


@dataclass(frozen=True)
class Policy:
    """Scores of devices: one hidden layer of tanh, the same for every group and device.

    ``weights`` are those of the hidden layer [n_features, n_hidden], its bias [n_hidden], and those
    of the score [n_hidden]; the last begin at 0, so that the first draws are uniform.
    """

    weights: tuple[Floats, Floats, Floats]

    @classmethod
    def make(cls, rng: np.random.Generator) -> Policy:
        """Random features of the features, scores of 0."""
        into = rng.standard_normal((N_FEATURES, HIDDEN)) / np.sqrt(N_FEATURES)
        return cls((into, np.zeros(HIDDEN), np.zeros(HIDDEN)))

    def hidden(self, features: Floats) -> Floats:
        """[..., n_features] -> [..., n_hidden]."""
        into, bias, _ = self.weights
        hidden: Floats = np.tanh(features @ into + bias)
        return hidden

    def chances(self, features: Floats, allowed: NDArray[np.bool_]) -> Floats:
        """Softmax of the scores over the last axis but one: [..., n_devices, n_features] ->
        [..., n_devices].
        """
        score = np.where(allowed, self.hidden(features) @ self.weights[2], -np.inf)
        likely = np.exp(score - score.max(axis=-1, keepdims=True))
        chances: Floats = likely / likely.sum(axis=-1, keepdims=True)
        return chances

    def gradient(self, episode: Episode, advantage: Floats) -> tuple[Floats, Floats, Floats]:
        """Of the mean of advantage times log-likelihood over the placements of an episode.

        For a softmax the derivative by a score is 1 for the device taken, less its chance.
        """
        into, _, out = self.weights
        hidden = self.hidden(episode.features)
        taken = episode.devices.T[:, :, None] == np.arange(episode.chances.shape[2])
        by_score = (taken - episode.chances) * advantage[None, :, None] / len(advantage)
        by_hidden = by_score[..., None] * out * (1 - hidden**2)
        axes = [0, 1, 2]
        return (
            np.tensordot(episode.features, by_hidden, (axes, axes)).reshape(into.shape),
            by_hidden.sum(axis=(0, 1, 2)),
            np.tensordot(by_score, hidden, (axes, axes)),
        )


@dataclass(frozen=True)
class Episode:
    """Placements drawn from a policy, with what it saw.

    Attributes
    ----------
    devices : int32 [n_drawn, n_groups]
    features : float64 [n_groups, n_drawn, n_devices, n_features]
    chances : float64 [n_groups, n_drawn, n_devices]
    """

    devices: NDArray[np.int32]
    features: Floats
    chances: Floats

    @classmethod
    def play(cls, seen: Observation, policy: Policy, n: int, rng: np.random.Generator) -> Episode:
        """Places the groups of ``n`` placements, one group after another."""
        n_groups, n_devices = seen.allowed.shape
        devices = np.zeros((n, n_groups), dtype=np.int32)
        features = np.zeros((n_groups, n, n_devices, N_FEATURES))
        chances = np.zeros((n_groups, n, n_devices))
        load, held = np.zeros((2, n, n_devices))
        everyone = np.arange(n)
        for g in range(n_groups):
            features[g] = observed(seen, g, devices, load, held)
            chances[g] = policy.chances(features[g], seen.allowed[g])
            until = np.cumsum(chances[g], axis=1)
            chosen = np.argmax(until > rng.random((n, 1)) * until[:, -1:], axis=1)
            devices[:, g] = chosen
            load[everyone, chosen] += seen.work[g, chosen]
            held[everyone, chosen] += seen.held[g, chosen]
        return cls(devices, features, chances)


def observed(
    seen: Observation, g: int, devices: NDArray[np.int32], load: Floats, held: Floats
) -> Floats:
    """Features of a group on each device: float64 [n_drawn, n_devices, n_features].

    Seconds to bring its inputs there, seconds it computes there (both saturating, as shares of an
    even share of all work), what the device has computed so far against the mean, the share of its
    memory that would be taken, and the first and the third times the group's urgency.

    Parameters
    ----------
    devices : int32 [n_drawn, n_groups]
        Where the groups before it are.
    load, held : float64 [n_drawn, n_devices]
        Work and memory placed so far, in the units of ``seen``.
    """
    sources, tensors, bytes_ = seen.inputs[g]
    at = devices[:, sources]
    bring = (
        tensors[None, :, None] * seen.latency[at] + bytes_[None, :, None] * seen.per_byte[at]
    ).sum(axis=1)
    moved = np.log1p(10 * bring)
    relative = load - load.mean(axis=1, keepdims=True)
    work = np.broadcast_to(np.log1p(10 * seen.work[g]), load.shape)
    full = held + seen.held[g]
    urgent = seen.urgency[g]
    return np.stack([moved, work, relative, full, moved * urgent, relative * urgent], axis=-1)


class Adam:
    """Adam (Kingma and Ba 2015), ascending, in place."""

    def __init__(self, weights: tuple[Floats, ...], rate: float) -> None:
        self.weights = weights
        self.rate = rate
        self.step = 0
        self.mean = [np.zeros_like(w) for w in weights]
        self.square = [np.zeros_like(w) for w in weights]

    def ascend(self, gradient: tuple[Floats, ...]) -> None:
        """One step along a gradient."""
        slow, slower, least = ADAM
        self.step += 1
        for w, g, m, s in zip(self.weights, gradient, self.mean, self.square, strict=True):
            m += (1 - slow) * (g - m)
            s += (1 - slower) * (g * g - s)
            unbiased = m / (1 - slow**self.step)
            w += self.rate * unbiased / (np.sqrt(s / (1 - slower**self.step)) + least)
