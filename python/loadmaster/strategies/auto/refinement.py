"""Refinement: the best seeds by halves, then the best plan again and again.

Many seeds are refined a little, the better half of these once more, and so on (successive halving):
what a seed is worth shows only once it is refined. Each round goes by another way of refinement.
On a large graph the best of what came of it is then refined in cycles.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from loadmaster.judge.objective import Objective
from loadmaster.strategies.auto.passes import Levels, near_levels, repeats_levels
from loadmaster.strategies.auto.run import Run
from loadmaster.strategies.auto.v_cycle import Hierarchy, v_cycle
from loadmaster.strategies.candidate import Candidate


class Entrant(NamedTuple):
    """A candidate that may be refined.

    Attributes
    ----------
    candidate : Candidate
    turn : int
        The way that it is refined in next, counted from the first way on and beyond the last.
    """

    candidate: Candidate
    turn: int = 0


def ranking(objective: Objective, some: list[Entrant]) -> list[Entrant]:
    """The best first. Of several with the same devices the best one stays: refinement often comes
    to the same placement from several seeds.
    """
    distinct: dict[bytes, Entrant] = {}
    for one in sorted(some, key=lambda one: objective.rank(one.candidate.verdict)):
        distinct.setdefault(one.candidate.assignment.devices.tobytes(), one)
    return [*distinct.values()]


@dataclass
class Refinement:
    """Refinement for a run."""

    run: Run

    @cached_property
    def hierarchies(self) -> list[Hierarchy]:
        """For each way, groups of ops to refine by."""
        run, pace = self.run, self.run.pace
        tuning = run.tuning
        run.budget.spend(pace.near)
        near = near_levels(run.problem, tuning)
        repeated: dict[int, Levels] = {0: []}
        for rounds in {way.rounds for way in tuning.ways} - {0}:
            run.budget.spend(pace.repeats)
            repeated[rounds] = repeats_levels(run.problem, rounds, tuning)
        return [Hierarchy(repeated[way.rounds], near) for way in tuning.ways]

    def halved(self, seeds: list[Candidate]) -> list[Candidate]:
        """Seeds, the best first, after rounds of refinement: as many begin as there is time for,
        each in some of the ways, and the better half goes on to its next way. Ranked by step time,
        those that did not go on among them.
        """
        run, tuning, objective = self.run, self.run.tuning, self.run.problem.objective
        seconds = tuning.refine_share * max(run.budget.left, 0.0)
        end = run.budget.spent + seconds
        field, done = self._entrants(seeds, seconds), list[Entrant]()
        for left in range(tuning.refine_rounds, 0, -1):
            share = (end - run.budget.spent) / left / len(field)
            refined = self.all_at_once(field, share, "refine")
            ranked = ranking(objective, refined)
            half = -(-len(ranked) // 2)
            field, done = ranked[:half], [*ranked[half:], *done]
        return [one.candidate for one in ranking(objective, [*field, *done])]

    def _entrants(self, seeds: list[Candidate], seconds: float) -> list[Entrant]:
        """Seeds and ways to begin with in some seconds, the most promising first."""
        run, tuning = self.run, self.run.tuning
        each = tuning.round_visits + tuning.round_visits_per_op * run.problem.graph.n_ops
        most = int(run.pace.refinement * seconds / (tuning.refine_rounds * each))
        most = min(max(most, tuning.trials if run.is_small else 1), tuning.most_refined)
        handicaps = enumerate(tuning.handicaps)
        starts = [(i + late, i, turn) for turn, late in handicaps for i in range(len(seeds))]
        return [Entrant(seeds[i], turn) for _, i, turn in sorted(starts)[:most]]

    def cycled(self, start: Candidate) -> Candidate:
        """A candidate refined again and again, by coarse graphs that its own placement guides,
        until no way gains much.
        """
        run, barren, entrant = self.run, 0, Entrant(start)
        while barren < len(run.tuning.ways) and not run.is_done and run.is_refinable:
            before = entrant.candidate.verdict
            seconds = run.tuning.cycle_share * run.budget.left
            [entrant] = self.all_at_once([entrant], seconds, "cycle")
            gain = run.problem.objective.gain(before, entrant.candidate.verdict)
            barren = barren + 1 if gain < run.tuning.cycle_gain else 0
        return entrant.candidate

    def all_at_once(self, field: list[Entrant], seconds: float, stage: str) -> list[Entrant]:
        """Candidates refined, each in its way for some seconds at most, with their next turns.

        As many are refined at a time as there are threads. They are offered in their order, up to
        the one that ends the search; those after it stay as they were.
        """
        run = self.run
        after = [Entrant(one.candidate, one.turn + 1) for one in field]
        if run.is_done:
            return after
        # The groups are built before any thread wants them.
        ways = [one.turn % len(self.hierarchies) for one in field]
        with ThreadPoolExecutor(min(run.threads, len(field))) as pool:
            running = [
                pool.submit(self.once, one.candidate, way, seconds)
                for one, way in zip(field, ways, strict=True)
            ]
            try:
                for i, one in enumerate(running):
                    if run.is_done:
                        break
                    candidate, visits = one.result()
                    run.budget.spend(visits / run.pace.refinement)
                    run.offer(candidate, stage)
                    after[i] = after[i]._replace(candidate=candidate)
            finally:
                pool.shutdown(cancel_futures=True)
        return after

    def once(self, start: Candidate, way: int, seconds: float) -> tuple[Candidate, int]:
        """A candidate refined in a way for some seconds, or for less if the clock forbids these,
        and the visits spent. No other thread reads what this changes: whether the clock cut it.
        """
        run = self.run
        clock = run.budget.clock
        if clock is not None and run.budget.lacks(seconds):
            seconds = max(clock, 0.0)
        visits = int(run.pace.refinement * seconds)
        tuning, groups = run.tuning, self.hierarchies[way]
        return v_cycle(run.problem, start, groups, tuning.ways[way], visits, tuning)
