"""Inference as vLLM divides it: every layer on all devices, or runs of whole layers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from loadmaster.base.errors import InfeasibleError, InputError
from loadmaster.dimensions.dimensions import Dimensions
from loadmaster.judge.problem import Problem
from loadmaster.model.families import families
from loadmaster.model.recipe import Mesh
from loadmaster.rules.layer_list import LayerList
from loadmaster.strategies.attempts import Outcome, accepted
from loadmaster.strategies.candidate import Candidate
from loadmaster.strategies.sharding.space import Space
from loadmaster.strategies.targets.base import Semantics, target
from loadmaster.strategies.targets.layered import in_runs, inference_layers, layer_of
from loadmaster.strategies.targets.tensor_parallel import divides, weights_cut

NAME = "vllm"

SEMANTICS = Semantics(
    system="vLLM",
    models="the inference of a transformer: a list of layers with attention",
    splits="heads, features and vocabulary, equally over all devices (tensor parallelism)",
    unit="a run of layers per device (pipeline parallelism), or all layers on all devices",
    moves="activations to the next run of layers, or an all-reduce after each product by rows",
    launches="each device's process its own ops",
    memory="weights of its part, and activations; not the cache of keys and values",
)


@target(NAME, SEMANTICS)
def vllm(
    problem: Problem,
    *,
    root: str = "",
    layers: str | None = None,
    tp: int | None = None,
    pp: int | None = None,
) -> Candidate:
    """The best of tensor parallelism and of pipeline parallelism, each of several sizes.

    Parameters
    ----------
    problem : Problem
        Of an inference.
    root : str
        What the model is called in the graph's module paths, where it was traced as part of a
        larger one.
    layers : str, optional
        The module list that holds the layers; the longest in the model if absent.
    tp, pp : int, optional
        Sizes. Absent: all devices, a half of them, and so on, of one, and 1 of the other.

    Raises
    ------
    InputError
        A training step, a model without a list of layers, both sizes above 1.
    InfeasibleError
        Nothing of that fits.

    Notes
    -----
    Stages that are themselves tensor parallel are not planned.
    """
    if tp is not None and pp is not None and min(tp, pp) > 1:
        raise InputError(
            f"tp is {tp} and pp is {pp}: stages that are tensor parallel are not planned; give one"
        )
    found = inference_layers(NAME, problem, root, layers)
    family = [name for name, _ in families(problem.cluster)]
    gpus = [d for d, name in enumerate(family) if name != "cpu"] or list(range(len(family)))
    sizes = [len(gpus) >> i for i in range(len(gpus).bit_length())]
    made: list[Candidate] = []
    layer = layer_of(problem, found)
    for p in [pp] if pp is not None else [1] if (tp or 1) > 1 else sizes:
        if p <= min(len(gpus), len(found)):
            one = in_runs(problem, np.maximum(layer, 0).astype(np.int32), gpus[:p], gpus[0])
            made += [] if one is None else [one]
    if (pp or 1) == 1:
        made += _tensor_parallel(problem, found, gpus, [tp] if tp else sizes)
    if tp is not None and tp > 1:
        made = [one for one in made if one.problem.program.recipe is not None]
    if not made:
        raise InfeasibleError(
            f"{len(gpus)} devices do not hold the {len(found)} layers, in runs or in equal parts"
        )
    best = problem.objective.best(made)
    return accepted(best.problem, Outcome(best, 1.0))


def _tensor_parallel(
    problem: Problem, found: LayerList, gpus: list[int], sizes: list[int]
) -> list[Candidate]:
    """All layers in equal parts on the first of the devices, for sizes that divide the heads."""
    dimensions = Dimensions.of(problem.model)
    made = []
    try:
        space = Space.of(problem)
    except InputError:
        return []
    for k in sizes:
        if k > 1 and k <= len(gpus) and divides(dimensions, k):
            names = tuple(problem.cluster.devices[d].name for d in gpus[:k])
            mesh = replace(Mesh.of({"tp": k}), devices=names)
            one = weights_cut(space, mesh, found, sequence=False)
            made += [] if one is None else [one]
    return made
