"""What a collective costs, counted again in plain Python from the routes of a cluster: hop by hop
for algorithms by hand, and at least by what must cross each cut of its devices.

A hop is a sender, a receiver and a share of the bytes; hops of a round are under way together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import combinations

import loadmaster as lm

Rounds = list[list[tuple[int, int, float]]]

#: How many of the passes, to reduce and to gather, each kind makes.
PASSES = {"all_reduce": 2, "reduce_scatter": 1, "all_gather": 1}


def seconds(cluster: lm.Cluster, rounds: Rounds, size: int) -> float:
    """The time of rounds, one after another: each lasts until its busiest channel is done."""
    total = 0.0
    for hops in rounds:
        latency, sending = defaultdict(float), defaultdict(float)
        for src, dst, share in hops:
            route = cluster.route(src, dst)
            for channel in route.channels:
                latency[channel] = max(latency[channel], route.latency)
                sending[channel] += share * size / route.bandwidth
        total += max(latency[c] + sending[c] for c in latency)
    return total


def ring(kind: str, order: Sequence[int], part: float = 1.0) -> Rounds:
    """Each device passes a piece on to the next."""
    k = len(order)
    hops = [(order[i], order[(i + 1) % k], part / k) for i in range(k)]
    return [hops] * (PASSES[kind] * (k - 1))


def together(*rings: Rounds) -> Rounds:
    """Rings of as many rounds, at the same time."""
    return [[hop for hops in rounds for hop in hops] for rounds in zip(*rings, strict=True)]


def halving(kind: str, devices: Sequence[int]) -> Rounds:
    """Each device keeps a half of the pieces that it has, again and again, and back."""
    k, left, rounds = len(devices), len(devices), []
    while left > 1:
        kept = (left + 1) // 2
        rounds.append([(devices[i], devices[(i + kept) % k], (left - kept) / k) for i in range(k)])
        left = kept
    return {"all_gather": rounds[::-1], "reduce_scatter": rounds}.get(kind, rounds + rounds[::-1])


def direct(kind: str, devices: Sequence[int]) -> Rounds:
    """Each device sends a piece to each other one."""
    k = len(devices)
    share = 1 / k**2 if kind == "all_to_all" else 1 / k
    hops = [(a, b, share) for a in devices for b in devices if a != b]
    if kind == "broadcast":
        return [[(a, b, share) for a, b, _ in hops if a == devices[0]], hops]
    return [hops] * PASSES.get(kind, 1)


def least_seconds(cluster: lm.Cluster, kind: str, devices: Sequence[int], size: int) -> float:
    """The seconds that no algorithm of any kind goes below: what must leave some of the devices
    for the others, over all links that lead there at once.
    """
    return max(
        _crossing(kind, devices, inside) * size / _bandwidth(cluster, inside)
        for inside in _some(range(cluster.n_devices), devices)
    )


def _some(all_devices: Sequence[int], members: Sequence[int]) -> Iterator[set[int]]:
    """Every set of devices that has some members and lacks some."""
    for n in range(1, len(all_devices)):
        for chosen in combinations(all_devices, n):
            if 0 < len(set(chosen) & set(members)) < len(members):
                yield set(chosen)


def _crossing(kind: str, devices: Sequence[int], inside: set[int]) -> float:
    """The share of the bytes that a set of devices must send to all others."""
    k, n = len(devices), len(inside & set(devices))
    return {
        "all_reduce": 1.0,
        "reduce_scatter": (k - n) / k,
        "all_gather": n / k,
        "all_to_all": n * (k - n) / k**2,
        "broadcast": float(devices[0] in inside),
    }[kind]


def _bandwidth(cluster: lm.Cluster, inside: set[int]) -> float:
    """Bytes per second that leave a set of devices: links that share a channel take turns."""
    names = {cluster.devices[d].name for d in inside}
    leading = [link for link in cluster.links if link.src in names and link.dst not in names]
    sums = []
    for end in (0, -1):
        widest: dict[str, float] = defaultdict(float)
        for link in leading:
            held = link.channels or (f"{link.src}->{link.dst}",)
            widest[held[end]] = max(widest[held[end]], link.bandwidth)
        sums.append(sum(widest.values()))
    return min(sums)
