"""Costs of a runtime beside ops and links: copies of senders, sessions, launches by a host."""

from __future__ import annotations

from dataclasses import dataclass

from loadmaster.base import checks
from loadmaster.base.errors import InputError


@dataclass(frozen=True)
class SendCost:
    """The cost of a message to the device that sends it: a copy, which takes the device's own time.

    After an op a device copies out what it sends, one message after another, before it takes the
    next op. A copy takes ``latency + bytes / bandwidth`` seconds. When it is done, the transfer is
    queued. So it is where processes share memory: the sender copies what it sends into that.

    Attributes
    ----------
    latency : float
        Seconds per message, those without data included.
    bandwidth : float
        B/s of the copy.

    Examples
    --------
    >>> import loadmaster as lm
    >>> cpu = lm.DeviceType("cpu", send_cost=lm.SendCost(7e-6, 10e9))
    >>> two = lm.Cluster.mesh(2, memory="1GiB", bandwidth=100e9, type=cpu)
    >>> graph = lm.OpGraph({"name": ["a", "b"]}, {"src": [0], "dst": [1], "bytes": [10**6]})
    >>> step = lm.simulate(graph, two, [0, 1], costs=[1e-3, 1e-3])
    >>> step.transfers.copied.round(6).tolist(), step.transfers.queued.round(6).tolist()
    ([0.001], [0.001107])
    """

    latency: float = 0.0
    bandwidth: float = 0.0

    def __post_init__(self) -> None:
        checks.not_negative("send_cost: latency", self.latency)
        checks.positive("send_cost: bandwidth", self.bandwidth)


@dataclass(frozen=True)
class SessionCost:
    """The cost of running a sub-model, beside its ops, to the device that runs it.

    A session of ONNX Runtime takes so long to begin and to end a run, and to bind what it reads and
    writes.

    Attributes
    ----------
    run : float
        Seconds per run.
    tensor : float
        Seconds per input and output that is bound.
    source : str
        Where the figures come from.

    Examples
    --------
    >>> import loadmaster as lm
    >>> round(lm.SessionCost(30e-6, 0.5e-6).seconds(4) * 1e6)
    32
    """

    run: float = 0.0
    tensor: float = 0.0
    source: str = ""

    def __post_init__(self) -> None:
        checks.not_negative("session_cost: run", self.run)
        checks.not_negative("session_cost: tensor", self.tensor)

    def seconds(self, tensors: int) -> float:
        """Seconds of a run that binds so many tensors."""
        return self.run + self.tensor * tensors


@dataclass(frozen=True)
class Dispatch:
    """The host's part of an op: a thread that launches ops one after another.

    The host launches every op that computes, and every member of a collective. It launches them in
    one sequence, that of the plan's priorities, where no op comes before one whose output it reads.
    It waits for nothing. An op starts no earlier than it is launched, and a device takes its ops as
    they were launched. That is how eager PyTorch runs a model on several GPUs of one process.

    Attributes
    ----------
    launch : float
        Seconds that the host needs for one launch.
    one_host : bool
        Whether one host launches the ops of all devices. Else each device has its own.
    source : str
        Where the figure comes from.

    Notes
    -----
    A launch is counted once. The times of ops are those of the device alone, so no type of a
    cluster with ``dispatch`` has a :attr:`DeviceType.launch`. Copies that a device sends
    (:class:`SendCost`) and collectives wait for no launch of their own, but a member of a
    collective is launched before it can arrive.

    Examples
    --------
    Two ops on two devices, launched by one host:

    >>> import loadmaster as lm
    >>> two = lm.Cluster.preset("2xV100-NVLink").with_dispatch(lm.Dispatch(5e-6))
    >>> graph = lm.OpGraph({"name": ["a", "b"]}, {"src": [], "dst": []})
    >>> lm.simulate(graph, two, [0, 1], costs=[1e-3, 1e-3]).start.tolist()
    [5e-06, 1e-05]
    """

    launch: float
    one_host: bool = True
    source: str = ""

    def __post_init__(self) -> None:
        checks.positive("dispatch: launch", self.launch)
        if not isinstance(self.one_host, bool):
            raise InputError(f"dispatch: one_host is {self.one_host!r}: wants True or False")
