"""Labels that a target can say on meshes of equal parts: the best by the judge, and what any others
would gain.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from loadmaster.base.effort import Budget
from loadmaster.base.progress import Incumbent, Progress
from loadmaster.base.units import format_seconds
from loadmaster.strategies.attempts import Outcome, accepted
from loadmaster.strategies.candidate import Candidate
from loadmaster.strategies.sharding.judging import expanded, notes, with_recipe
from loadmaster.strategies.sharding.ranking import Ranked, best_of, ranked
from loadmaster.strategies.sharding.space import Space

#: Number of the best by the symmetric simulation that are judged.
_JUDGED = 3

#: How much worse than the best, by the estimate, rows may be of which one is judged for its number
#: of devices.
_NEAR = 1.1


def best_judged(
    space: Space,
    rows: Sequence[Ranked],
    words: str,
    budget: Budget,
    progress: Progress | None,
    judge: Callable[[Space, Ranked], Candidate] = expanded,
) -> tuple[Candidate, Ranked]:
    """The best of ranked labels by the judge, with its recipe, and noted what others would gain;
    and these labels.

    Parameters
    ----------
    space : Space
    rows : sequence of Ranked
        The best first; one or more.
    words : str
        What says such labels, in the plural: ``"styles of modules"``.
    budget : Budget
        For labels that nothing need say.
    progress : callable or None
        Called with the mesh and the best step time whenever there is a better plan.
    judge : callable
        Places and judges labels as the target runs them.
    """
    objective = space.problem.objective
    best, labels = None, rows[0]
    for one in _to_judge(rows):
        candidate = judge(space, one)
        if best is None or objective.better(best, candidate) is candidate:
            best, labels = candidate, one
            if progress is not None:
                progress(f"sharded on {one.words}", Incumbent(candidate.verdict.step_time))
    assert best is not None, "there is one"
    best = with_recipe(space, labels, best).noted(*notes(labels, best))
    best = best.noted(*_beside(space, best, words, budget))
    return accepted(best.problem, Outcome(best, 1.0)), labels


def _to_judge(rows: Sequence[Ranked]) -> list[Ranked]:
    """The first rows, and the first of every other number of devices that is nearly as good."""
    some = list(rows[:_JUDGED])
    lacks, step = rows[0].key
    for row in rows[_JUDGED:]:
        is_near = row.key[0] == lacks and row.key[1] <= _NEAR * step
        if is_near and row.mesh.size not in {one.mesh.size for one in some}:
            some.append(row)
    return some


def _beside(space: Space, best: Candidate, labels: str, budget: Budget) -> tuple[str, ...]:
    """The gain of labels that need not be said, on any mesh."""
    rows = best_of(ranked(space, budget), 1)
    if not rows:
        return ()
    free, ours = expanded(space, rows[0]).verdict.step_time, best.verdict.step_time
    if free >= ours:
        return (f"any labels on any mesh, whether {labels} say them or not: none found are faster",)
    return (
        f"any labels on any mesh would take {format_seconds(free)}, what {labels} can say "
        f"{format_seconds(ours)} ({ours / free - 1:.1%} more)",
    )
