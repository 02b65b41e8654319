"""Planting: fast strategies are tried, one device first, and what they make is kept as seeds."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

from loadmaster.base.errors import InfeasibleError
from loadmaster.judge.allowance import AllowanceError
from loadmaster.judge.assignment import Assignment
from loadmaster.judge.problem import Problem
from loadmaster.strategies import least_overflow, warm
from loadmaster.strategies.auto.parts import DevicePart, parts
from loadmaster.strategies.auto.run import Run
from loadmaster.strategies.auto.seeds import (
    FOR_LITTLE,
    LAST_RESORTS,
    LENGTHY,
    SEEDS,
    is_dear,
    worth_trying,
)
from loadmaster.strategies.candidate import Candidate
from loadmaster.strategies.deciders import deciders
from loadmaster.strategies.refusal import proof
from loadmaster.strategies.simple import single


@dataclass
class Planting:
    """Seeds of a run.

    Attributes
    ----------
    run : Run
    to_beat : float
        Seconds of a step of the plan that there is already; infinite: there is none.
    seeds : list of Candidate
        What was made so far; not all need fit.
    refused : InfeasibleError or None
        Why the last strategy that found no room for all ops found none.
    """

    run: Run
    to_beat: float = math.inf
    seeds: list[Candidate] = field(default_factory=list)
    refused: InfeasibleError | None = None

    def plant(self, warm_start: Assignment | None = None) -> list[Candidate]:
        """The seeds: one device, what the user begins with, then strategies until their share of
        the effort is spent and a plan fits. Ends at once where a plan is good enough.

        Raises
        ------
        InfeasibleError
            No strategy finds room for every op.
        """
        run = self.run
        alone = self.try_whole("single", single.place)
        is_loose = alone is not None and alone.fits
        if alone is not None and is_loose and self.is_enough(alone):
            return self.seeds
        for kept in warm.as_candidates(run.problem, warm_start):
            self.keep(kept, "warm start")
        tried = self.sow_all(is_loose)
        for name, place in LAST_RESORTS.items():
            if not run.has_plan and name not in tried:
                self.try_whole(name, place)
        if not run.has_plan and proof(run.problem) is None:
            self.mend()
        if run.best is None:
            assert self.refused is not None
            raise self.refused
        return self.seeds

    def try_whole(self, name: str, place: Callable[[Problem], Candidate]) -> Candidate | None:
        """The candidate of a strategy, however long it takes; None if it finds no room."""
        try:
            candidate = place(self.run.problem)
        except InfeasibleError as error:
            self.refused = error
            return None
        self.keep(candidate, name)
        return candidate

    def mend(self) -> None:
        """Searches for the least overflow from what each seed makes with best effort, that which
        is over by the fewest bytes first, until a plan fits. So do the methods by themselves.
        A seed that takes as long as the plan that there is, though it holds too much, is left.
        """
        problem, closest = self.run.problem, []
        for name, seed in SEEDS.items():
            with suppress(InfeasibleError):
                candidate = seed.place(replace(problem, best_effort=True))
                if not problem.objective.reaches(candidate.verdict, self.to_beat):
                    continue
                closest.append((candidate.verdict.excess, name, candidate))
        for _, name, candidate in sorted(closest, key=lambda row: row[0]):
            start = replace(candidate, problem=problem)
            self.try_whole(name, partial(least_overflow.place, start=start))
            if self.run.has_plan:
                return

    def keep(self, seed: Candidate, name: str) -> None:
        """Takes a seed, and offers it as the best plan."""
        self.seeds.append(seed)
        self.run.offer(seed, name)

    @property
    def is_hopeless(self) -> bool:
        """True if the first seeds all take so long that none will beat the plan that there is."""
        run = self.run
        is_sure = run.has_plan and len(self.seeds) >= run.tuning.sure_seeds
        return is_sure and not run.reaches(run.tuning.seed_hope * self.to_beat)

    def is_enough(self, alone: Candidate) -> bool:
        """True if one device is the answer; the plan then says so."""
        run = self.run
        gain = run.problem.objective.gap(alone.verdict, run.bound)
        several = run.problem.cluster.n_devices > 1
        run.is_sole = not several or gain <= run.tuning.negligible
        if run.is_sole and several:
            note = "one device is as fast as any placement of whole ops: no two can run in parallel"
            if gain > run.tuning.optimal:
                note = (
                    f"one device: next to no whole ops can run in parallel (at most {gain:.1%} "
                    "faster)"
                )
            run.best = alone.noted(note)
        return run.is_sole

    # -- strategies with an allowance --------------------------------------------------------------

    def sow_all(self, is_loose: bool) -> set[str]:
        """Tries what is cheap on all devices, whatever the effort and beside it. Then, with what
        that left of the effort's share for seeds: what takes long, and seeds on parts of the
        devices. The names of those that were done with all devices.
        """
        run, shares = self.run, self.shares()
        names = worth_trying(run.problem, is_loose, run.tuning)
        cheap = [name for name in names if name not in LENGTHY]
        spent, done = self.sow_whole(cheap)
        shares[False] -= spent
        ceiling = run.tuning.seed_ceiling * shares[False]
        some = parts(run.problem) if is_dear(run.problem, run.tuning) else []
        for name in names:
            for part in (None, *some) if name in LENGTHY else some:
                if run.is_good or not run.has_plan or self.is_hopeless:
                    return done
                is_few = part is not None
                problem = part.problem if part else run.problem
                first, left = SEEDS[name].first(problem), shares[is_few]
                if first > left or run.budget.lacks(first):
                    continue
                most = run.tuning.retries * self.whole(name, problem)
                granted = min(max(ceiling, first), left, most)
                spent, _ = self.sow(name, granted, part)
                run.budget.spend(spent)
                shares[is_few] -= spent
        return done

    def sow_whole(self, names: list[str]) -> tuple[float, set[str]]:
        """Tries seeds on all devices, as far as each goes by itself; the seconds that they take,
        and the names of those that were done. Only a clock ends one before it is done.
        """
        run, spent, done = self.run, 0.0, set[str]()
        for name in names:
            if run.is_near or self.is_hopeless:
                break
            if name in FOR_LITTLE and not run.has_plan:
                continue  # The last resort, which says where its plan comes from.
            if run.has_plan and run.budget.lacks(SEEDS[name].first(run.problem)):
                continue
            took, is_done = self.sow(name, math.inf)
            spent += took
            if is_done:
                done.add(name)
        return spent, done

    def whole(self, name: str, problem: Problem) -> float:
        """Seconds in which a seed is done where its first attempts fit."""
        return SEEDS[name].cost(problem, len(deciders(problem.graph)))

    def shares(self) -> dict[bool, float]:
        """Seconds for seeds, by whether they are for fewer devices than there are. Without
        refinement nothing gains from later seconds, so that seeds on all devices have all of them.
        """
        run, left = self.run, self.run.budget.left
        if not run.is_refinable:
            return {False: left, True: 0.0}
        tuning = run.tuning
        early = min(left, tuning.early_seconds)
        return {
            False: tuning.early_share * early + tuning.later_share * (left - early),
            True: tuning.fewer_devices_share * (left - early),
        }

    def sow(self, name: str, seconds: float, part: DevicePart | None = None) -> tuple[float, bool]:
        """Tries a seed for some seconds, on a part of the devices or on all: the seconds that it
        takes, and whether it was done within them. Once there is a plan, the clock counts, too.

        A seed that was not is ended, and the best that it had found until then is kept.
        """
        run, seed = self.run, SEEDS[name]
        problem = part.problem if part else run.problem
        clock = run.budget.clock if run.has_plan else None
        granted = seconds if clock is None else min(seconds, clock)
        is_done, candidate = True, None
        with problem.meter.allowing(seed.verdicts_in(problem, granted)) as allowance:
            try:
                candidate = seed.place(problem)
            except InfeasibleError as error:
                self.refused = error if part is None else self.refused
            except AllowanceError:
                is_done = False
        if granted == clock and not is_done:
            run.budget.cut()
        if not is_done and allowance.best is not None:
            assignment, verdict = allowance.best
            # An estimate is of the plan that a strategy returns, and this one returned none.
            candidate = Candidate(problem, replace(assignment, estimate=None), verdict)
        spent = seed.cost_of(problem, allowance.used)
        if candidate is not None and part:
            candidate = part.opened(candidate)
            spent += run.pace.simulation
        if candidate is not None:
            self.keep(candidate, name)
        return spent, is_done
