"""Measuring what this machine's runtime costs: copies that a sender makes, calls that a host makes.

Times are 10th percentiles: what disturbs a measurement only makes it longer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadmaster.base.checks import is_integer
from loadmaster.base.errors import InputError
from loadmaster.base.run_queue import waited_for_a_core
from loadmaster.base.text import Printed, aligned
from loadmaster.base.units import format_bytes, format_seconds
from loadmaster.base.warnings import warn
from loadmaster.costs.links import fit_links
from loadmaster.costs.transfers import TransferTimes
from loadmaster.model.cluster import Cluster
from loadmaster.model.graph import OpGraph
from loadmaster.model.runtime import Dispatch, SendCost

#: Sizes of copies, in bytes: 1 KiB to 64 MiB.
SIZES = tuple(2**k for k in range(10, 27))

#: Largest size in bytes: the source holds that much, and shared memory twice that.
_LARGEST = 2**31

#: Number of copies of a size: many of small ones, few of large ones, which take long.
_MOST, _LEAST, _BYTES = 200, 24, 2**23

#: Times of a call, and calls in a row that each is the mean of.
_TIMES, _IN_A_ROW = 60, 50

#: The share of the time waited for a core from which on a measurement is not to be trusted.
BUSY = 0.02

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class DeviceCosts(Printed):
    """Costs of sending and launching, as measured.

    Attributes
    ----------
    send_cost : SendCost
        The line through the copies that has the least relative errors.
    dispatch : Dispatch
        The mean over the calls.
    sizes, seconds : float64 [n]
        Bytes of copies, and the 10th percentile of the times of each size.
    calls : dict of str to float
        Small ops that were called, and the 10th percentile of seconds per call.
    by : str
        What was called: ``"torch on cuda"``, ``"torch on cpu"`` or ``"numpy"``.
    delay : float
        Share of the time of measuring for which this thread was ready and had no core.
    """

    send_cost: SendCost
    dispatch: Dispatch
    sizes: Floats
    seconds: Floats
    calls: dict[str, float]
    by: str
    delay: float

    @property
    def is_busy(self) -> bool:
        """True if the machine was too busy to trust the figures."""
        return self.delay > BUSY

    @property
    def disturbed(self) -> str:
        """The disturbance of the measurement, in words."""
        return f"this thread waited for a core for {self.delay:.1%} of the time"

    def sending(self, cluster: Cluster, device_type: str | None = None) -> Cluster:
        """The cluster whose devices of a type pay for sending as this machine does.

        Raises
        ------
        InputError
            No such type; none is named, and the cluster has several.
        """
        known = [t.name for t in cluster.types]
        name = known[0] if device_type is None and len(known) == 1 else device_type
        if name not in known:
            named = "names no type" if name is None else f"type {name!r} is not there"
            raise InputError(f"send_cost {named}: the cluster has {', '.join(known)}")
        types = [
            replace(t, send_cost=self.send_cost) if t.name == name else t for t in cluster.types
        ]
        return cluster.with_types(types)

    def launching(self, cluster: Cluster) -> Cluster:
        """The cluster where one host launches all ops, as this machine would."""
        return cluster.with_dispatch(self.dispatch)

    @property
    def toml(self) -> str:
        """Lines for a cluster's TOML: the first in a ``[[type]]``, the others for themselves."""
        latency, launch = self.send_cost.latency * 1e6, self.dispatch.launch * 1e6
        speed = self.send_cost.bandwidth / 1e9
        return (
            f'send_cost = {{ latency = "{latency:.3g} us", bandwidth = "{speed:.3g} GB/s" }}\n\n'
            f'[dispatch]\nlaunch = "{launch:.3g} us"\nsource = "{self.dispatch.source}"\n'
        )

    def to_document(self) -> dict[str, Any]:
        """As plain data for JSON: seconds, bytes, B/s."""
        return {
            "send_cost": {"latency": self.send_cost.latency, "bandwidth": self.send_cost.bandwidth},
            "dispatch": self.dispatch.launch,
            "copies": {"bytes": self.sizes.tolist(), "seconds": self.seconds.tolist()},
            "calls": dict(self.calls),
            "by": self.by,
            "delay": self.delay,
        }

    def __str__(self) -> str:
        rows = [("copy of", "took", "at", "the line says")]
        for size, seconds in zip(self.sizes.tolist(), self.seconds.tolist(), strict=True):
            line = self.send_cost.latency + size / self.send_cost.bandwidth
            speed = f"{size / seconds / 1e9:.3g} GB/s"
            rows.append(
                (format_bytes(int(size)), format_seconds(seconds), speed, format_seconds(line))
            )
        calls = ", ".join(f"{name} {format_seconds(took)}" for name, took in self.calls.items())
        busy = ": measure again when nothing else runs" if self.is_busy else ""
        said = [f"calls of {self.by}: {calls}", self.disturbed + busy]
        return "\n".join([*aligned(rows), *said, "", self.toml.rstrip()])


def measure_device(
    sizes: Sequence[int] = SIZES,
    graph: OpGraph | None = None,
    *,
    progress: Callable[[str], None] | None = None,
) -> DeviceCosts:
    """Times what a sender and a host pay on this machine.

    A sender's copies go from memory of its own into memory that processes share, each to a place
    that it has not written for long, as in a step. A host's calls are small ops of PyTorch, on a
    GPU if it sees one (then nothing waits for the GPU), else on the CPU; of numpy where PyTorch is
    missing. A launch takes as long as such a call: what they compute takes next to nothing.

    Parameters
    ----------
    sizes : sequence of int
        Bytes of copies, of at least two sizes.
    graph : OpGraph, optional
        The bandwidth is the one that suits its tensors best; if absent, all sizes alike. Caches
        make small copies several times as fast as large ones.
    progress : callable, optional
        Called with a text that names the measurement.

    Returns
    -------
    DeviceCosts
        Its ``send_cost`` goes into a device type, its ``dispatch`` into a cluster.

    Raises
    ------
    InputError
        Sizes that are no positive integers, or fewer than two.

    Notes
    -----
    Ops that were timed on a CPU call by call have the call in their times. Then ``dispatch`` would
    count it twice; it is for times of kernels alone.

    Examples
    --------
    >>> found = measure_device([1024, 65536])
    >>> found.send_cost.bandwidth > 0, found.dispatch.launch > 0, found.seconds.shape
    (True, True, (2,))
    """
    if len(set(sizes)) < 2 or not all(is_integer(s) and 0 < s <= _LARGEST for s in sizes):
        raise InputError(
            f"sizes are {list(sizes)!r}: wants two or more, integers from 1 to {_LARGEST} bytes"
        )
    tell = progress or (lambda stage: None)
    waited = waited_for_a_core()
    began = time.perf_counter()
    waited()
    whole = sorted({int(size) for size in sizes})
    seconds = np.array(list(_copies(whole, tell)))
    tell("calls")
    by, ops = _small_ops()
    calls = {name: _per_call(call, wait) for name, (call, wait) in ops.items()}
    delay = waited() / 1e9 / (time.perf_counter() - began)
    fit = fit_links(TransferTimes.of({"copy": (whole, seconds)}), graph).fits[0]
    source = f"calls of {by}, 10th percentiles"
    measured = DeviceCosts(
        SendCost(fit.latency, fit.bandwidth),
        Dispatch(float(np.mean(list(calls.values()))), source=source),
        np.array(whole, dtype=np.float64),
        seconds,
        calls,
        by,
        min(delay, 1.0),
    )
    if measured.is_busy:
        warn(f"the machine is too busy to be measured: {measured.disturbed}")
    return measured


def _usual(seconds: Sequence[float]) -> float:
    """The 10th percentile; at least a nanosecond, where the clock did not move."""
    return max(float(np.percentile(seconds, 10)), 1e-9)


def _copies(sizes: Sequence[int], tell: Callable[[str], None]) -> Iterator[float]:
    """Usual seconds of a copy of each size into shared memory."""
    source = np.ones(max(sizes), dtype=np.uint8)
    with _shared(2 * max(sizes)) as block:
        for size in sizes:
            tell(f"copies of {format_bytes(size)}")
            repeats = min(_MOST, max(_LEAST, _BYTES // size))
            mine, last = source[:size], len(block) - size
            seconds = []
            for i in range(repeats):
                at = i * last // (repeats - 1)
                began = time.perf_counter()
                np.copyto(block[at : at + size], mine)
                seconds.append(time.perf_counter() - began)
            yield _usual(seconds)


@contextmanager
def _shared(size: int) -> Iterator[NDArray[np.uint8]]:
    """Memory that processes can share."""
    from multiprocessing.shared_memory import SharedMemory

    memory = SharedMemory(create=True, size=size)
    try:
        block = np.ndarray((size,), dtype=np.uint8, buffer=memory.buf)
        block[:] = 0
        yield block
    finally:
        del block
        memory.unlink()
        # The frames of an error that is under way still hold the block.
        with suppress(BufferError):
            memory.close()


#: A call, and what waits until all that it started is done.
_Op = tuple[Callable[[], object], Callable[[], None]]


def _per_call(call: Callable[[], object], wait: Callable[[], None]) -> float:
    """Usual seconds of a call, of several in a row; what they start is waited for in between."""
    seconds = []
    for _ in range(_TIMES + 1):
        wait()
        began = time.perf_counter()
        for _ in range(_IN_A_ROW):
            call()
        seconds.append((time.perf_counter() - began) / _IN_A_ROW)
    # The first row warms up.
    return _usual(seconds[1:])


def _small_ops() -> tuple[str, dict[str, _Op]]:
    """The calls that are measured, and small ops by name."""
    if find_spec("torch") is None:
        a, b = np.ones((2, 8, 8), dtype=np.float32)
        of_numpy = {
            "add": lambda: np.add(a, b),
            "mul": lambda: np.multiply(a, b),
            "maximum": lambda: np.maximum(a, b),
            "matmul": lambda: np.matmul(a, b),
        }
        return "numpy", {name: (call, lambda: None) for name, call in of_numpy.items()}
    import torch as installed

    torch: Any = installed
    is_cuda = torch.cuda.is_available()
    at = "cuda" if is_cuda else "cpu"
    x, y = torch.ones((2, 8, 8), device=at)
    of_torch = {
        "add": lambda: torch.add(x, y),
        "mul": lambda: torch.mul(x, y),
        "relu": lambda: torch.relu(x),
        "mm": lambda: torch.mm(x, y),
    }
    wait = torch.cuda.synchronize if is_cuda else lambda: None
    return f"torch on {at}", {name: (call, wait) for name, call in of_torch.items()}
