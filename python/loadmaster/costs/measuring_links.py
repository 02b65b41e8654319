"""Measuring transfers between the devices of this machine: processes on its CPUs, and GPUs.

One way takes half the time of a round trip, which one clock measures.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, BinaryIO

from numpy.typing import ArrayLike

from loadmaster.base.checks import is_integer
from loadmaster.base.errors import InputError, LoadmasterError
from loadmaster.base.units import format_bytes
from loadmaster.costs.transfers import TransferTimes

#: Ways between two processes.
WAYS = ("pipe", "unix_socket", "tcp", "shared_memory")

#: Sizes of transfers, in bytes: 1 KiB to 64 MiB.
SIZES = tuple(2**k for k in range(10, 27))

#: Largest size in bytes: two processes and a shared block hold that much each.
_LARGEST = 2**32

#: Seconds for all transfers of one method between one pair; then the measurement is given up.
PATIENCE = 60.0

#: Number of repeats: many for small transfers, few for large ones, which take long.
_MOST, _LEAST, _BYTES = 200, 20, 2**23

#: Takes bytes and a number of repeats; returns the seconds of each round trip.
RoundTrips = Callable[[int, int], list[float]]


def measure_links(
    ways: Sequence[str] = WAYS,
    sizes: Sequence[int] = SIZES,
    *,
    progress: Callable[[str], None] | None = None,
) -> TransferTimes:
    """Times transfers between local devices: two processes, and every pair of GPUs and the host.

    Parameters
    ----------
    ways : sequence of str
        Methods of transfer between two processes: any of ``"pipe"``, ``"unix_socket"``,
        ``"tcp"``, ``"shared_memory"``. Their rows name no devices.
    sizes : sequence of int
        Bytes.
    progress : callable, optional
        Called with a text that names the measurement.

    Returns
    -------
    TransferTimes
        For :func:`loadmaster.costs.fit_links`. Where PyTorch is installed and sees GPUs, there are
        rows between ``cpu`` and ``gpu0``, ``gpu0`` and ``gpu1`` and so on, by the method ``copy``
        (from pinned memory).

    Raises
    ------
    InputError
        An unknown way, or sizes that are no positive integers.

    Examples
    --------
    >>> times = measure_links(["pipe"], [1024, 65536])
    >>> bool((times.seconds > 0).all()), sorted(set(times.bytes.tolist()))
    (True, [1024.0, 65536.0])
    """
    unknown = [way for way in ways if way not in WAYS]
    if unknown:
        raise InputError(f"no way is named {unknown[0]!r}; there are {', '.join(WAYS)}")
    if not sizes or not all(is_integer(s) and 0 < s <= _LARGEST for s in sizes):
        raise InputError(f"sizes are {list(sizes)!r}: wants bytes, integers from 1 to {_LARGEST}")
    sizes = [int(size) for size in sizes]
    tell = progress or (lambda stage: None)
    rows: dict[str | tuple[str, str, str], tuple[ArrayLike, ArrayLike]] = {}
    for way in ways:
        with _process(way, max(sizes)) as trips:
            rows[way] = _timed(trips, sizes, way, tell)
    for src, dst, copy in _gpu_pairs():
        rows[src, dst, "copy"] = _timed(copy, sizes, f"{src} -> {dst}", tell)
    return TransferTimes.of(rows)


def _timed(
    trips: RoundTrips, sizes: Sequence[int], link: str, tell: Callable[[str], None]
) -> tuple[list[float], list[float]]:
    bytes_: list[float] = []
    seconds: list[float] = []
    for size in sizes:
        tell(f"{link}, {format_bytes(size)}")
        repeats = min(_MOST, max(_LEAST, _BYTES // size))
        trips(size, 2)  # Warms up.
        for taken in trips(size, repeats):
            bytes_.append(size)
            # The clock did not move: the time is below its resolution.
            seconds.append(max(taken / 2, 1e-9))
    return bytes_, seconds


# -- processes -----------------------------------------------------------------------------------


@dataclass
class _Connection:
    """Both ends of the connection between two processes, and their shared block, if any."""

    incoming: BinaryIO
    outgoing: BinaryIO
    block: memoryview | None = None

    def trips(self, size: int, repeats: int) -> list[float]:
        from loadmaster.costs.echo import HEADER

        mine = bytearray(size)
        self.outgoing.write(HEADER.pack(size, repeats))
        self.outgoing.flush()
        seconds = []
        for _ in range(repeats):
            began = time.perf_counter()
            self._there_and_back(mine)
            seconds.append(time.perf_counter() - began)
        return seconds

    def _there_and_back(self, mine: bytearray) -> None:
        from loadmaster.costs.echo import fill

        if self.block is None:
            self.outgoing.write(mine)
            self.outgoing.flush()
            fill(self.incoming, mine)
            return
        self.block[: len(mine)] = mine
        self.outgoing.write(b"!")
        self.outgoing.flush()
        if not self.incoming.read(1):
            raise EOFError("the other end of the transfer is gone")
        mine[:] = self.block[: len(mine)]


@contextmanager
def _process(way: str, most: int) -> Iterator[RoundTrips]:
    """A process that sends back each message, alive while the ``with`` block runs."""
    with ExitStack() as stack:
        try:
            yield _joined(way, most, stack).trips
        except (OSError, EOFError) as error:
            raise LoadmasterError(
                f"measuring by {way}: the other process ended or took more than {PATIENCE:.0f} s: "
                f"{error}"
            ) from error


def _joined(way: str, most: int, stack: ExitStack) -> _Connection:
    if way in ("pipe", "shared_memory"):
        block = None
        address = ""
        if way == "shared_memory":
            from multiprocessing.shared_memory import SharedMemory

            memory = SharedMemory(create=True, size=most)
            stack.callback(memory.unlink)
            stack.callback(memory.close)
            address = memory.name
            assert memory.buf is not None
            block = memoryview(memory.buf)
            stack.callback(block.release)
        child = _started(way, address, stack)
        assert child.stdin is not None
        assert child.stdout is not None
        return _Connection(child.stdout, child.stdin, block)  # type: ignore[arg-type]
    import socket

    family = socket.AF_INET if way == "tcp" else socket.AF_UNIX
    listening = stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
    if way == "tcp":
        listening.bind(("127.0.0.1", 0))
        address = str(listening.getsockname()[1])
    else:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="loadmaster-"))
        address = os.path.join(folder, "socket")
        listening.bind(address)
    listening.listen(1)
    listening.settimeout(PATIENCE)
    _started(way, address, stack)
    line = stack.enter_context(listening.accept()[0])
    if way == "tcp":
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    incoming = stack.enter_context(line.makefile("rb"))
    return _Connection(incoming, stack.enter_context(line.makefile("wb")))


def _started(way: str, address: str, stack: ExitStack) -> subprocess.Popen[bytes]:
    """The other process; it is stopped when the stack is left, or when it takes too long."""
    paths = os.pathsep.join(path for path in sys.path if path)
    child = subprocess.Popen(
        [sys.executable, "-m", "loadmaster.costs.echo", way, address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": paths},
        start_new_session=True,
    )
    timer = threading.Timer(PATIENCE, child.kill)
    timer.daemon = True
    timer.start()

    def end() -> None:
        timer.cancel()
        child.kill()
        child.wait()
        for file in (child.stdin, child.stdout):
            if file is not None:
                with suppress(BrokenPipeError):
                    file.close()

    stack.callback(end)
    return child


# -- GPUs ----------------------------------------------------------------------------------------


def _gpu_pairs() -> Iterator[tuple[str, str, RoundTrips]]:
    """Every ordered pair of the host and the GPUs that PyTorch sees, where it is installed."""
    from importlib.util import find_spec

    if find_spec("torch") is None:
        return
    import torch as installed

    torch: Any = installed
    if not torch.cuda.is_available():
        return
    places = ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]
    names = ["cpu", *(f"gpu{i}" for i in range(len(places) - 1))]
    for i, src in enumerate(places):
        for j, dst in enumerate(places):
            if i != j:
                yield names[i], names[j], _copies(torch, src, dst)


def _copies(torch: Any, src: str, dst: str) -> RoundTrips:
    def trips(size: int, repeats: int) -> list[float]:
        tensors = [
            torch.empty(size, dtype=torch.uint8, device=at, pin_memory=at == "cpu")
            for at in (src, dst)
        ]
        seconds = []
        for _ in range(repeats):
            began = time.perf_counter()
            tensors[1].copy_(tensors[0], non_blocking=True)
            for at in (src, dst):
                if at != "cpu":
                    torch.cuda.synchronize(at)
            seconds.append(2 * (time.perf_counter() - began))
        return seconds

    return trips
