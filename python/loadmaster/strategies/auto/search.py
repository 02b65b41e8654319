"""Search: local search from one candidate, by windows and by moves of all ops.

A search begins with windows, stretches of the order one after another with all else as it is
(:func:`loadmaster.fast.search_windows`), and ends with moves of all ops
(:func:`loadmaster.fast.search`). What it finds is judged by the simulator before it counts.

A device may do better to wait for an urgent op than to start another that is ready. The search
knows that; the simulator's policy "priority" does not wait, and its policy "fixed" does. So each
state of the search is judged by both.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

import loadmaster.fast as fast
from loadmaster.judge.assignment import Assignment
from loadmaster.judge.problem import by_start, ranks, summed
from loadmaster.strategies.auto.gathering import gathered
from loadmaster.strategies.auto.run import Run
from loadmaster.strategies.candidate import Candidate, judged

#: Simulations that judge a state: one by each policy.
JUDGED = 2

#: Devices, order, makespan in seconds, moves or windows tried, and visits.
Found = tuple[NDArray[np.int32], NDArray[np.int32], float, int, int]


@dataclass
class Search:
    """Searches of a run.

    Attributes
    ----------
    run : Run
    judging : float
        Seconds on the clock that judging the last state took.
    """

    run: Run
    judging: float = 0.0

    def begun(self, start: Candidate, seconds: float) -> Candidate:
        """The best that the first stage of a search finds from a candidate in some seconds."""
        return (self.windowed if self.is_windowed else self.explored)(start, seconds)

    def exhausted(self, start: Candidate, reserve: float) -> None:
        """Searches from a candidate, then from the best of what that found, and so on: until
        nothing better is found, or only ``reserve`` seconds are left.
        """
        run, gain = self.run, True
        while gain and not run.is_done and run.budget.left > reserve:
            before = run.best
            if self.is_windowed:
                share = run.tuning.window_share
                start = self.windowed(start, share * (run.budget.left - reserve))
            if not run.is_done:
                start = self.explored(start, run.budget.left - reserve)
            gain = run.best is not before

    def gathered(self, start: Candidate) -> Candidate:
        """A candidate with less to send that takes no longer (:mod:`.gathering`)."""
        run, each = self.run, self.run.pace.simulation
        if run.budget.lacks(each):
            return start
        most = int(run.tuning.gather_share * run.budget.whole / each)
        candidate, used = gathered(run.problem, start, most)
        run.budget.spend(each * used)
        if not run.offer(candidate, "gather") and start is run.best:
            run.best = candidate
        return candidate

    @property
    def is_windowed(self) -> bool:
        """True if a search begins with windows."""
        return self.run.problem.graph.n_ops >= self.run.tuning.windowed_graph

    def windowed(self, start: Candidate, seconds: float) -> Candidate:
        """The best that windows find from a candidate."""
        return self.improved(start, seconds, self.run.pace.windows, fast.search_windows)

    def explored(self, start: Candidate, seconds: float) -> Candidate:
        """The best that moves of all ops find from a candidate."""
        return self.improved(start, seconds, self.run.pace.moves, fast.search)

    def improved(
        self, start: Candidate, seconds: float, rate: float, search: Callable[..., Found]
    ) -> Candidate:
        """The best that a search with a rate of visits per second finds from a candidate, or the
        candidate if nothing is better. A search that would be shorter than judging what it found
        is not begun. Seconds that a search leaves because it ended early are not spent.
        """
        run, budget = self.run, self.run.budget
        if seconds <= JUDGED * run.pace.simulation:
            return start
        schedule, best = start.schedule, start
        order = by_start(run.problem.graph, schedule.start, schedule.finish)
        until = None if budget.effort is not None else time.perf_counter() + seconds
        for share in run.tuning.search_memory:
            left = budget.clock if until is None else until - time.perf_counter()
            if left is not None and left <= self.judging:
                budget.cut()
                break
            watch = _SearchWatch(self, 0.0 if until is None else run.tuning.pause * self.judging)
            devices, found_order, _, _, visits = search(
                self._within(start, share),
                (start.assignment.devices, order),
                self._stop(int(rate * seconds), left),
                seed=run.problem.seed,
                chains=run.chains,
                threads=min(run.threads, run.chains),
                progress=watch,
            )
            budget.spend(visits / rate)
            last = self.judge(devices, found_order)
            candidates = [one for one in (best, watch.best, last) if one is not None]
            best = run.problem.objective.best(candidates)
            if last.fits or run.is_done:
                break
        return best

    def _within(self, start: Candidate, share: float) -> fast.Problem:
        """The problem with a share of each device's memory, but no less than a candidate fills. If
        each of the candidate's sets is with the first reader of what it updates, that stays so.
        """
        problem, devices = self.run.problem, start.assignment.devices
        held, lead = problem.reduced.held_at_peak, problem.graph.lead
        used = summed(held, devices, problem.cluster.n_devices)
        room = (problem.capacity.astype(np.float64) * share).astype(np.uint64)
        follows = np.array_equal(devices[lead], devices)
        core = problem.core.led_by(lead) if follows else problem.core
        return core.within(op_bytes=held, capacity=np.maximum(room, used))

    def _stop(self, visits: int, left: float | None) -> fast.Stop:
        """The end of a search that may make so many visits, with so many seconds on the clock."""
        run, tuning = self.run, self.run.tuning
        per_op = tuning.patience_per_op * run.problem.graph.n_ops
        return fast.Stop(
            visits=visits if run.budget.effort is not None else None,
            time_limit=None if left is None else left - self.judging,
            patience=int(min(tuning.patience * visits, per_op)),
            target=run.target,
        )

    def judge(self, devices: NDArray[np.int32], order: NDArray[np.int32]) -> Candidate:
        """A state of a search by the better of the two policies, offered as the best plan."""
        began = time.perf_counter()
        candidate = judged(self.run.problem, Assignment(devices, ranks(order), "fixed"))
        self.judging = time.perf_counter() - began
        self.run.offer(candidate, "search")
        return candidate


@dataclass
class _SearchWatch:
    """Judges states of a running search.

    Attributes
    ----------
    search : Search
    pause : float
        Seconds on the clock until a state is judged again; 0: every state is judged.
    best : Candidate or None
        The best state that fits.
    last : float
        When the last state was judged, by ``time.perf_counter``.
    """

    search: Search
    pause: float
    best: Candidate | None = None
    last: float = field(default_factory=time.perf_counter)

    def __call__(
        self, devices: NDArray[np.int32], order: NDArray[np.int32], makespan: float
    ) -> None:
        """Takes a state that is better than those before, by the search's own estimate."""
        if time.perf_counter() - self.last < self.pause:
            return
        run = self.search.run
        candidate = self.search.judge(devices, order)
        if candidate.fits:
            best = self.best
            self.best = candidate if best is None else run.problem.objective.better(best, candidate)
        if self.pause:
            self.pause = run.tuning.pause * self.search.judging
        self.last = time.perf_counter()
