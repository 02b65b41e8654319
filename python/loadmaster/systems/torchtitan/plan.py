"""torchtitan: degrees of parallelism of a decoder, as its configuration has them
(:mod:`loadmaster.systems.shared.decoder_grids`), with layers recomputed, some of their ops
(:mod:`.checkpointing`), or nothing.
"""

from __future__ import annotations

from typing import Literal

from loadmaster.base import checks
from loadmaster.base.progress import Progress
from loadmaster.judge.problem import Problem
from loadmaster.model.micro import IN_V
from loadmaster.rules.layer_list import LayerList
from loadmaster.strategies.candidate import Candidate
from loadmaster.strategies.grids.recomputation_levels import whole_layers
from loadmaster.systems.registry import refused
from loadmaster.systems.shared.decoder_grids import Degrees, best_degrees
from loadmaster.systems.shared.layered import decoder_layers
from loadmaster.systems.shared.replicas import check_kind
from loadmaster.systems.torchtitan.checkpointing import SELECTIVE, selected
from loadmaster.systems.torchtitan.precision import without_words
from loadmaster.systems.torchtitan.semantics import NAME


def torchtitan(
    problem: Problem,
    *,
    root: str = "",
    layers: str | None = None,
    replicate: int | None = None,
    shard: int | None = None,
    tp: int | None = None,
    pp: int | None = None,
    micro_batches: int | None = None,
    recompute: bool | Literal["selective"] | None = None,
    schedule: Literal["auto", "1f1b", "zb-v"] = "auto",
    time_limit: float | None = None,
    progress: Progress | None = None,
) -> Candidate:
    """The best of data, tensor and pipeline parallelism, as degrees.

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
        How many replicas of the state of a stage there are, and how many devices have a part each
        of one; 1: it is whole. Absent: several are tried.
    tp, pp : int, optional
        Sizes. Absent: several are tried.
    micro_batches : int, optional
        Of the batch. Absent: several numbers are tried.
    recompute : bool or "selective", optional
        Whether layers are recomputed; "selective": what torchtitan's selective checkpointing does
        not keep. If absent: as little of these as fits.
    schedule : "auto" (default), "1f1b" or "zb-v"
        Of stages. "auto": the best of these and of interleaved 1F1B.
    time_limit, progress
        As :func:`loadmaster.systems.megatron.plan.megatron` has them.

    Raises
    ------
    InputError
        An inference, a model without a list of layers with attention, or an encoder; sizes that
        devices, layers or heads do not go into.
    InfeasibleError
        Nothing of that fits.
    """
    check_kind(problem, NAME)
    if reason := without_words(problem.model):
        raise refused(NAME, reason)
    checks.one_of("schedule", schedule, ("auto", "1f1b", IN_V))
    layer_list = decoder_layers(NAME, problem, root, layers)
    sizes = Degrees(replicate, shard, tp, pp, micro_batches, schedule)
    levels = _levels(problem, layer_list, recompute)
    return best_degrees(problem, NAME, layer_list, levels, sizes, time_limit, progress)


def _levels(
    problem: Problem, layer_list: LayerList, recompute: bool | str | None
) -> list[tuple[str, ...]]:
    """Levels of recomputation, the least first, by lines of a recipe."""
    if not isinstance(recompute, bool | None):
        checks.one_of("recompute", recompute, (SELECTIVE,))
    line = selected(problem.model, layer_list) if recompute in (None, SELECTIVE) else None
    if recompute == SELECTIVE and line is None:
        raise refused(NAME, "ops of its layers are not PyTorch's, or layers differ in them")
    levels: list[tuple[str, ...]] = [()] if recompute in (None, False) else []
    levels += [(line,)] if line is not None else []
    levels += [(whole_layers(layer_list),)] if recompute in (None, True) else []
    return levels
