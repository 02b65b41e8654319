"""The constraint program, solved by CP-SAT in a process of its own (design section 8).

The program decides on a device per unit of colocated ops, on starts, and on when which tensor is
sent where:

* An op has an interval per device, as long as its time there, and is present on one device. No two
  ops overlap on a device.
* A message has an interval per channel on its way. It is present if a reader of the tensor is on
  the device and the source is not. No two messages overlap on a channel.
* A reader starts after the message has come; the message leaves after its source has finished.
* Channels serve first come, first served: of two messages on one channel, the one whose source
  finishes first leaves first, ties as in the simulator. Where senders have channels of their own,
  that is the order of their ops on the sender, which needs no further variable. With a free link
  order instead, the program proves a bound only.

Starts lie between heads and tails. Exchangeable devices are used in order. The first solution is
the given schedule. Every better solution is kept, also if the process is killed.
"""

from __future__ import annotations

import math
import re
import time
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from loadmaster.base.errors import MissingExtraError
from loadmaster.milp import process
from loadmaster.milp.instance import MilpInstance
from loadmaster.milp.timing import Timed
from loadmaster.milp.worker import Watch

Status = Literal["optimal", "feasible", "infeasible", "unknown"]

#: Lines in which the process tells the best, the bound, and the size of the model.
_LINE = re.compile(r"^loadmaster: best (?P<best>\S+) bound (?P<bound>\S+)$")
_SIZE = re.compile(r"^loadmaster: (?P<rows>\d+) constraints (?P<columns>\d+) variables$")


@dataclass(frozen=True)
class CpsatTask:
    """An instance to solve, and how.

    Attributes
    ----------
    instance : MilpInstance
    start : Timed
        The schedule to start from; no solution takes longer.
    time_limit : float
        Wall seconds, the building of the model included.
    workers : int
        Threads. With more than one, runs under a time limit differ from each other.
    seed : int
    is_fixed : bool
        Whether the placement is that of ``start``.
    is_fcfs : bool
        Whether channels serve first come, first served. In any other order, the answer is a bound
        only.
    """

    instance: MilpInstance
    start: Timed
    time_limit: float
    workers: int = 8
    seed: int = 0
    is_fixed: bool = False
    is_fcfs: bool = True


@dataclass(frozen=True)
class Found:
    """The answer of CP-SAT.

    Attributes
    ----------
    status : str
        "optimal", "feasible", "infeasible" or "unknown" (no schedule was found in time).
    bound : int
        Ticks: no schedule of the model takes fewer. It is at least the instance's own bound.
    devices : int32 [n_ops] or None
    start : int64 [n_ops] or None
        Ticks.
    failure : str or None
        Why the process did not end by itself. The best schedule so far is kept.
    size : (int, int) or None
        Constraints and variables.
    seconds : float
        Wall time.
    cpu : float
        CPU seconds of all workers, the building of the model included.
    log : str
    """

    status: Status
    bound: int
    devices: NDArray[np.int32] | None
    start: NDArray[np.int64] | None
    failure: str | None
    size: tuple[int, int] | None
    seconds: float
    cpu: float
    log: str


def require() -> None:
    """Raises :class:`~loadmaster.MissingExtraError` where CP-SAT is not installed."""
    if find_spec("ortools") is None:
        raise MissingExtraError("ortools", "cpsat", "the solver CP-SAT")


def report_size(rows: int, columns: int) -> None:
    """Prints the size of the model, for :func:`solve` to read."""
    print(f"loadmaster: {rows} constraints {columns} variables", flush=True)


def report(best: float, bound: float) -> None:
    """Prints the best and the bound, for :func:`solve` to read."""
    print(f"loadmaster: best {best:.0f} bound {bound:.0f}", flush=True)


def solve(task: CpsatTask, *, cpu_limit: float = math.inf, progress: Watch | None = None) -> Found:
    """Solves an instance from a schedule of it.

    Parameters
    ----------
    task : CpsatTask
    cpu_limit : float
        After so many CPU seconds in all, the workers are stopped, which counts as a failure.
    progress : callable, optional
        Called with the best and the bound, in ticks, and the CPU seconds so far.

    Raises
    ------
    MissingExtraError
        CP-SAT is not installed.
    """
    require()
    began = time.monotonic()

    size: tuple[int, int] | None = None
    least = float(task.instance.lower)

    def follow(line: str, cpu: float) -> None:
        nonlocal size, least
        if (match := _SIZE.match(line)) is not None:
            size = int(match["rows"]), int(match["columns"])
        if (match := _LINE.match(line)) is not None:
            least = max(float(match["bound"]), least)
            if progress is not None:
                progress(float(match["best"]), least, cpu)

    try:
        ended = process.run("loadmaster.milp.cpsat_child", task, task.time_limit, follow, cpu_limit)
    except process.Interrupted as error:
        ended = process.Ended(None, error.best, "it was interrupted", "", 0.0)
    answer = ended.answer or {"status": "unknown", "bound": None, "values": None}
    values = answer["values"] or ended.best
    status, bound = answer["status"], max(answer["bound"] or least, least)
    failure = None if ended.failure is None else f"CP-SAT failed: {ended.failure}"
    if status == "model_invalid":
        failure, status = f"CP-SAT refused the model: {ended.log[-2000:]}", "unknown"
    if status == "unknown" and values is not None:
        status = "feasible"
    return Found(
        status=status,
        bound=int(np.ceil(bound - 1e-6)),
        devices=None if values is None else np.array(values[0], dtype=np.int32),
        start=None if values is None else np.array(values[1], dtype=np.int64),
        failure=failure,
        size=size,
        seconds=time.monotonic() - began,
        cpu=ended.cpu,
        log=ended.log,
    )
