"""The best plan that a few seconds can buy: many fast strategies, the best of them refined, then
local search from there.

Loadmaster's own. The search (:func:`loadmaster.fast.search`) runs on all ops of the reduced graph;
what it finds is simulated before it counts, so that the plan is never worse than the best strategy
tried, nor than one device. O(time limit).

A device may do better to wait for an urgent op than to start another that is ready: the search
knows that, the simulator's policy "priority" does not. So each state is judged by "priority" and by
"fixed", and the plan says which of the two is faster.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from loadmaster import fast
from loadmaster.bounds import bound
from loadmaster.errors import InfeasibleError, InputError
from loadmaster.problem import Problem, by_start, ranks
from loadmaster.strategies import (
    celeritas,
    cpop,
    dpos,
    expert,
    grouped,
    heft,
    lc,
    m_etf,
    peft,
    single,
    warm,
)
from loadmaster.strategies.base import Candidate, Placement, better, judged
from loadmaster.strategies.refine import refined

Effort = Literal["fast", "normal", "max"]

#: Seconds by effort.
SECONDS: dict[str, float] = {"fast": 1.0, "normal": 15.0, "max": 60.0}

#: Where the search may start, those that are most often best first.
SEEDS: dict[str, Callable[[Problem], Candidate]] = {
    "heft": heft.place,
    "heft on groups": grouped.place,
    "m-etf": m_etf.place,
    "dpos": dpos.place,
    "lc": lc.place,
    "celeritas": celeritas.place,
    "expert": expert.place,
    "peft": peft.place,
    "cpop": cpop.place,
}

#: Share of the time for seeds, and of the search for finding out which seed goes furthest.
SEED_SHARE = 0.4
TRIAL_SHARE = 0.3

#: Share of the time left after the seeds for refining them, and the ops that one schedules in a
#: second, or for every move of the search.
REFINE_SHARE = 0.4
VISITS_PER_SECOND = 60_000_000
VISITS_PER_MOVE = 500

#: Seeds that are tried, where the graph is small enough to search from several.
TRIALS = 3
SMALL = 10_000

#: Shares of the memory that the search may fill, one after another, until what it finds fits.
SHARES = (1.0, 0.9, 0.8, 0.65, 0.5)

#: The search goes on so many times longer than judging a state takes before another one is judged.
PATIENCE = 10

Progress = Callable[[str, float | None], None]


def place(
    problem: Problem,
    *,
    effort: Effort = "fast",
    moves: int | None = None,
    chains: int = 1,
    threads: int = 1,
    time_limit: float | None = None,
    warm_start: Placement | None = None,
    progress: Progress | None = None,
) -> Candidate:
    """The best of many strategies, improved by local search.

    Ctrl-C ends the search, not the program: the best so far is returned.

    Parameters
    ----------
    effort : "fast" (default), "normal" or "max"
        1, 15 or 60 seconds, if no time limit is given.
    moves : int, optional
        Moves that each chain makes, instead of a time limit; the result then depends on nothing but
        the problem, its seed, ``moves`` and ``chains``.
    chains : independent chains of moves, which learn from each other.
    threads : how many of them run at a time.
    time_limit : seconds.
    warm_start : a placement to begin with, besides the seeds; see :func:`.warm.started`.
    progress : called with the stage and the best makespan whenever there is a better one.

    Raises
    ------
    InfeasibleError
        No seed fits.
    """
    if effort not in SECONDS:
        raise InputError(f"effort is {effort!r}: wants one of {', '.join(SECONDS)}")
    for name, value in (("moves", moves), ("chains", chains), ("threads", threads)):
        least = 0 if name == "moves" else 1
        if value is not None and not (isinstance(value, int) and value >= least):
            raise InputError(f"{name} is {value!r}: wants an integer, at least {least}")
    limit = SECONDS[effort] if time_limit is None else float(time_limit)
    run = _Run(
        problem,
        Budget(time.perf_counter(), None if moves is not None else limit, moves),
        chains,
        threads,
        progress or (lambda stage, makespan: None),
        warm_start,
    )
    try:
        run.plant()
        if not run.is_done:
            run.search()
    except KeyboardInterrupt:
        if run.best is None:
            raise
        return replace(run.best, notes=(*run.best.notes, "interrupted: the best so far"))
    assert run.best is not None
    return run.best


@dataclass(frozen=True)
class Budget:
    """Seconds from a start, or moves."""

    began: float
    seconds: float | None
    moves: int | None

    @property
    def left(self) -> float:
        """Seconds left; no end to them where moves are counted."""
        if self.seconds is None:
            return float("inf")
        return self.seconds - (time.perf_counter() - self.began)


@dataclass
class _Run:
    """The seeds, and the best candidate so far."""

    problem: Problem
    budget: Budget
    chains: int
    threads: int
    progress: Progress
    warm_start: Placement | None = None
    seeds: list[Candidate] = field(default_factory=list)
    best: Candidate | None = None
    #: Seconds that judging a state takes.
    judging: float = 0.0

    @cached_property
    def bound(self) -> float:
        """Seconds below which no placement can go, and a little more for rounding."""
        return bound(self.problem).seconds * (1 + 1e-9)

    @property
    def is_done(self) -> bool:
        """Whether nothing can be better, or nothing is left to try it with."""
        best = self.best
        assert best is not None
        return (
            self.budget.left <= 0
            or not best.fits
            or self.problem.cluster.n_devices == 1
            or best.schedule.makespan <= self.bound
        )

    def plant(self) -> None:
        """Tries the fast strategies, one device first."""
        refused: InfeasibleError | None = None
        try:
            alone = single.place(self.problem)
        except InfeasibleError as error:
            refused = error
        else:
            self.seeds.append(alone)
            self.offer(alone, "single")
            if alone.fits and alone.schedule.makespan <= self.bound:
                note = "one device is as fast as any placement can be: nothing can run in parallel"
                self.best = replace(alone, notes=(*alone.notes, note))
                return
        for kept in warm.started(self.problem, self.warm_start):
            self.seeds.append(kept)
            self.offer(kept, "warm start")
        seconds = self.budget.seconds
        reserve = 0.0 if seconds is None else (1 - SEED_SHARE) * seconds
        for name, seed in SEEDS.items():
            if self.best is not None and self.best.fits and self.budget.left < reserve:
                break
            try:
                candidate = seed(self.problem)
            except InfeasibleError as error:
                refused = error
                continue
            self.seeds.append(candidate)
            self.offer(candidate, name)
        if self.best is None:
            assert refused is not None
            raise refused

    def offer(self, candidate: Candidate, stage: str) -> bool:
        """Keeps a candidate if it is the best so far."""
        if self.best is not None and better(self.problem, self.best, candidate) is self.best:
            return False
        self.best = candidate
        self.progress(stage, candidate.schedule.makespan)
        return True

    def search(self) -> None:
        """Searches from several seeds for a while, then on from the best of what came of them."""
        fitting = [seed for seed in self.seeds if seed.fits]
        fitting.sort(key=lambda seed: seed.schedule.makespan)
        distinct: list[Candidate] = []
        for seed in fitting:
            if not any(np.array_equal(seed.devices, other.devices) for other in distinct):
                distinct.append(seed)
        small = self.problem.graph.n_ops <= SMALL
        moves = self.budget.moves
        trials = self.refined(distinct[: TRIALS if small else 1])
        if len(trials) > 1:
            spent = None if moves is None else int(TRIAL_SHARE * moves) // len(trials)
            each = None if moves is not None else TRIAL_SHARE * self.budget.left / len(trials)
            found = [self.improved(trial, spent, each) for trial in trials]
            moves = None if moves is None or spent is None else moves - spent * len(trials)
            start = min(found, key=lambda candidate: candidate.schedule.makespan)
        else:
            start = trials[0]
        self.improved(start, moves, None if moves is not None else self.budget.left)

    def refined(self, trials: list[Candidate]) -> list[Candidate]:
        """Seeds with groups of ops moved to better devices, coarse groups first."""
        if self.budget.moves is not None:
            visits = VISITS_PER_MOVE * self.budget.moves
        else:
            visits = int(VISITS_PER_SECOND * REFINE_SHARE * max(self.budget.left, 0.0))
        found = []
        for trial in trials:
            found.append(refined(self.problem, trial, budget=visits // len(trials)))
            self.offer(found[-1], "refine")
        return found

    def improved(self, start: Candidate, moves: int | None, seconds: float | None) -> Candidate:
        """The best that a search from a candidate finds within some moves or seconds; itself if it
        finds nothing better.
        """
        problem = self.problem
        devices, schedule = start.devices, start.schedule
        order = by_start(problem.graph, schedule.start, schedule.finish)
        lead = problem.graph.lead
        follows = np.array_equal(devices[lead], devices)
        held = problem.held_at_peak
        used = np.zeros(problem.cluster.n_devices, dtype=np.uint64)
        np.add.at(used, devices, held)
        best = start
        until = None if seconds is None else time.perf_counter() + seconds
        for share in SHARES:
            left = None if until is None else until - time.perf_counter() - self.judging
            if left is not None and left <= 0:
                break
            watch = _Watch(self, PATIENCE * self.judging)
            room = (problem.capacity.astype(np.float64) * share).astype(np.uint64)
            found = fast.search(
                problem.graph,
                problem.links,
                problem.time,
                devices,
                order,
                op_bytes=held,
                capacity=np.maximum(room, used),
                lead=lead if follows else None,
                seed=problem.seed,
                moves=moves,
                time_limit=left,
                chains=self.chains,
                threads=self.threads,
                progress=None if left is None else watch,
            )
            last = self.judge(found[0], found[1])
            best = min(
                (c for c in (best, watch.best, last) if c is not None and c.fits),
                key=lambda candidate: candidate.schedule.makespan,
            )
            if last.fits:
                break
        return best

    def judge(self, devices: NDArray[np.int32], order: NDArray[np.int32]) -> Candidate:
        """The better of a state's two ways to run, offered as the best."""
        began = time.perf_counter()
        found = judged(self.problem, Placement(devices, ranks(order), is_sequence=True))
        self.judging = time.perf_counter() - began
        self.offer(found, "search")
        return found


@dataclass
class _Watch:
    """Judges states of a running search, not too often."""

    run: _Run
    pause: float
    best: Candidate | None = None
    last: float = field(default_factory=time.perf_counter)

    def __call__(
        self, devices: NDArray[np.int32], order: NDArray[np.int32], makespan: float
    ) -> None:
        if time.perf_counter() - self.last < self.pause:
            return
        found = self.run.judge(devices, order)
        if found.fits and (
            self.best is None or found.schedule.makespan < self.best.schedule.makespan
        ):
            self.best = found
        self.pause = PATIENCE * self.run.judging
        self.last = time.perf_counter()
