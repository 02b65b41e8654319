"""The best plan that a few seconds can buy: many fast strategies, the best of them refined, then
local search from there.

Loadmaster's own. Seeds are tried in the order of what they are worth, as far as their share of the
time goes, and where transfers are dear on fewer devices, too (see
:mod:`~loadmaster.strategies.auto.few`). The best are refined by halves: many of them a little, the
better half of these more, and so on: on coarse graphs first
(:mod:`~loadmaster.strategies.auto.v_cycle`), by groups of ops near each other and by groups of ops
that play the same part in every layer (:mod:`~loadmaster.strategies.auto.refine`); the best of what
came of them are searched from (:func:`loadmaster.fast.search`). Where there are many ops, the best
is refined again and again before, as long as that makes it shorter. The search begins with windows,
stretches of the order one after another with all else as it is
(:func:`loadmaster.fast.search_windows`), and ends with moves of all ops. Before the search, and at
the end, ops that no longer have a reason to be apart from their inputs go back to them
(:mod:`~loadmaster.strategies.auto.gather`). A search that ends early leaves the rest to those from
other seeds. What is found is simulated before it counts, so that the plan is never worse than the
best strategy tried, nor than one device.

How far to go is *counted*, not measured: ``effort`` is seconds of a reference machine, shared out
to the stages by what they visit or simulate. So the same input gives the same plan on any machine
that is done within the time limit; where the clock cuts the search, the plan says so.

A device may do better to wait for an urgent op than to start another that is ready: the search
knows that, the simulator's policy "priority" does not. So each state is judged by "priority" and by
"fixed", and the plan says which of the two is faster.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from numbers import Real
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

import loadmaster.fast as fast
from loadmaster.base.errors import InfeasibleError, InputError
from loadmaster.judge.assignment import Assignment
from loadmaster.judge.bounds import bound
from loadmaster.judge.problem import Problem, by_start, ranks
from loadmaster.strategies import warm
from loadmaster.strategies.auto.few import Part, parts
from loadmaster.strategies.auto.gather import gathered
from loadmaster.strategies.auto.refine import MOST_DEVICES, hierarchy, repeats
from loadmaster.strategies.auto.seeds import (
    LAST_RESORTS,
    SEEDS,
    Metered,
    OverdrawnError,
    Seed,
    is_dear,
    microseconds,
    worth_trying,
)
from loadmaster.strategies.auto.v_cycle import Hierarchy, Way, v_cycle
from loadmaster.strategies.candidate import INTERRUPTED, Candidate, judged
from loadmaster.strategies.deciders import deciders
from loadmaster.strategies.registry import strategy
from loadmaster.strategies.simple import single

Effort = Literal["fast", "normal", "max"]

#: Time limits by effort, in seconds, and the share of one that is counted on: what is left is for
#: slower machines.
SECONDS: dict[str, float] = {"fast": 1.0, "normal": 15.0, "max": 60.0}
COUNTED = 0.75

#: As good as no limit: visits are counted in 64 bits.
YEAR = 3.2e7

#: A seed may take so many times what it takes where its first attempt fits; it is tried as soon as
#: there is time for its first plan.
RETRIES = 3.0

#: Seconds that are early, in which seeds gain more than searches do; shares of early and of later
#: time for seeds on all devices, and of later time for those on fewer.
EARLY = COUNTED * SECONDS["fast"]
EARLY_SHARE = 0.45
LATER_SHARE = 0.12
FEW_SHARE = 0.1

#: Share of the time for seeds on all devices that one may take; of what is left, for refining them;
#: and of the search, for finding out which seed goes furthest.
SEED_MOST = 0.5
REFINE_SHARE = 0.5
TRIAL_SHARE = 0.15

#: Rounds in which seeds are refined, each with half as many; visits that a round of one is to have,
#: and per op; and how many begin at most.
REFINE_ROUNDS = 3
ROUND = 6e6
ROUND_PER_OP = 400
REFINED_MOST = 12

#: How seeds are refined, in turns. Each seed begins in each of these ways, by so many ranks later
#: than in the first.
WAYS = (Way(6, 30.0), Way(6, 0.0), Way(0, 8.0), Way(4, 8.0, is_given=True))
LAGS = (0.0, 0.1, 2.0, 2.1)

#: Seeds that are searched, where the graph is small enough to search from several.
TRIALS = 2
SMALL = 10_000

#: Where there are many ops, share of what is left that a cycle takes, and the least that it must
#: gain to be followed by another.
CYCLE_SHARE = 0.35
CYCLE_GAIN = 0.001

#: Seconds per op that building groups takes, and groups of what repeats; and the most of what is
#: left that the first may be.
HIERARCHY = 3e-6
REPEATS = 1e-6
HIERARCHY_SHARE = 0.2

#: What must be left of the time to search from another seed.
RESTART_SHARE = 0.1

#: Share of the time for sending less, before the search and once more after it, and
#: microseconds per op on eight devices of a simulation.
GATHER_SHARE = 0.04
SIMULATION = 0.5

#: Simulations that judge what a search found.
JUDGED = 2

#: Visits of ops in a second: by a refinement and by the search of a small graph, and the ops and
#: devices from which on they have to wait for memory; a refinement waits this part of what a search
#: does.
REFINE_RATE = 45e6
SEARCH_RATE = 30e6
CACHED = 40_000.0
REFINE_WAITS = 0.35

#: Ops from which on windows come first, and their share of the search; visits of ops in a second of
#: a search in windows, which waits less for memory.
WINDOWED = 1000
WINDOW_SHARE = 0.6
WINDOW_RATE = 20e6

#: The search ends where it has found nothing better in this share of its visits, or in so many
#: visits per op.
PATIENCE = 0.5
PATIENCE_PER_OP = 50_000

#: Shares of the memory that the search may fill, one after another, until what it finds fits.
SHARES = (1.0, 0.9, 0.8, 0.65, 0.5)

#: Against the clock, the search goes on so many times longer than judging a state takes before
#: another one is judged.
PAUSE = 10

#: A plan this close to the bound is not worth a search.
OPTIMAL = 1e-6

#: A plan this close to the bound is one device's, if one device can do it.
NEGLIGIBLE = 0.005

Progress = Callable[[str, float | None], None]

#: Groups per op, level by level.
Levels = list[NDArray[np.int32]]

#: Devices, order, makespan, moves or windows of a search, and visits.
Found = tuple[NDArray[np.int32], NDArray[np.int32], float, int, int]


@strategy(
    "auto",
    "the best of many, then local search for as long as there is time",
    # The expert's layers are contiguous by nature.
    rivals_in_stages=("expert",),
)
def place(
    problem: Problem,
    *,
    effort: Effort | float | None = None,
    gap: float = 0.0,
    chains: int = 1,
    threads: int | None = None,
    time_limit: float | None = None,
    warm_start: Assignment | None = None,
    progress: Progress | None = None,
) -> Candidate:
    """The best of many strategies, improved by local search.

    Ends when its effort or its time is spent, when the plan is within the gap, or when nothing gets
    better. Ctrl-C ends the search, not the program: the best so far is returned.

    Parameters
    ----------
    effort : "fast", "normal", "max" or a number, optional
        What fits within 1, 15 or 60 seconds (which are then the time limit, too, if there is no
        other), or seconds of the reference machine. Counted, so that the plan is the same on any
        machine that is done in time. Absent: "fast", or as far as the time limit goes.
    gap : float
        A plan is good enough if (makespan - lower bound) / makespan is no more.
    chains : int
        Independent chains of moves, which learn from each other; each takes the effort.
    threads : int, optional
        How many of them run at a time, and how many seeds are refined at a time; as many as there
        are cores if absent. Changes no result.
    time_limit : float, optional
        Seconds; a stage under way is finished first.
    warm_start : Assignment, optional
        What to begin with, besides the seeds; see :func:`.warm.as_candidates`.
    progress : callable, optional
        Called with the stage and the best makespan whenever there is a better one.

    Raises
    ------
    InfeasibleError
        No strategy tried fits.
    """
    run = _Run(
        Metered.of(problem),
        Budget.make(effort, time_limit),
        _share("gap", gap),
        _count("chains", chains),
        _count("threads", os.cpu_count() or 1 if threads is None else threads),
        progress or (lambda stage, makespan: None),
        warm_start,
    )
    try:
        run.plant()
        if run.is_searchable and not run.is_done:
            run.search()
    except KeyboardInterrupt:
        if run.best is None:
            raise
        return replace(run.best, problem=problem, notes=(*run.best.notes, INTERRUPTED))
    assert run.best is not None
    best = replace(run.best, problem=problem)
    if not (run.is_searchable or run.sole or run.is_good):
        note = f"not searched: {problem.cluster.n_devices} devices, at most {MOST_DEVICES} can be"
        return best.noted(note)
    if run.budget.is_cut and not run.is_good:
        note = f"the time limit of {run.budget.seconds:g} s cut the search: more may be found"
        return best.noted(note)
    return best


def _count(name: str, value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(f"{name} is {value!r}: wants an integer, at least 1")
    return value


def _share(name: str, value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 <= float(value) < 1:
        raise InputError(f"{name} is {value!r}: wants a number from 0 to 1, 1 excluded")
    return float(value)


@dataclass
class Budget:
    """How far to go: counted seconds of work, seconds on the clock, or both.

    Attributes
    ----------
    effort : float or None
        Seconds of work that may be counted; None: as far as the clock goes.
    seconds : float or None
        Seconds on the clock.
    """

    effort: float | None
    seconds: float | None
    spent: float = 0.0
    is_cut: bool = False
    began: float = field(default_factory=time.perf_counter)

    @classmethod
    def make(cls, effort: Effort | float | None, time_limit: float | None) -> Budget:
        """From the options of :func:`place`."""
        limit = None if time_limit is None else min(float(time_limit), YEAR)
        if effort is None:
            if limit is not None:
                return cls(None, limit)
            effort = "fast"
        if isinstance(effort, str):
            if effort not in SECONDS:
                wants = f"one of {', '.join(SECONDS)}, or seconds"
                raise InputError(f"effort is {effort!r}: wants {wants}")
            seconds = SECONDS[effort]
            return cls(COUNTED * seconds, seconds if limit is None else limit)
        if (
            isinstance(effort, bool)
            or not isinstance(effort, Real)
            or not 0 <= effort < float("inf")
        ):
            raise InputError(f"effort is {effort!r}: wants one of {', '.join(SECONDS)}, or seconds")
        return cls(min(float(effort), YEAR), limit)

    @property
    def whole(self) -> float:
        """Seconds of work in all, by the count if there is one."""
        if self.effort is not None:
            return self.effort
        assert self.seconds is not None
        return self.seconds

    @property
    def clock(self) -> float | None:
        """Seconds left on the clock, if it counts."""
        if self.seconds is None:
            return None
        return self.seconds - (time.perf_counter() - self.began)

    @property
    def left(self) -> float:
        """Seconds of work left, by the count if there is one."""
        if self.effort is not None:
            return self.effort - self.spent
        assert self.clock is not None
        return self.clock

    @property
    def is_spent(self) -> bool:
        """Whether nothing is left."""
        return self.left <= 0 or self.lacks(0.0)

    def lacks(self, seconds: float) -> bool:
        """Whether the clock leaves no time for work of so many seconds; notes it where only the
        clock forbids it.
        """
        clock = self.clock
        late = clock is not None and clock <= seconds
        self.is_cut = self.is_cut or (late and self.effort is not None)
        return late


@dataclass
class _Run:
    """The seeds, and the best candidate so far."""

    problem: Metered
    budget: Budget
    gap: float
    chains: int
    threads: int
    progress: Progress
    warm_start: Assignment | None = None
    seeds: list[Candidate] = field(default_factory=list)
    best: Candidate | None = None
    refused: InfeasibleError | None = None
    #: Whether one device is the answer.
    sole: bool = False
    #: Seconds that judging a state takes.
    judging: float = 0.0

    @cached_property
    def bound(self) -> float:
        """Seconds below which no placement can go."""
        return bound(self.problem).seconds

    @cached_property
    def target(self) -> float:
        """A makespan that is good enough; a little more than the bound."""
        return self.bound / (1 - self.gap) * (1 + OPTIMAL)

    @property
    def is_done(self) -> bool:
        """Whether nothing can be better, or nothing is left to try it with."""
        best = self.best
        assert best is not None
        return self.sole or not best.fits or self.is_good or self.budget.is_spent

    @property
    def is_good(self) -> bool:
        """Whether the best fits and is good enough."""
        best = self.best
        return best is not None and best.fits and best.schedule.makespan <= self.target

    # -- seeds -------------------------------------------------------------------------------------

    def plant(self) -> None:
        """Tries fast strategies, one device first, until their share is spent and one fits.

        Raises
        ------
        InfeasibleError
            None of them finds room for every op.
        """
        alone = self.tried("single", single.place)
        if alone is not None and alone.fits and self.is_enough(alone):
            return
        for kept in warm.as_candidates(self.problem, self.warm_start):
            self.seeds.append(kept)
            self.offer(kept, "warm start")
        is_loose = alone is not None and alone.fits
        shares = self.seed_shares
        most = SEED_MOST * shares[False]
        tried = set()
        ways = len(deciders(self.problem.graph))
        for name in worth_trying(self.problem, is_loose):
            for part in (None, *self.parts):
                if self.is_good:
                    return
                is_few = part is not None
                if is_few and not self.has_plan:
                    break
                seed, problem = SEEDS[name], part.problem if part else self.problem
                cost = seed.cost(problem, ways)
                first = seed.first(problem)
                left = shares[is_few] if self.has_plan else max(shares[is_few], self.budget.left)
                if first > left or (self.has_plan and self.budget.lacks(first)):
                    continue
                granted = max(most, first)
                if self.has_plan:
                    granted = min(granted, left, RETRIES * cost)
                spent, is_over = self.sown(name, seed, granted, part)
                shares[is_few] -= spent
                if is_over and not is_few:
                    tried.add(name)
        for name, place_all in LAST_RESORTS.items():
            if not self.has_plan and name not in tried:
                self.tried(name, place_all)
        if self.best is None:
            assert self.refused is not None
            raise self.refused

    @property
    def seed_shares(self) -> dict[bool, float]:
        """Seconds for seeds, by whether they are for fewer devices than there are."""
        left = self.budget.left
        if not self.is_refinable:
            return {False: left, True: 0.0}
        early = min(left, EARLY)
        return {
            False: EARLY_SHARE * early + LATER_SHARE * (left - early),
            True: FEW_SHARE * (left - early),
        }

    @property
    def has_plan(self) -> bool:
        """Whether there is something that fits."""
        return self.best is not None and self.best.fits

    @cached_property
    def parts(self) -> list[Part]:
        """The problem on fewer devices, ever fewer; none where transfers take little."""
        return parts(self.problem) if is_dear(self.problem) else []

    def sown(
        self, name: str, seed: Seed, seconds: float, part: Part | None = None
    ) -> tuple[float, bool]:
        """What a seed, for a part of the devices or all, spends of the seconds that it may, and
        whether it was done with them.
        """
        problem = part.problem if part else self.problem
        meter = problem.meter
        meter.reset(seed.simulations_in(problem, seconds))
        is_done, found = True, None
        try:
            found = seed.place(problem)
        except InfeasibleError as error:
            self.refused = error if part is None else self.refused
        except OverdrawnError:
            is_done, found = False, meter.best
        spent = seed.cost_of(problem, meter.used)
        meter.reset()
        if found is not None and part:
            found = part.opened(found)
            spent += self.simulation
        if found is not None:
            self.keep(name, found)
        self.budget.spent += spent
        return spent, is_done

    def is_enough(self, alone: Candidate) -> bool:
        """Whether one device is the answer; says so in the plan."""
        gain = max(0.0, 1 - self.bound / alone.schedule.makespan)
        self.sole = self.problem.cluster.n_devices == 1 or gain <= NEGLIGIBLE
        if self.sole and self.problem.cluster.n_devices > 1:
            note = "one device is as fast as any placement can be: nothing can run in parallel"
            if gain > 1e-6:
                note = (
                    f"one device: next to nothing can run in parallel (at most {gain:.1%} faster)"
                )
            self.best = replace(alone, notes=(*alone.notes, note))
        return self.sole

    def tried(self, name: str, seed: Callable[[Problem], Candidate]) -> Candidate | None:
        """A seed, offered as the best; none if it finds no room."""
        try:
            candidate = seed(self.problem)
        except InfeasibleError as error:
            self.refused = error
            return None
        self.keep(name, candidate)
        return candidate

    def keep(self, name: str, seed: Candidate) -> None:
        """A seed to search from, offered as the best."""
        self.seeds.append(seed)
        self.offer(seed, name)

    def offer(self, candidate: Candidate, stage: str) -> bool:
        """Keeps a candidate if it is the best so far."""
        if (
            self.best is not None
            and self.problem.objective.better(self.best, candidate) is self.best
        ):
            return False
        self.best = candidate
        self.progress(stage, candidate.schedule.makespan)
        return True

    # -- search ------------------------------------------------------------------------------------

    def search(self) -> None:
        """Searches from several seeds for a while, then on from the best of what came of them; from
        others where that ended early.
        """
        seeds = _distinct([_Refined(seed) for seed in self.seeds if seed.fits])
        trials = [seed.candidate for seed in seeds]
        if self.is_refinable:
            trials = self.refined(trials)
        trials, others = trials[:TRIALS], trials[TRIALS:]
        if not self.is_small:
            trials, others = trials[:1], []
        if len(trials) > 1:
            each = TRIAL_SHARE * self.budget.left / len(trials)
            trials = [self.begun(trial, each) for trial in trials]
        start = min(trials, key=_makespan)
        if not self.is_small:
            start = self.cycled(start)
        start = self.gathered(start)
        if not self.is_done:
            self.searched(start, GATHER_SHARE * self.budget.left)
        while others and not self.is_done and self.budget.left > RESTART_SHARE * self.budget.whole:
            share = 1 / len(others)
            start = self.gathered(others.pop(0))
            self.searched(start, (1 - share) * self.budget.left)
        if not self.is_done:
            assert self.best is not None
            self.gathered(self.best)

    def searched(self, start: Candidate, reserve: float) -> None:
        """Windows, then moves of all ops, and again from the best while it gets better: for a
        search that finds nothing ends early, and some seconds are to be left.
        """
        gain = True
        while gain and not self.is_done and self.budget.left > reserve:
            before = self.best
            if self.is_windowed:
                start = self.windowed(start, WINDOW_SHARE * (self.budget.left - reserve))
            if not self.is_done:
                start = self.explored(start, self.budget.left - reserve)
            gain = self.best is not before

    def gathered(self, start: Candidate) -> Candidate:
        """A candidate with less to send, that takes no longer; see :mod:`.auto_gather`."""
        each = self.simulation
        if self.budget.lacks(each):
            return start
        meter = self.problem.meter
        meter.reset()
        found = gathered(self.problem, start, int(GATHER_SHARE * self.budget.whole / each))
        self.budget.spent += each * meter.used
        if not self.offer(found, "gather") and start is self.best:
            self.best = found
        return found

    @property
    def is_searchable(self) -> bool:
        """Whether there are few enough devices to search."""
        return self.problem.cluster.n_devices <= MOST_DEVICES

    @property
    def is_small(self) -> bool:
        """Whether the graph is small enough to search from several seeds."""
        return self.problem.graph.n_ops <= SMALL

    def refined(self, seeds: list[Candidate]) -> list[Candidate]:
        """Seeds with groups of ops moved to better devices: as many as there is time for, each in
        one way or another, then on with the better half of them in the next way, and so on
        (successive halving).
        """
        seconds = REFINE_SHARE * max(self.budget.left, 0.0)
        end = self.budget.spent + seconds
        each = ROUND + ROUND_PER_OP * self.problem.graph.n_ops
        most = int(self.refine_rate * seconds / (REFINE_ROUNDS * each))
        most = min(max(most, TRIALS if self.is_small else 1), REFINED_MOST)
        starts = [(i + lag, i, turn) for i in range(len(seeds)) for turn, lag in enumerate(LAGS)]
        field = [_Refined(seeds[i], turn) for _, i, turn in sorted(starts)[:most]]
        done: list[_Refined] = []
        for left in range(REFINE_ROUNDS, 0, -1):
            share = (end - self.budget.spent) / left / len(field)
            turns = [one.turn for one in field]
            refined = self.refined_each(turns, [one.candidate for one in field], share, "refine")
            found = _distinct(
                [_Refined(one, turn + 1) for one, turn in zip(refined, turns, strict=True)]
            )
            half = -(-len(found) // 2)
            field, done = found[:half], [*found[half:], *done]
        return [one.candidate for one in _distinct([*field, *done])]

    @cached_property
    def hierarchies(self) -> list[Hierarchy]:
        """Groups to refine by on the graph of the ops, for each way."""
        n_ops = self.problem.graph.n_ops
        self.budget.spent += HIERARCHY * n_ops
        near = hierarchy(self.problem)
        repeated: dict[int, Levels] = {0: []}
        for rounds in {way.rounds for way in WAYS} - {0}:
            self.budget.spent += REPEATS * n_ops
            repeated[rounds] = repeats(self.problem, rounds)
        return [Hierarchy(repeated[way.rounds], near) for way in WAYS]

    def cycled(self, start: Candidate) -> Candidate:
        """A candidate refined again and again, each time by groups that its own placement guides,
        until no way finds anything.
        """
        barren = turn = 0
        while barren < len(WAYS) and not self.is_done and self.is_refinable:
            found = self.refined_each([turn], [start], CYCLE_SHARE * self.budget.left, "cycle")[0]
            gain = 1 - found.schedule.makespan / start.schedule.makespan
            barren = barren + 1 if gain < CYCLE_GAIN else 0
            start, turn = found, turn + 1
        return start

    def refined_each(
        self, turns: list[int], starts: list[Candidate], seconds: float, stage: str
    ) -> list[Candidate]:
        """Candidates refined by groups, each in the way whose turn it is for some seconds at most,
        as many at a time as there are threads; offered in their order, up to one that ends the
        search.
        """
        found = [*starts]
        if self.is_done:
            return found
        ways = [(self.hierarchies[turn % len(WAYS)], WAYS[turn % len(WAYS)]) for turn in turns]
        with ThreadPoolExecutor(min(self.threads, len(starts))) as pool:
            running = [
                pool.submit(self.refinement, start, *way, seconds)
                for start, way in zip(starts, ways, strict=True)
            ]
            try:
                for i, one in enumerate(running):
                    if self.is_done:
                        break
                    found[i], visits = one.result()
                    self.budget.spent += visits / self.refine_rate
                    self.offer(found[i], stage)
            finally:
                pool.shutdown(cancel_futures=True)
        return found

    def refinement(
        self, start: Candidate, groups: Hierarchy, way: Way, seconds: float
    ) -> tuple[Candidate, int]:
        """A candidate refined for some seconds, less where the clock forbids it, and visits.
        No thread beside it depends on what it changes: the meter, and whether the clock cut it.
        """
        clock = self.budget.clock
        if clock is not None and self.budget.lacks(seconds):
            seconds = max(clock, 0.0)
        return v_cycle(self.problem, start, groups, way, int(self.refine_rate * seconds))

    @property
    def is_refinable(self) -> bool:
        """Whether what is left is worth building groups for."""
        return HIERARCHY * self.problem.graph.n_ops <= HIERARCHY_SHARE * self.budget.left

    @cached_property
    def simulation(self) -> float:
        """Seconds of the reference machine that a simulation takes."""
        return SIMULATION * microseconds(self.problem)

    @cached_property
    def rate(self) -> float:
        """Visits of ops that the search makes in a second of the reference machine."""
        return SEARCH_RATE / (1 + self.waits)

    @cached_property
    def refine_rate(self) -> float:
        """The same of a refinement."""
        return REFINE_RATE / (1 + REFINE_WAITS * self.waits)

    @cached_property
    def waits(self) -> float:
        """How long the search waits for memory, of the time that it does not."""
        size = self.problem.graph.n_ops * self.problem.cluster.n_devices
        return float(np.sqrt(size / CACHED))

    def begun(self, start: Candidate, seconds: float) -> Candidate:
        """The best that the search's first stage finds from a candidate."""
        return (self.windowed if self.is_windowed else self.explored)(start, seconds)

    @property
    def is_windowed(self) -> bool:
        """Whether the search begins with windows."""
        return self.problem.graph.n_ops >= WINDOWED

    def windowed(self, start: Candidate, seconds: float) -> Candidate:
        """The best that windows find from a candidate."""
        return self.improved(start, seconds, WINDOW_RATE, self.on_chains(fast.search_windows))

    def explored(self, start: Candidate, seconds: float) -> Candidate:
        """The best that moves of all ops find from a candidate."""
        return self.improved(start, seconds, self.rate, self.on_chains(fast.search))

    def on_chains(self, search: Callable[..., Found]) -> Callable[..., Found]:
        """A search by as many chains as there are to be."""
        return partial(search, chains=self.chains, threads=min(self.threads, self.chains))

    def improved(
        self, start: Candidate, seconds: float, rate: float, search: Callable[..., Found]
    ) -> Candidate:
        """The best that a search of so many visits a second finds from a candidate; itself if it
        finds nothing better, or would be shorter than judging what it found. What a search that
        ended early has left is not spent.
        """
        problem, budget = self.problem, self.budget
        if seconds <= JUDGED * self.simulation:
            return start
        devices, schedule = start.assignment.devices, start.schedule
        order = by_start(problem.graph, schedule.start, schedule.finish)
        lead = problem.graph.lead
        follows = np.array_equal(devices[lead], devices)
        core = problem.core.led_by(lead) if follows else problem.core
        held = problem.reduced.held_at_peak
        used = np.zeros(problem.cluster.n_devices, dtype=np.uint64)
        np.add.at(used, devices, held)
        visits = int(rate * seconds)
        patience = min(PATIENCE * visits, PATIENCE_PER_OP * problem.graph.n_ops)
        best = start
        until = None if budget.effort is not None else time.perf_counter() + seconds
        for share in SHARES:
            left = budget.clock if until is None else until - time.perf_counter()
            if left is not None and left <= self.judging:
                budget.is_cut = budget.is_cut or budget.effort is not None
                break
            watch = _Watch(self, 0.0 if until is None else PAUSE * self.judging)
            room = (problem.capacity.astype(np.float64) * share).astype(np.uint64)
            found = search(
                core.within(op_bytes=held, capacity=np.maximum(room, used)),
                (devices, order),
                fast.Stop(
                    visits=visits if until is None else None,
                    time_limit=None if left is None else left - self.judging,
                    patience=int(patience),
                    target=self.target,
                ),
                seed=problem.seed,
                progress=watch,
            )
            budget.spent += found[4] / rate
            last = self.judge(found[0], found[1])
            best = min(
                (c for c in (best, watch.best, last) if c is not None and c.fits),
                key=lambda candidate: candidate.schedule.makespan,
            )
            if last.fits or self.is_done:
                break
        return best

    def judge(self, devices: NDArray[np.int32], order: NDArray[np.int32]) -> Candidate:
        """The better of a state's two ways to run, offered as the best."""
        began = time.perf_counter()
        found = judged(self.problem, Assignment(devices, ranks(order), "fixed"))
        self.judging = time.perf_counter() - began
        self.offer(found, "search")
        return found


def _makespan(candidate: Candidate) -> float:
    return candidate.schedule.makespan


class _Refined(NamedTuple):
    """A candidate, and whose turn it is of the ways to refine it."""

    candidate: Candidate
    turn: int = 0


def _distinct(some: list[_Refined]) -> list[_Refined]:
    """By makespan, one for each placement: refinement often comes to the same from several."""
    found: dict[bytes, _Refined] = {}
    for one in sorted(some, key=lambda one: _makespan(one.candidate)):
        found.setdefault(one.candidate.assignment.devices.tobytes(), one)
    return [*found.values()]


@dataclass
class _Watch:
    """Judges states of a running search; against the clock, not too often."""

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
        self.pause = 0.0 if self.pause == 0.0 else PAUSE * self.run.judging
        self.last = time.perf_counter()
