"""Inference as vLLM divides it: tensor parallelism of layers inside of runs of whole layers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby, product

import numpy as np
from numpy.typing import NDArray

from loadmaster.base import checks
from loadmaster.base.errors import InfeasibleError, InputError
from loadmaster.dimensions.dimensions import Dimensions
from loadmaster.judge.problem import Problem
from loadmaster.model.families import families
from loadmaster.model.micro import Micro
from loadmaster.model.parallelism import Parallelism
from loadmaster.model.recipe import Mesh
from loadmaster.rules.layer_list import LayerList
from loadmaster.strategies.attempts import Outcome, accepted
from loadmaster.strategies.candidate import Candidate
from loadmaster.strategies.pipelines.piped import piped, with_recipe
from loadmaster.strategies.sharding.judging import expanded, layout, notes
from loadmaster.strategies.sharding.judging import with_recipe as with_labels
from loadmaster.strategies.sharding.ranking import Ranked
from loadmaster.strategies.sharding.space import Space
from loadmaster.strategies.simple.layer_ranges import ranges
from loadmaster.systems.registry import refused
from loadmaster.systems.shared.expert_parallel import number_of_experts
from loadmaster.systems.shared.layered import (
    in_runs,
    inference_layers,
    is_encoder,
    layer_of,
)
from loadmaster.systems.shared.tensor_parallel import Experts, divides, weights_cut
from loadmaster.systems.vllm.semantics import NAME


def vllm(
    problem: Problem,
    *,
    root: str = "",
    layers: str | None = None,
    tp: int | None = None,
    pp: int | None = None,
    expert_parallel: bool | None = None,
) -> Candidate:
    """The best sizes of tensor parallelism and of pipeline parallelism.

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
        Sizes. Absent: powers of two whose product the devices are enough for. An encoder has no
        stages: vLLM's classes of encoders know none.
        Sizes. Absent: powers of two whose product the devices are enough for.
    expert_parallel : bool, optional
        Whether each device of a stage has some routed experts whole, or a part of each. Absent:
        what is better.

    Raises
    ------
    InputError
        A training step, a model without a list of layers, stages of an encoder.
    InfeasibleError
        Nothing of that fits.
    """
    for name, value in (("tp", tp), ("pp", pp)):
        if value is not None:
            checks.integer(name, value, 1)
    found = inference_layers(NAME, problem, root, layers)
    if is_encoder(found):
        if pp not in (None, 1):
            raise refused(NAME, f"pp is {pp}, and it has no stages of an encoder")
        pp = 1
    if expert_parallel and not _has_experts(problem):
        raise refused(NAME, "the model has no routed experts, and expert_parallel has them apart")
    family = [name for name, _ in families(problem.cluster)]
    gpus = [d for d, name in enumerate(family) if name != "cpu"] or list(range(len(family)))
    layer = layer_of(problem, found)
    experts: list[Experts] = ["cut"] * (expert_parallel is not True)
    experts += ["apart"] * (expert_parallel is not False)
    made = list(_candidates(problem, found, layer, gpus, tp, pp, experts))
    if not made:
        raise InfeasibleError(
            f"{len(gpus)} devices do not hold the {len(found)} layers, in runs or in equal parts"
        )
    best = problem.objective.best(made)
    return accepted(best.problem, Outcome(best, 1.0))


def _has_experts(problem: Problem) -> bool:
    try:
        return number_of_experts(Space.of(problem).structure) > 0
    except InputError:
        return False


def _candidates(
    problem: Problem,
    found: LayerList,
    layer: NDArray[np.int32],
    gpus: list[int],
    tp: int | None,
    pp: int | None,
    experts: list[Experts],
) -> Iterator[Candidate]:
    """Candidates to judge: of each size of a stage, each number of stages."""
    sizes = [1 << i for i in range(len(gpus).bit_length())]
    for k in sizes if tp is None else [tp]:
        if k > len(gpus):
            continue
        ways = _labels(problem, found, gpus[:k], experts) if k > 1 else [None]
        for p, labels in product(sizes if pp is None else [pp], ways):
            if p * k > len(gpus) or p > len(found):
                continue
            if labels is None:
                runs = np.maximum(layer, 0).astype(np.int32)
                one = in_runs(problem, runs, gpus[:p], gpus[0])
            elif p == 1:
                space, ranked = labels.space, labels.ranked
                one = with_labels(space, ranked, expanded(space, ranked))
                one = one.noted(*notes(ranked, one))
            else:
                one = _in_stages(problem, labels, layer, np.array(gpus[: p * k]).reshape(p, k))
            if one is not None:
                yield replace(one, parallelism=_parallelism(one, found, k, labels))


@dataclass(frozen=True)
class _Labels:
    """Labels inside of a stage, and what they do with routed experts."""

    space: Space
    ranked: Ranked
    experts: Experts


def _parallelism(one: Candidate, found: LayerList, tp: int, labels: _Labels | None) -> Parallelism:
    """The degrees of parallelism of what was judged: layers by the devices that they are on."""
    program, reduced = one.problem.program, one.problem.reduced
    first = np.full(program.source.n_ops, one.problem.cluster.n_devices, dtype=np.int32)
    np.minimum.at(first, program.serves, one.assignment.devices[reduced.map])
    of_layer = first[found.cuts.order[found.begins]].tolist()
    layers = tuple(len(list(run)) for _, run in groupby(of_layer))
    is_apart = labels is not None and labels.experts == "apart"
    return Parallelism(
        tp=tp,
        ep=tp if is_apart else 1,
        experts="apart" if is_apart else "cut",
        stages=len(layers),
        layers=layers,
        schedule="gpipe" if len(layers) > 1 else None,
    )


def _labels(
    problem: Problem, found: LayerList, gpus: list[int], experts: list[Experts]
) -> list[_Labels | None]:
    """Labels of all layers in equal parts on some devices, with routed experts cut or apart; none:
    heads, or experts that are apart, do not go into so many.
    """
    k = len(gpus)
    if not divides(Dimensions.of(problem.model), k):
        return []
    try:
        space = Space.of(problem)
    except InputError:
        return []
    names = tuple(problem.cluster.devices[d].name for d in gpus)
    mesh = replace(Mesh.of({"tp": k}), devices=names)
    n_experts, made = number_of_experts(space.structure), list[_Labels | None]()
    for way in experts if n_experts else experts[:1]:
        if way == "cut" or n_experts % k == 0:
            ranked = weights_cut(space, mesh, found, sequence=False, experts=way)
            made += [] if ranked is None else [_Labels(space, ranked, way)]
    return made


def _in_stages(
    problem: Problem,
    labels: _Labels,
    layer: NDArray[np.int32],
    devices: NDArray[np.int64],
) -> Candidate | None:
    """Layers in runs, each in equal parts on the devices of a row; None: there are fewer runs."""
    p, k = devices.shape
    bytes_ = problem.reduced.held_at_peak // np.uint64(k)
    room = np.zeros(problem.cluster.n_devices, dtype=np.uint64)
    room[devices[:, 0]] = problem.capacity[devices].min(axis=1)
    first = ranges(problem, np.maximum(layer, 0), bytes_, room)
    stage = np.searchsorted(devices[:, 0], first)[problem.reduced.map].astype(np.int32)
    if not np.isin(first, devices[:, 0]).all() or len(np.unique(stage)) < p:
        return None
    micro, inside = Micro(1, "gpipe"), layout(labels.space, labels.ranked)
    one = piped(problem, stage, devices, micro, layout=inside)
    return with_recipe(one, stage, devices, micro, layout=inside)
