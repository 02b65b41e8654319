"""Inference of a transformer as servers divide it (vLLM, SGLang, TensorRT-LLM): tensor parallelism
of layers inside of runs of whole layers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from math import prod

import numpy as np
from numpy.typing import NDArray

from loadmaster.base.errors import InfeasibleError, InputError
from loadmaster.dimensions.dimensions import Dimensions
from loadmaster.judge.problem import Problem, longest_path
from loadmaster.model.factorisations import factorisations
from loadmaster.model.families import families
from loadmaster.model.micro import Micro
from loadmaster.model.parallelism import Parallelism
from loadmaster.model.recipe import DeviceMesh
from loadmaster.rules.layer_list import LayerList
from loadmaster.strategies.attempts import Outcome, accepted
from loadmaster.strategies.candidate import Candidate
from loadmaster.strategies.grids.expert_parallel import number_of_experts
from loadmaster.strategies.grids.tensor_parallel import Experts, divides, weights_cut
from loadmaster.strategies.pipelines.piped import piped, with_recipe
from loadmaster.strategies.sharding.judging import expanded, layout, notes
from loadmaster.strategies.sharding.judging import with_recipe as with_labels
from loadmaster.strategies.sharding.ranking import Ranked
from loadmaster.strategies.sharding.space import Space
from loadmaster.strategies.simple.layer_ranges import ranges
from loadmaster.systems.registry import refused
from loadmaster.systems.shared.asked_sizes import check_sizes
from loadmaster.systems.shared.layered import (
    in_runs,
    inference_layers,
    is_encoder,
    layer_of,
)


def served(
    problem: Problem,
    name: str,
    root: str,
    layers: str | None,
    tp: int | None,
    pp: int | None,
    expert_parallel: bool | None,
) -> Candidate:
    """The best sizes of tensor parallelism and of pipeline parallelism, for the target of a name.

    Parameters
    ----------
    problem : Problem
        Of an inference.
    name : str
        A system that keeps encoders in one stage.
    root, layers : str
        As :class:`~loadmaster.rules.layer_list.LayerList` takes them.
    tp, pp : int or None
        Sizes. None: all whose product the devices are enough for.
    expert_parallel : bool or None
        Whether each device of a stage has some routed experts whole, or a part of each. None: the
        better of the two.

    Raises
    ------
    InputError
        A model of another kind, stages of an encoder; sizes that devices, layers or heads do not go
        into.
    InfeasibleError
        Nothing of that fits.
    """
    layer_list = inference_layers(name, problem, root, layers)
    if is_encoder(layer_list):
        if pp not in (None, 1):
            raise refused(
                name, f"pp is {pp}, and it has no stages of an encoder: attention is not causal"
            )
        pp = 1
    if expert_parallel and not _has_experts(problem):
        raise refused(name, "the model has no routed experts, and expert_parallel has them apart")
    family = [name for name, _ in families(problem.cluster)]
    gpus = [d for d, name in enumerate(family) if name != "cpu"] or list(range(len(family)))
    check_sizes(problem, layer_list, len(gpus), tp=tp, pp=pp)
    layer = layer_of(problem, layer_list)
    experts: list[Experts] = ["cut"] * (expert_parallel is not True)
    experts += ["apart"] * (expert_parallel is not False)
    best = _best(_InferenceLayers(problem, layer_list, layer, tuple(gpus), tuple(experts)), tp, pp)
    if best is None:
        sizes = ", ".join(f"{word} {size}" for word, size in (("tp", tp), ("pp", pp)) if size)
        raise InfeasibleError(
            f"{len(gpus)} devices do not hold the {len(layer_list)} layers in runs or in equal "
            f"parts, with {sizes or 'any sizes of tp and pp'}: give more memory or more devices"
        )
    return accepted(best.problem, Outcome(best, 1.0))


def _has_experts(problem: Problem) -> bool:
    try:
        return number_of_experts(Space.of(problem).structure) > 0
    except InputError:
        return False


@dataclass(frozen=True)
class _Labels:
    """Labels inside of a stage, and what they do with routed experts."""

    space: Space
    ranked: Ranked
    experts: Experts


def _parallelism(
    one: Candidate, layer_list: LayerList, tp: int, labels: _Labels | None
) -> Parallelism:
    """The degrees of parallelism of what was judged: layers by the devices that they are on."""
    program, reduced = one.problem.program, one.problem.reduced
    first = np.full(program.source.n_ops, one.problem.cluster.n_devices, dtype=np.int32)
    np.minimum.at(first, program.serves, one.assignment.devices[reduced.map])
    of_layer = first[layer_list.cuts.order[layer_list.begins]].tolist()
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


@dataclass(frozen=True)
class _InferenceLayers:
    """The layers of an inference, and devices for them.

    Attributes
    ----------
    problem : Problem
    listed : LayerList
    number : int32 [n_reduced]
        The layer of each op; below 0: it comes before them.
    gpus : tuple of int
    experts : tuple of "cut" or "apart"
        How routed experts may lie on the devices of a stage.
    """

    problem: Problem
    listed: LayerList
    number: NDArray[np.int32]
    gpus: tuple[int, ...]
    experts: tuple[Experts, ...]

    @cached_property
    def floors(self) -> tuple[float, float]:
        """Seconds of all ops, and of the longest path of them, each on its fastest device."""
        times = self.problem.time[:, np.array(self.problem.cluster.device_types)[list(self.gpus)]]
        least = times.min(axis=1)
        return float(least.sum()), longest_path(self.problem.graph, least)

    def floor(self, tp: int, pp: int) -> float:
        """Seconds that no plan of such sizes is below: devices share all work, and the devices of a
        stage each op. Steps of a stream follow each other before they end.
        """
        work, path = self.floors
        is_step = self.problem.objective.goal == "step"
        return max(work / (tp * pp), path / tp if is_step else 0.0)

    def candidates(self, tp: int, pp: int) -> Iterator[Candidate]:
        """Candidates of some sizes to judge."""
        for labels in self.labels(tp) if tp > 1 else [None]:
            one = self._candidate(labels, tp, pp)
            if one is not None:
                yield replace(one, parallelism=_parallelism(one, self.listed, tp, labels))

    def _candidate(self, labels: _Labels | None, tp: int, pp: int) -> Candidate | None:
        """The layers in runs, with some labels or on a device each; None: they are not there."""
        if labels is None:
            runs = np.maximum(self.number, 0).astype(np.int32)
            return in_runs(self.problem, runs, self.gpus[:pp], self.gpus[0])
        if pp > 1:
            devices = np.array(self.gpus[: pp * tp]).reshape(pp, tp)
            return _in_stages(self.problem, labels, self.number, devices)
        space, ranked = labels.space, labels.ranked
        one = with_labels(space, ranked, expanded(space, ranked))
        return one.noted(*notes(ranked, one))

    def labels(self, tp: int) -> list[_Labels]:
        """Labels of all layers in equal parts, with routed experts cut or apart; none: heads, or
        experts that are apart, do not go into so many.
        """
        if tp not in self._labels:
            self._labels[tp] = list(self._labelled(tp))
        return self._labels[tp]

    @cached_property
    def _labels(self) -> dict[int, list[_Labels]]:
        return {}

    def _labelled(self, tp: int) -> Iterator[_Labels]:
        try:
            space = Space.of(self.problem)
        except InputError:
            return
        names = tuple(self.problem.cluster.devices[d].name for d in self.gpus[:tp])
        mesh = replace(DeviceMesh.of({"tp": tp}), devices=names)
        n_experts = number_of_experts(space.structure)
        for way in self.experts if n_experts else self.experts[:1]:
            if way == "cut" or n_experts % tp == 0:
                ranked = weights_cut(space, mesh, self.listed, sequence=False, experts=way)
                if ranked is not None:
                    yield _Labels(space, ranked, way)


def _best(layers: _InferenceLayers, tp: int | None, pp: int | None) -> Candidate | None:
    """The best of all sizes, those first that could be the shortest; None: nothing fits. Sizes that
    cannot be as short as what there is are left out.
    """
    objective = layers.problem.objective
    numbers = range(len(layers.gpus), 0, -1) if None in (tp, pp) else [(tp or 1) * (pp or 1)]
    dimensions = Dimensions.of(layers.problem.model)

    def may(sizes: tuple[int, ...]) -> bool:
        if len(sizes) == 1:
            is_whole = sizes[0] == 1 or divides(dimensions, sizes[0])
            return tp in (None, sizes[0]) and is_whole
        return pp in (None, sizes[1]) and sizes[1] <= len(layers.listed)

    sizes = [one for one in factorisations(numbers, 2, may) if prod(one) <= len(layers.gpus)]
    judged: list[tuple[tuple[int, ...], Candidate]] = []
    best: Candidate | None = None
    for one in sorted(sizes, key=lambda one: (layers.floor(*one), one)):
        seconds = np.inf if best is None or not best.fits else objective.seconds(best.verdict)
        if layers.floor(*one) > seconds:
            break
        judged += [(one, candidate) for candidate in layers.candidates(*one)]
        best = objective.best(candidate for _, candidate in judged) if judged else None
    # Of equals the one of the smallest sizes.
    judged.sort(key=lambda row: row[0])
    return objective.best(candidate for _, candidate in judged) if judged else None


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
