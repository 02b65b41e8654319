"""torchtitan: degrees of parallelism of a decoder, as its configuration has them.

Fully sharded data parallelism in replicas (:mod:`.fsdp`), or tensor parallelism in replicas in a
pipeline of runs of layers (:mod:`.megatron`): the better, with layers recomputed or not.
"""

from __future__ import annotations

from contextlib import suppress

import numpy as np

from loadmaster.base.errors import InfeasibleError
from loadmaster.base.progress import Progress
from loadmaster.dimensions.form import FLAT
from loadmaster.judge.problem import Problem
from loadmaster.model.graph import PARAMETER, OpGraph
from loadmaster.model.recipe import Recipe
from loadmaster.strategies.attempts import Outcome, accepted
from loadmaster.strategies.candidate import Candidate
from loadmaster.strategies.targets import fsdp, megatron
from loadmaster.strategies.targets.base import Semantics, target
from loadmaster.strategies.targets.layered import listed_layers
from loadmaster.strategies.targets.replicas import check_kind, numbers_of_devices
from loadmaster.strategies.targets.uniform_meshes import PARTS, REPLICAS
from loadmaster.transforms.layout import Layout

NAME = "torchtitan"

SEMANTICS = Semantics(
    system="torchtitan",
    models="a training step of a transformer: a list of layers with attention, and a batch",
    splits="the batch over replicas, with all state in parts or whole; or heads, features, "
    "vocabulary and tokens over tp devices; or the batch into micro-batches",
    unit="a process on a device; layers, whose parameters are gathered together",
    moves="parameters of a layer before it is used, gradients; activations within layers or "
    "between them",
    launches="each process its own ops",
    memory="a part of all state, or of the layers of a stage, and activations",
)


@target(NAME, SEMANTICS)
def torchtitan(
    problem: Problem,
    *,
    root: str = "",
    layers: str | None = None,
    tp: int | None = None,
    pp: int | None = None,
    micro_batches: int | None = None,
    recompute: bool | None = None,
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
    tp, pp : int, optional
        Sizes. Absent: several are tried.
    micro_batches : int, optional
        Of the batch. Absent: several numbers are tried.
    recompute : bool, optional
        Whether layers are recomputed. If absent: if nothing fits otherwise.
    time_limit, progress
        As :func:`loadmaster.strategies.targets.megatron.megatron` has them.

    Raises
    ------
    InputError
        An inference, a model without a list of layers with attention.
    InfeasibleError
        Nothing of that fits.
    """
    check_kind(problem, NAME)
    found = listed_layers(NAME, problem, root, layers)
    made: list[Candidate] = []
    with suppress(InfeasibleError):
        one = megatron.megatron(
            problem,
            root=root,
            layers=layers,
            tp=tp,
            pp=pp,
            micro_batches=micro_batches,
            recompute=recompute,
            distributed_optimizer=False,
            time_limit=time_limit,
            progress=progress,
        )
        made += [one] if degrees(problem.model, one.problem.program.recipe) else []
    several = any(len(devices) > 1 for devices in numbers_of_devices(problem, NAME, None))
    if several and max(tp or 1, pp or 1) == 1 and micro_batches is None:
        with suppress(InfeasibleError):
            made.append(fsdp.plan(problem, recompute=recompute, progress=progress))
    if not made:
        raise InfeasibleError(
            "no replicas of equal parts of the batch, no heads in equal parts, and no runs of "
            f"{len(found)} layers that fit: give more memory, or a batch that more devices divide"
        )
    best = problem.objective.best(made)
    return accepted(best.problem, Outcome(best, 1.0))


def degrees(graph: OpGraph, recipe: Recipe | None) -> dict[str, int] | None:
    """Degrees by the words of torchtitan's meshes: dp_replicate, dp_shard, tp, pp; None: they do
    not say the recipe.
    """
    found = {"dp_replicate": 1, "dp_shard": 1, "tp": 1, "pp": 1}
    if recipe is None:
        return found
    inside = recipe.inside
    layout = None if inside is None else Layout.of(graph, inside)
    for axis in recipe.mesh.axes:
        word = {REPLICAS: "dp_replicate", PARTS: "dp_shard"}.get(axis.name, axis.name)
        if word == "dp":
            assert layout is not None, "the axis is inside of stages"
            flat = layout.labels[layout.mesh.names.index("dp")] == FLAT
            is_whole = ~flat[graph.stands_for == PARAMETER]
            if is_whole.any() and flat.any():
                return None
            word = "dp_shard" if np.any(flat) else "dp_replicate"
        if word not in found or axis.shares is not None:
            return None
        found[word] = axis.size
    return found
