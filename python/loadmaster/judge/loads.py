"""For how long a step of a stream keeps each device, host and channel busy.

Steps of a stream cannot come faster than the busiest of them works one off. What stays from step
to step and is never written, such as a weight of a model that infers, is sent once for all steps:
it is no load. In training it is sent anew in each step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

import loadmaster.fast as fast
from loadmaster.judge.verdict import Limit, Resource

if TYPE_CHECKING:
    from loadmaster.judge.problem import Problem


@dataclass(frozen=True)
class Loads:
    """Seconds per step.

    Attributes
    ----------
    device : float64 [n_devices]
        Of compute, of copying out what is sent, and of shares of collectives.
    host : float64 [n_hosts]
        Of launches; empty where these take no time.
    channel : float64 [n_channels]
        Of transfers and collectives.
    """

    device: NDArray[np.float64]
    host: NDArray[np.float64]
    channel: NDArray[np.float64]

    @classmethod
    def of(cls, problem: Problem, devices: NDArray[np.int32], schedule: fast.Schedule) -> Loads:
        """Of a step of a placement of the reduced ops."""
        sent = schedule.transfers()
        once = _among(sent["tensor"], problem.sent_once)
        channel = schedule.channel_busy.copy()
        seconds = sent["finish"] - sent["start"]
        pair = sent["src"].astype(np.int64) * len(problem.memory) + sent["dst"]
        for one in np.unique(pair[once]).tolist():
            route = problem.links.route(*divmod(one, len(problem.memory)))[2]
            channel[route] -= seconds[once & (pair == one)].sum()
        copying = np.where(once, 0.0, sent["queued"] - sent["copied"])
        device = schedule.device_busy + np.bincount(sent["src"], copying, len(problem.memory))
        done = schedule.shares()
        device += np.bincount(devices[done["op"]], done["finish"] - done["start"], len(device))
        return cls(device, _hosts(problem, devices), channel)

    @property
    def busiest(self) -> float:
        """Seconds of the busiest of them all."""
        return max(
            float(seconds.max(initial=0.0)) for seconds in (self.device, self.host, self.channel)
        )

    def limit(self, problem: Problem) -> Limit:
        """The busiest of them all."""
        if self.device.max(initial=0.0) >= self.busiest:
            return Limit(Resource.DEVICE, problem.cluster.devices[int(self.device.argmax())].name)
        if self.host.max(initial=0.0) >= self.busiest:
            return Limit(Resource.HOST if len(self.host) == 1 else Resource.HOSTS)
        return Limit(Resource.CHANNEL, problem.cluster.channels[int(self.channel.argmax())])


def _among(ids: NDArray[np.int64], some: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Mask of the ids that are among some, which are sorted."""
    if not len(some):
        return np.zeros(len(ids), dtype=bool)
    nearest = np.minimum(np.searchsorted(some, ids), len(some) - 1)
    return np.asarray(some[nearest] == ids)


def _hosts(problem: Problem, devices: NDArray[np.int32]) -> NDArray[np.float64]:
    launched, dispatch = problem.dispatch, problem.cluster.dispatch
    if launched is None or dispatch is None:
        return np.empty(0)
    if dispatch.one_host:
        return np.array([launched.sum()])
    return np.bincount(devices, launched, problem.cluster.n_devices).astype(np.float64)
