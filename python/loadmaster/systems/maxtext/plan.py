"""MaxText and Flax: replicas of a decoder, with state whole or in parts, and tensor parallelism."""

from __future__ import annotations

from loadmaster.base.progress import Progress
from loadmaster.judge.problem import Problem
from loadmaster.rules.layer_list import LayerList
from loadmaster.strategies.candidate import Candidate
from loadmaster.strategies.grids.recomputation_levels import whole_layers
from loadmaster.systems.maxtext.semantics import FLAX, NAME
from loadmaster.systems.shared.decoder_grids import Degrees, best_degrees
from loadmaster.systems.shared.layered import decoder_layers
from loadmaster.systems.shared.replicas import check_kind


def maxtext(
    problem: Problem,
    *,
    root: str = "",
    layers: str | None = None,
    replicate: int | None = None,
    shard: int | None = None,
    tp: int | None = None,
    recompute: bool | None = None,
    time_limit: float | None = None,
    progress: Progress | None = None,
) -> Candidate:
    """The best sizes of MaxText's axes data, fsdp and tensor_sequence.

    Parameters
    ----------
    problem : Problem
        Of a training step.
    root : str
        What the model is called in the graph's module paths, where it was traced as part of a
        larger one.
    layers : str, optional
        The module list that holds the layers; the longest in the model if absent.
    replicate, shard : int, optional
        How many replicas of the state there are, and how many devices have a part each of one; 1:
        it is whole. Absent: several are tried.
    tp : int, optional
        Size of tensor parallelism. Absent: several are tried.
    recompute : bool, optional
        Whether layers are recomputed. Absent: if nothing fits otherwise.
    time_limit, progress
        As :func:`loadmaster.systems.megatron.plan.megatron` has them.

    Raises
    ------
    InputError
        An inference, a model of another kind; sizes that devices or heads do not go into.
    InfeasibleError
        Nothing of that fits.
    """
    check_kind(problem, NAME)
    layer_list = decoder_layers(NAME, problem, root, layers)
    sizes = Degrees(replicate, shard, tp, 1, 1, "1f1b")
    return best_degrees(
        problem, NAME, layer_list, _levels(layer_list, recompute), sizes, time_limit, progress
    )


def flax(
    problem: Problem,
    *,
    root: str = "",
    layers: str | None = None,
    replicate: int | None = None,
    shard: int | None = None,
    tp: int | None = None,
    recompute: bool | None = None,
    time_limit: float | None = None,
    progress: Progress | None = None,
) -> Candidate:
    """The best sizes of axes data, fsdp and tensor; as :func:`maxtext`."""
    check_kind(problem, FLAX)
    layer_list = decoder_layers(FLAX, problem, root, layers)
    sizes = Degrees(replicate, shard, tp, 1, 1, "1f1b")
    return best_degrees(
        problem, FLAX, layer_list, _levels(layer_list, recompute), sizes, time_limit, progress
    )


def _levels(layer_list: LayerList, recompute: bool | None) -> list[tuple[str, ...]]:
    """Levels of recomputation, the least first: nothing, and whole layers."""
    levels: list[tuple[str, ...]] = [] if recompute else [()]
    return [*levels, *([] if recompute is False else [(whole_layers(layer_list),)])]
