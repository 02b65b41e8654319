"""The numbers that ``auto`` was tuned by, with what each one means and where it comes from.

"By hand" says that no measurement is on record by which the value was chosen. What half and twice
of every value do was measured since: ``benches/results/tuning.md``, by ``benches/tuning.py``. Where
another command is named, it prints figures that the value shows in. All shares are from 0 to 1.
Seconds are of the reference machine, as :mod:`loadmaster.base.effort` counts them. A *visit* is
what the compiled search counts: an op whose times a move changes, or as much other work as takes as
long.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from loadmaster.base.effort import EFFORTS


class RefinementWay(NamedTuple):
    """A way to coarsen and refine a placement.

    Attributes
    ----------
    rounds : int
        Two ops play the same part if they look alike as far as this many steps around them. 0: no
        groups of ops that play the same part.
    evenness : float
        The time of a group of a coarse graph is at most this many times the mean over its groups.
        0: no coarse graphs.
    is_given : bool
        Where the groups that play the same part come from on a coarse graph. True: from the ops,
        each group standing for its longest op. False: from the coarse graph itself.
    """

    rounds: int
    evenness: float
    is_given: bool = False


@dataclass(frozen=True)
class Tuning:
    """Every constant of ``auto`` that is not a fact of the method."""

    # -- seeds: how long fast strategies may take --------------------------------------------------

    #: CCR (Celeritas, equation 1) from which on transfers count as dear. Measured, by a run that is
    #: not on record: below it list schedules were nearly always the best seeds, above it partitions
    #: and contiguous layers.
    dear_ccr: float = 4.0
    #: The first seconds of an effort, in which seeds gain more than searches do: all that the
    #: effort "fast" counts. By hand.
    early_seconds: float = EFFORTS["fast"]
    #: Share of the early seconds for seeds on all devices. What cheap seeds take, which are tried
    #: whatever the effort and beside it, is off this share before lengthy ones have theirs. By
    #: hand.
    early_share: float = 0.45
    #: Share of the later seconds for seeds on all devices. By hand.
    later_share: float = 0.12
    #: Share of the later seconds for seeds on fewer devices. By hand.
    fewer_devices_share: float = 0.1
    #: Share of the seconds left for seeds on all devices that a single lengthy seed may take. By
    #: hand.
    seed_ceiling: float = 0.5
    #: Limit of the seconds of a seed on a part of the devices, as a multiple of what it takes there
    #: where its first attempt fits. By hand.
    retries: float = 2.0
    #: No more seeds are tried once a step is over the bound by no more than this share of it.
    #: ``benches/unseen.py`` counts ``auto`` as behind from 0.1 % on; half of that.
    near_bound: float = 0.0005
    #: A plan whose fullest device has more than this share of its memory free is not held back by
    #: it. By hand.
    free_memory: float = 0.3

    # -- replicas ----------------------------------------------------------------------------------

    #: Replicas with collectives are not judged where their estimated step is longer than that of
    #: the best plan by more than this share of it. By hand: as far as shards are judged (``WITHIN``
    #: in :mod:`loadmaster.strategies.sharding.sharded`).
    replicas_near: float = 0.25
    #: Replicas whose step is longer than that of the best by no more than this share of it are
    #: tried in a better order, which gains 15 % at most on the training graphs of
    #: ``benches/replicas.py models``.
    inside_near: float = 0.2
    #: Share of the effort for the search inside the best replicas. By hand.
    inside_share: float = 0.2
    #: Share of the effort for placing ops of replicas one by one. By hand.
    loose_share: float = 0.5
    #: Where the step of replicas is longer than the bound by more than this share of it, their ops
    #: are placed one by one. By hand.
    loose_near: float = 0.5
    #: Seeds that take longer than so many times the best replicas are not searched from. By hand.
    loose_hope: float = 2.0

    #: Where the best seed of whole ops takes longer than so many times the best plan with replicas
    #: or shards, whole ops are not searched for. By hand: that a search would not have gained that
    #: much was seen on the 14 rows of ``benches/sharding.py --method auto`` whose bound left room.
    whole_hope: float = 1.25
    #: Where so many seeds of whole ops all take longer than so many times that plan, there are no
    #: more seeds. By hand. Nothing says that a later one is no better: with short memory it can be.
    sure_seeds: int = 6
    seed_hope: float = 1.5

    # -- pace: seconds of the reference machine ----------------------------------------------------

    #: Microseconds per op of a simulation on eight devices. By hand, as the row ``partition`` of
    #: ``benches/seeds.py`` has it: that seed does little else than simulate.
    simulation_microseconds: float = 0.5
    #: Visits per second of moves of all ops, on a graph that the caches hold.
    #: ``benches/search.py models`` prints CPU seconds beside the seconds counted at this rate.
    search_rate: float = 30e6
    #: Visits per second of windows. ``benches/search.py models``, as for moves of all ops.
    window_rate: float = 20e6
    #: Visits per second of a refinement, on a graph that the caches hold.
    #: ``benches/search.py models``, as for moves of all ops.
    refine_rate: float = 45e6
    #: Ops times devices at which moves of all ops wait for memory as long as they compute.
    #: ``benches/search.py models``, as for the rates.
    cached_size: float = 40_000.0
    #: Wait of a refinement for memory, as a share of how long moves of all ops wait. By
    #: hand.
    refine_waits: float = 0.35
    #: Seconds per op to build the groups of ops near each other. By hand.
    near_seconds: float = 3e-6
    #: Seconds per op to build the groups of ops that play the same part. By hand.
    repeats_seconds: float = 1e-6

    # -- refinement: which seeds go on, and in which ways ------------------------------------------

    #: Share of the seconds left after the seeds that refinement may take. By hand.
    refine_share: float = 0.5
    #: Rounds of refinement; each goes on with the better half of the seeds before. By hand.
    refine_rounds: int = 3
    #: Visits that a seed is to have in a round: so many, and so many more per op. By hand.
    round_visits: float = 6e6
    round_visits_per_op: float = 400
    #: The most pairs of a seed and a way that the first round begins with. By hand.
    most_refined: int = 12
    #: The ways of refinement. A seed goes through them in turn. That each helps was measured on
    #: single models (groups that play the same part: Mamba on 8 devices with NVLink from 0.477 to
    #: 0.41 of one device's step time, RNNLM on 4 with PCIe from 0.525 to 0.475). The numbers in
    #: them are by hand.
    ways: tuple[RefinementWay, ...] = (
        RefinementWay(6, 30.0),
        RefinementWay(6, 0.0),
        RefinementWay(0, 8.0),
        RefinementWay(4, 8.0, is_given=True),
    )
    #: Handicap of each way in the first round, in ranks of seeds: with 2.0, the best seed begins in
    #: that way after the second-best seed has begun in the first way. By hand.
    handicaps: tuple[float, ...] = (0.0, 0.1, 2.0, 2.1)
    #: Share of the seconds left that building groups of ops near each other may take, for
    #: refinement to be worth while. By hand.
    groups_share: float = 0.2
    #: Share of the seconds left that one cycle of refinement takes on a large graph. By hand.
    cycle_share: float = 0.35
    #: The least gain of a cycle, as a share of the step time. A cycle that gains less counts as
    #: one that found nothing. By hand.
    cycle_gain: float = 0.001

    # -- groups and passes: one refinement ---------------------------------------------------------

    #: Groups of ops near each other on each level, coarse to fine; one more level has single ops.
    #: By hand.
    near_groups: tuple[int, ...] = (32, 128, 512, 2048)
    #: The time of such a group, at most, as a multiple of the mean over the level. By hand.
    near_evenness: float = 3.0
    #: The time of a group of ops that play the same part, at most, as a share of the time of all
    #: ops: a level each, coarse to fine. By hand.
    repeats_shares: tuple[float, ...] = (0.6, 0.4, 0.25, 0.125, 0.0625, 0.015625)
    #: Shares of each device's memory that a pass may fill: one after another until the result
    #: fits. By hand.
    pass_memory: tuple[float, ...] = (1.0, 0.9, 0.7)
    #: Share of the visits left that one pass over all levels may take. By hand.
    pass_share: float = 0.7
    #: The least visits per op that a pass is worth beginning with. By hand.
    least_pass: int = 60
    #: Visits per op that take as long as what a pass does before and after its moves. By hand.
    around_pass: int = 25

    # -- V-cycles: refinement on coarse graphs -----------------------------------------------------

    #: Ops per group on each coarse graph, fine to coarse. By hand.
    coarse_ratios: tuple[int, ...] = (2, 4, 8)
    #: The fewest groups that a coarse graph may have. By hand.
    fewest_groups: int = 64
    #: The most ops of a coarse graph, as a share of those of the next finer one. By hand.
    coarse_shrinkage: float = 0.9
    #: Share of the visits left that refinement on one coarse graph may take. By hand.
    coarse_share: float = 0.4
    #: The least visits per op that coarse graphs are worth building with. By hand.
    least_coarse: int = 450
    #: Visits on the graph of the ops that take as long as one on a coarse graph, whose groups read
    #: and make more tensors. By hand.
    coarse_visit: int = 2
    #: Visits that take as long as building a coarse graph, per op of the next finer one. By hand.
    coarse_building: int = 60
    #: The V-cycles of ``refine=True``, in turn, each with its share of the visits left. By hand.
    polish: tuple[tuple[RefinementWay, float], ...] = (
        (RefinementWay(6, 30.0), 0.5),
        (RefinementWay(0, 8.0), 0.5),
        (RefinementWay(0, 0.0), 1.0),
    )
    #: Visits of ``refine=True`` in all: about a second. By hand.
    polish_visits: int = 40_000_000

    # -- search ------------------------------------------------------------------------------------

    #: The most ops of a graph that is searched from several seeds. By hand.
    small_graph: int = 10_000
    #: Seeds that a small graph is searched from. By hand.
    trials: int = 2
    #: Share of the seconds left for the trials: searches that show which seed goes furthest. By
    #: hand.
    trial_share: float = 0.15
    #: Share of all seconds that must be left to search from another seed. By hand.
    restart_share: float = 0.1
    #: Share of all seconds for sending less, before the search and once more after it. By hand.
    gather_share: float = 0.04
    #: The fewest ops of a graph whose search begins with windows. By hand;
    #: ``benches/search.py windows`` compares windows with moves of all ops on large graphs.
    windowed_graph: int = 1000
    #: Share of a search's seconds for windows, where it begins with them. By hand.
    window_share: float = 0.6
    #: The search ends where this share of its visits has found nothing better. By hand.
    patience: float = 0.5
    #: It also ends where so many visits per op have found nothing better. By hand.
    patience_per_op: int = 50_000
    #: Shares of each device's memory that the search may fill: one after another until what it
    #: finds fits. By hand.
    search_memory: tuple[float, ...] = (1.0, 0.9, 0.8, 0.65, 0.5)
    #: Where the clock limits the search: how long it goes on before its state is judged again, as
    #: a multiple of what judging takes. By hand.
    pause: float = 10

    # -- when a plan is good enough ----------------------------------------------------------------

    #: A step time over the bound by this share of it is optimal, and a gain of this share is none.
    #: By hand.
    optimal: float = 1e-6
    #: If no plan can gain more than this share of one device's step time, one device is the answer.
    #: By hand.
    negligible: float = 0.005


TUNING = Tuning()
