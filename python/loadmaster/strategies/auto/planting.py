"""Planting: fast strategies are tried, one device first, and what they make is kept as seeds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from loadmaster.base.errors import InfeasibleError
from loadmaster.judge.allowance import AllowanceError
from loadmaster.judge.assignment import Assignment
from loadmaster.judge.problem import Problem
from loadmaster.strategies import warm
from loadmaster.strategies.auto.parts import Part, parts
from loadmaster.strategies.auto.run import Run
from loadmaster.strategies.auto.seeds import LAST_RESORTS, SEEDS, Seed, is_dear, worth_trying
from loadmaster.strategies.candidate import Candidate
from loadmaster.strategies.deciders import deciders
from loadmaster.strategies.simple import single


@dataclass
class Planting:
    """Seeds of a run.

    Attributes
    ----------
    run : Run
    seeds : list of Candidate
        What was made so far; not all need fit.
    refused : InfeasibleError or None
        Why the last strategy that found no room for all ops found none.
    """

    run: Run
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
        if run.best is None:
            assert self.refused is not None
            raise self.refused
        return self.seeds

    def try_whole(self, name: str, place: Callable[[Problem], Candidate]) -> Candidate | None:
        """What a strategy makes, however long it takes; None if it finds no room."""
        try:
            candidate = place(self.run.problem)
        except InfeasibleError as error:
            self.refused = error
            return None
        self.keep(candidate, name)
        return candidate

    def keep(self, seed: Candidate, name: str) -> None:
        """Takes a seed, and offers it as the best plan."""
        self.seeds.append(seed)
        self.run.offer(seed, name)

    def is_enough(self, alone: Candidate) -> bool:
        """Whether one device is the answer; says so in the plan."""
        run = self.run
        gain = run.problem.objective.gap(alone.verdict, run.bound)
        several = run.problem.cluster.n_devices > 1
        run.is_sole = not several or gain <= run.tuning.negligible
        if run.is_sole and several:
            note = "one device is as fast as any placement can be: nothing can run in parallel"
            if gain > run.tuning.optimal:
                note = (
                    f"one device: next to nothing can run in parallel (at most {gain:.1%} faster)"
                )
            run.best = alone.noted(note)
        return run.is_sole

    # -- strategies with an allowance --------------------------------------------------------------

    def sow_all(self, is_loose: bool) -> set[str]:
        """Tries seeds on all devices and, once a plan fits, on parts of them, as far as there are
        seconds for each; the names of those that were done with all devices.

        A seed is begun if there are seconds for its first plan. While nothing fits, the whole
        budget counts.
        """
        run, shares, done = self.run, self.shares(), set[str]()
        ceiling = run.tuning.seed_ceiling * shares[False]
        ways = len(deciders(run.problem.graph))
        some = parts(run.problem) if is_dear(run.problem, run.tuning) else []
        for name in worth_trying(run.problem, is_loose, run.tuning):
            seed = SEEDS[name]
            for part in (None, *some):
                if run.is_good:
                    return done
                is_few = part is not None
                if is_few and not run.has_plan:
                    break
                problem = part.problem if part else run.problem
                first = seed.first(problem)
                left = shares[is_few] if run.has_plan else max(shares[is_few], run.budget.left)
                if first > left or (run.has_plan and run.budget.lacks(first)):
                    continue
                granted = max(ceiling, first)
                if run.has_plan:
                    most = run.tuning.retries * seed.cost(problem, ways)
                    granted = min(granted, left, most)
                spent, is_done = self.sow(name, seed, granted, part)
                shares[is_few] -= spent
                if is_done and not is_few:
                    done.add(name)
        return done

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

    def sow(
        self, name: str, seed: Seed, seconds: float, part: Part | None = None
    ) -> tuple[float, bool]:
        """Tries a seed for some seconds, on a part of the devices or on all: the seconds that it
        spends, and whether it was done within them.

        A seed that was not is ended, and the best that it had found until then is kept.
        """
        run = self.run
        problem = part.problem if part else run.problem
        is_done, found = True, None
        with problem.meter.allowing(seed.verdicts_in(problem, seconds)) as allowance:
            try:
                found = seed.place(problem)
            except InfeasibleError as error:
                self.refused = error if part is None else self.refused
            except AllowanceError:
                is_done = False
        if not is_done and allowance.best is not None:
            assignment, verdict = allowance.best
            # An estimate is of the plan that a strategy returns, and this one returned none.
            found = Candidate(problem, replace(assignment, estimate=None), verdict)
        spent = seed.cost_of(problem, allowance.used)
        if found is not None and part:
            found = part.opened(found)
            spent += run.pace.simulation
        if found is not None:
            self.keep(found, name)
        run.budget.spend(spent)
        return spent, is_done
