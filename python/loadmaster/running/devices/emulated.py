"""Emulated devices: a plan runs in real time, without a model. Ops are waits, links are clocks.

What runs when is decided by the dispatcher that real devices have, on the machine's clock, a thread
per device. What comes out differs from the prediction where the order of things does, and by what
it costs to decide.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

import loadmaster.fast as fast
from loadmaster.base import checks
from loadmaster.base.errors import InputError, RunError
from loadmaster.base.run_queue import waited_for_a_core
from loadmaster.model.cluster import Cluster
from loadmaster.plans.plan import Plan
from loadmaster.running.devices.clocks import StepClock, steps_of
from loadmaster.running.devices.compiled import Compiled, compile_plan
from loadmaster.running.measured.measured import Measured, Steps

#: Seconds that all ops take one after another, if nothing else is asked for, and that an op takes
#: on average at the least: long beside what it costs to decide what comes next.
SECONDS, PER_OP = 0.6, 150e-6

#: Seconds that a device waits without news, beside the predicted step, before the run is given up.
PATIENCE = 20.0

#: Seconds between two looks of the calling thread, at which Ctrl-C is noticed.
_LOOK = 0.1

#: ``PR_SET_TIMERSLACK`` and ``PR_GET_TIMERSLACK`` of prctl(2).
_SET_SLACK, _GET_SLACK = 29, 30


def emulate(plan: Plan, steps: int = 5, *, seconds: float | None = None) -> Measured:
    """Runs a plan on emulated devices.

    Every op waits for as long as the plan says that it takes. Every transfer and every collective
    has its channels to itself for as long. Which op is next, and what is sent when, is decided as
    the plan runs, not looked up in the prediction.

    Parameters
    ----------
    plan : Plan
        Of any graph. No model is needed.
    steps : int
        How many are run, one after another.
    seconds : float, optional
        What all ops of the graph that runs take one after another on the fastest device, in the
        emulation. Everything is stretched by one factor, :attr:`Measured.stretch`, to come to that.
        The longer it is, the less the machine's own time counts. 0.6 s if absent, more if an op
        would take less than 150 us on average.

    Returns
    -------
    Measured
        In seconds of the plan: the stretch is taken out again.

    Raises
    ------
    InputError
        No step or more than a million, seconds that are not above 0 or that make a step take more
        than a year, a plan in which no op takes any time, or one for a
        cluster with a cost of sending or of launches.
    RunError
        A device waited in vain, which says what for.

    Examples
    --------
    >>> import loadmaster as lm
    >>> plan = lm.place(lm.read("example:lenet"), lm.Cluster.preset("2xV100-NVLink"), "heft")
    >>> seen = lm.emulate(plan, 1, seconds=0.05)
    >>> len(seen.timeline.transfers) == len(plan.schedule.transfers)
    True
    """
    checks.count("steps", steps)
    least = max(SECONDS, PER_OP * plan.problem.graph.n_ops)
    asked = least if seconds is None else checks.positive("seconds", seconds)
    _check_costs(plan.cluster)
    compiled = compile_plan(plan)
    stretch = asked / _all_ops(plan)
    if not plan.makespan * stretch <= checks.YEAR:
        raise InputError(f"seconds is {asked:g}: a step would take more than a year")
    seen = _Emulation(plan, compiled, stretch).run(steps)
    return Measured(plan, seen, ("emulated",) * compiled.n_devices, stretch)


def _check_costs(cluster: Cluster) -> None:
    """Refuses a cluster whose devices or hosts spend time that no emulated one does."""
    paying = [f"what sending costs {t.name!r}" for t in cluster.types if t.send_cost]
    paying += [f"what an {t.kind} costs devices" for t in cluster.collectives if t.busy]
    paying += ["what launches cost a host"] * (cluster.dispatch is not None)
    if paying:
        raise InputError(
            f"emulated devices do not know {paying[0]}: place the graph on a cluster without it "
            "(send_cost, busy, dispatch), or run the plan on real devices (lm.run)"
        )


def _all_ops(plan: Plan) -> float:
    """Seconds that all ops take one after another on the fastest device."""
    seconds = float(plan.problem.compute_time.sum(axis=0).min())
    checks.number("the time of all ops", seconds, "seconds above 0", lambda s: s > 0)
    return seconds


class _Emulation:
    """The devices of one plan, each in a thread of its own."""

    def __init__(self, plan: Plan, compiled: Compiled, stretch: float) -> None:
        self.compiled = compiled
        self.names = [device.name for device in plan.cluster.devices]
        self.patience = PATIENCE + 2 * plan.makespan * stretch
        self.board, (_, self.arrivals, self.tasks) = compiled.board()
        line, sent = compiled.timeline, compiled.transfers
        lasts = np.zeros(compiled.n_tasks)
        lasts[: compiled.n_ops] = (line.finish - line.start) * ~compiled.at_once[: compiled.n_ops]
        gathered = (line.collectives.finish - line.collectives.start)[
            compiled.collective[compiled.n_transfers :]
        ]
        under_way = np.concatenate([sent.finish - sent.start, gathered])
        links = fast.Links(
            compiled.n_devices,
            plan.cluster.n_channels,
            held_channels(plan, compiled),
            _nanoseconds(under_way * stretch),
            compiled.collective,
            compiled.tells,
            np.flatnonzero(compiled.after < 0).astype(np.int32),
        )
        self.dispatchers = [
            fast.Dispatcher(compiled.part(device), self.board, self.patience)
            for device in range(compiled.n_devices)
        ]
        self.devices = []
        for device, dispatcher in enumerate(self.dispatchers):
            mine = np.flatnonzero(compiled.device == device).astype(np.int32)
            length = mine, _nanoseconds(lasts[mine] * stretch)
            _, after = compiled.sent_after(device)
            self.devices.append(fast.Emulated(dispatcher, links, length, after))
        self.seen: list[StepClock] = []
        self.errors: list[BaseException] = []
        self.overdue = False

    def run(self, n: int) -> Steps:
        """So many steps."""
        self.delays: list[list[int]] = [[] for _ in range(n)]
        threads = [
            threading.Thread(target=self._device, args=(device, n), daemon=True)
            for device in range(len(self.devices))
        ]
        with _exact_sleeps():
            for thread in threads:
                thread.start()
        try:
            for thread in threads:
                while thread.is_alive():
                    thread.join(_LOOK)
        finally:
            self.board.stop()
            for thread in threads:
                thread.join()
        if self.errors:
            raise self.errors[0]
        if self.overdue:
            raise RunError(f"nothing happened for {self.patience:.3g} s: {self._waiting()}")
        return steps_of(self.compiled, self.seen)

    def _device(self, device: int, n: int) -> None:
        emulated, delay = self.devices[device], waited_for_a_core()
        try:
            for step in range(n):
                delay()
                began = emulated.step()
                self._note(device, step, began, delay())
        except InterruptedError:
            pass  # another device, or the caller, has stopped the run
        except TimeoutError:
            self.board.stop()
            self.overdue = True
        except BaseException as error:
            self.errors.append(error)
            self.board.stop()

    def _note(self, device: int, step: int, began: int, delay: int) -> None:
        """Keeps what the board says of a step; no device can begin the next one before this."""
        self.delays[step].append(delay)
        if device == 0:
            words = self.arrivals.copy(), self.tasks.copy()
            self.seen.append(StepClock(*words, began, self.delays[step]))

    def _waiting(self) -> str:
        """Waits of the devices that had not ended."""
        missing = [dispatcher.missing() for dispatcher in self.dispatchers]
        return self.compiled.waiting(missing, self.names)


def _nanoseconds(seconds: NDArray[np.float64]) -> NDArray[np.int64]:
    return np.rint(seconds * 1e9).astype(np.int64)


def held_channels(plan: Plan, compiled: Compiled) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Arrivals, and the channels that each holds."""
    sent, links = compiled.transfers, plan.problem.links
    routes: dict[tuple[int, int], list[int]] = {}
    pairs = []
    for arrival, pair in enumerate(zip(sent.src.tolist(), sent.dst.tolist(), strict=True)):
        if pair not in routes:
            routes[pair] = links.route(*pair)[2]
        pairs += [(arrival, channel) for channel in routes[pair]]
    channels = compiled.timeline.collectives.channels
    for share, collective in enumerate(compiled.collective[compiled.n_transfers :].tolist()):
        pairs += [(compiled.n_transfers + share, channel) for channel in channels[collective]]
    rows = np.array(pairs, dtype=np.int32).reshape(-1, 2)
    return rows[:, 0], rows[:, 1]


@contextmanager
def _exact_sleeps() -> Iterator[None]:
    """Has threads that are started within wake when they asked to, not up to 50 us later."""
    if not sys.platform.startswith("linux"):
        yield
        return
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    before = prctl(_GET_SLACK, 0, 0, 0, 0)
    prctl(_SET_SLACK, 1, 0, 0, 0)
    try:
        yield
    finally:
        prctl(_SET_SLACK, before, 0, 0, 0)
