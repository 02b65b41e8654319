"""Training as Megatron-LM divides it: tensor parallelism inside of replicas inside of a pipeline of
layers, with interleaved runs of layers, recomputed layers and a distributed optimizer.
"""

from __future__ import annotations

from loadmaster.base import checks
from loadmaster.base.effort import Budget
from loadmaster.base.errors import InfeasibleError
from loadmaster.base.progress import Incumbent, Progress
from loadmaster.judge.problem import Problem
from loadmaster.strategies.attempts import Outcome, accepted
from loadmaster.strategies.candidate import Candidate
from loadmaster.strategies.targets.base import Semantics, refused, target
from loadmaster.strategies.targets.grids import Asked, Cut, Grids
from loadmaster.strategies.targets.layered import listed_layers
from loadmaster.transforms.shares import batch_size

NAME = "megatron"

SEMANTICS = Semantics(
    system="Megatron-LM",
    models="a training step of a transformer: a list of layers with attention, and a batch",
    splits="heads, features and vocabulary over tp devices, tokens between the products; the batch "
    "over dp, and into micro-batches; the optimizer's state over dp",
    unit="runs of layers on the tp x dp devices of a stage: one run, or several where interleaved",
    moves="activations within layers, and from one run of layers to the next; gradients of "
    "replicas in buckets, and what was updated",
    launches="each rank its own ops",
    memory="parameters, gradients and optimizer state of the rank, and activations of the "
    "micro-batches that the schedule keeps, or what recomputed layers begin with",
)

#: How many grids are judged that fit, at most, and how many at all.
_JUDGED, _TRIED = 3, 12

#: What is taken to be longer than the best judged step by more than this share is not judged.
_WITHIN = 0.05

#: How often stages are found for less of the memory, and the share of it that is left free then.
_ATTEMPTS, _SPARE = 4, 0.97

#: The share of the memory that will do where best effort is asked for.
ANY = 1e6


@target(NAME, SEMANTICS)
def megatron(
    problem: Problem,
    *,
    root: str = "",
    layers: str | None = None,
    tp: int | None = None,
    pp: int | None = None,
    dp: int | None = None,
    micro_batches: int | None = None,
    virtual: int | None = None,
    sequence: bool = True,
    recompute: bool | None = None,
    distributed_optimizer: bool | None = None,
    time_limit: float | None = None,
    progress: Progress | None = None,
) -> Candidate:
    """The best grid of tensor parallelism, replicas and stages.

    Parameters
    ----------
    problem : Problem
        Of a training step.
    root : str
        What the model is called in the graph's module paths, where it was traced as part of a
        larger one.
    layers : str, optional
        The module list that holds the layers; the longest in the model if absent.
    tp, pp, dp : int, optional
        Sizes. Absent: all that divide the number of devices, or a half of it, and so on.
    micro_batches : int, optional
        That a replica does one after another. Absent: several numbers are tried.
    virtual : int, optional
        Runs of layers per stage. Absent: 1, 2, 4, ...
    sequence : bool
        Whether what lies between the products may be cut by tokens (sequence parallelism).
    recompute : bool, optional
        Whether layers are recomputed. Absent: where nothing of a grid fits otherwise.
    distributed_optimizer : bool, optional
        Whether replicas have a part each of the optimizer's state. Absent: what is better.
    time_limit : float, optional
        Seconds on the clock; what is under way is finished first. Absent: no limit.
    progress : callable, optional
        Called with the grid in words and the best step time whenever there is a better one.

    Raises
    ------
    InputError
        An inference, a model without a list of layers; sizes that nothing goes with.
    InfeasibleError
        Nothing of that fits.
    """
    if "b" not in problem.model.phases:
        raise refused(NAME, "the graph has no backward pass")
    batch = batch_size(problem.model)
    if batch is None:
        raise refused(NAME, "nobody says how many samples the batch has")
    named = {"tp": tp, "pp": pp, "dp": dp, "micro_batches": micro_batches, "virtual": virtual}
    for name, value in named.items():
        if value is not None:
            checks.integer(name, value, 1)
    found = listed_layers(NAME, problem, root, layers)
    asked = Asked(tp, pp, dp, micro_batches, virtual, recompute)
    grids = Grids(problem, found, batch, sequence=sequence, flat=distributed_optimizer is not False)
    if next(grids.sizes(asked), None) is None:
        sizes = ", ".join(f"{name} {value}" for name, value in named.items() if value)
        raise InfeasibleError(
            f"no grid of {len(grids.devices)} devices, of a half of them, and so on, with "
            f"{sizes or 'any sizes'}: dp divides the batch of {batch}, no heads in equal parts "
            f"are fewer than tp, and stages have one of the {len(found)} layers or more"
        )
    budget = Budget.make(None, time_limit) if time_limit is not None else Budget(1.0, None)
    best = fastest(grids, asked, budget, progress)
    if best is None and problem.best_effort:
        best = fastest(grids, asked, budget, progress, ANY)
    if best is None:
        raise InfeasibleError(
            f"no grid of {len(grids.devices)} devices with so many micro-batches and runs of the "
            f"{len(found)} layers fits: give more memory, or leave sizes out"
        )
    one, cut = best
    if distributed_optimizer is None and cut.grid.dp > 1:
        whole = grids.judged(cut, flat=False)
        one = problem.objective.better(one, whole)
    return accepted(one.problem, Outcome(one, 1.0))


def fastest(
    grids: Grids, asked: Asked, budget: Budget, progress: Progress | None, share: float = 1.0
) -> tuple[Candidate, Cut] | None:
    """The best of the grids that were judged; None: the layers of no grid fit."""
    objective = grids.problem.objective
    best: tuple[Candidate, Cut] | None = None
    for _ in range(_ATTEMPTS):
        judged = fitting = 0
        for cut in grids.best_first(asked, share):
            if best is not None and best[0].fits:
                is_far = cut.seconds > (1 + _WITHIN) * best[0].verdict.step_time
                if is_far or fitting >= _JUDGED or budget.lacks(0.0):
                    break
            if judged >= _TRIED:
                break
            one = grids.judged(cut, flat=grids.flat)
            judged, fitting = judged + 1, fitting + one.fits
            if not one.fits:
                grids.over.add(cut.grid)
            if best is None or objective.better(best[0], one) is one:
                best = one, cut
                if progress is not None:
                    progress(cut.grid.words, Incumbent(one.verdict.step_time))
        if best is None or best[0].fits:
            return best
        share *= _SPARE / best[0].overfull
    return best
