"""The constraint program, solved by CP-SAT in a process of its own (design section 8).

Decided are a device per unit of colocated ops, starts, and which tensors go where when:

* an op is an interval of its own length on each device, present on one; no two overlap on a device;
* a message is an interval per channel on its way, present where a reader of the tensor is on the
  device and its source is not; no two overlap on a channel;
* a reader starts after the message has come, the message leaves after its source has finished;
* channels serve first come, first served: of two messages on one channel the one whose source
  finishes first leaves first, ties as in the simulator. Where senders have channels of their own
  that is the order of their ops on the sender, which needs no variable of its own. With a free link
  order instead, what is proved is a bound and no more.

Starts lie within heads and tails; exchangeable devices are used in order; the first solution is the
one given, and every solution since is kept, whatever becomes of the process.
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
from loadmaster.milp.instance import Instance
from loadmaster.milp.timing import Timed
from loadmaster.milp.worker import Watch

Status = Literal["optimal", "feasible", "infeasible", "unknown"]

#: Lines by which the process says what is known, and of how large a model.
_LINE = re.compile(r"^loadmaster: best (?P<best>\S+) bound (?P<bound>\S+)$")
_SIZE = re.compile(r"^loadmaster: (?P<rows>\d+) constraints (?P<columns>\d+) variables$")


@dataclass(frozen=True)
class Task:
    """What to solve: ``is_fixed`` keeps the placement, ``is_fcfs`` has channels serve first come,
    first served.
    """

    instance: Instance
    start: Timed
    time_limit: float
    workers: int
    seed: int
    is_fixed: bool
    is_fcfs: bool


@dataclass(frozen=True)
class Found:
    """What CP-SAT found.

    Attributes
    ----------
    status : str
        "optimal", "feasible", "infeasible" or "unknown" (nothing was found in time).
    bound : int
        Ticks: no schedule of the model takes fewer. At least the instance's own bound.
    devices : int32 [n_ops] or None
    start : int64 [n_ops] or None
        Ticks.
    failure : str or None
        What went wrong, where the process did not end by itself; what it had found is kept.
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
    """Says how large the model is, for :func:`solve` to read."""
    print(f"loadmaster: {rows} constraints {columns} variables", flush=True)


def report(best: float, bound: float) -> None:
    """Says what is known, for :func:`solve` to read."""
    print(f"loadmaster: best {best:.0f} bound {bound:.0f}", flush=True)


def solve(
    instance: Instance,
    start: Timed,
    *,
    time_limit: float,
    cpu_limit: float = math.inf,
    workers: int = 8,
    seed: int = 0,
    is_fixed: bool = False,
    is_fcfs: bool = True,
    progress: Watch | None = None,
) -> Found:
    """Solves an instance from a schedule of it.

    Parameters
    ----------
    instance : Instance
    start : Timed
        Where to start, and the most that the makespan may be.
    time_limit : float
        Wall seconds, the building of the model included.
    cpu_limit : float
        CPU seconds of all workers after which they are stopped, which counts as a failure.
    workers : int
        Threads; what they find within a limit differs from run to run unless there is one.
    seed : int
    is_fixed : bool
        Whether the placement is that of ``start``.
    is_fcfs : bool
        Whether channels serve first come, first served; else in any order, which bounds.
    progress : callable, optional
        Called with the best and the bound, in ticks, and the CPU seconds taken by then.

    Raises
    ------
    MissingExtraError
        CP-SAT is not installed.
    """
    require()
    began = time.monotonic()

    size: tuple[int, int] | None = None
    least = float(instance.lower)

    def follow(line: str, cpu: float) -> None:
        nonlocal size, least
        if (match := _SIZE.match(line)) is not None:
            size = int(match["rows"]), int(match["columns"])
        if (match := _LINE.match(line)) is not None:
            least = max(float(match["bound"]), least)
            if progress is not None:
                progress(float(match["best"]), least, cpu)

    task = Task(instance, start, time_limit, workers, seed, is_fixed, is_fcfs)
    try:
        ended = process.run("loadmaster.milp.cpsat_child", task, time_limit, follow, cpu_limit)
    except process.Interrupted as error:
        ended = process.Ended(None, error.best, "it was interrupted", "", 0.0)
    answer = ended.answer or {"status": "unknown", "bound": None, "values": None}
    values = answer["values"] or ended.best
    status, bound = answer["status"], max(answer["bound"] or least, least)
    failure = None if ended.failure is None else f"CP-SAT failed: {ended.failure}"
    if status == "model_invalid":
        failure, status = f"CP-SAT refused the model:\n{ended.log[-2000:]}", "unknown"
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
