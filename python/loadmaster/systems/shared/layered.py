"""Whole layers on devices, one run each, for systems that run an inference layer by layer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from loadmaster.base.errors import InfeasibleError, InputError
from loadmaster.judge.problem import Problem
from loadmaster.rules.attention import attention, is_two_way
from loadmaster.rules.layer_list import LayerList
from loadmaster.rules.module_cuts import ModuleCuts
from loadmaster.rules.stack import not_alone, not_in_line, words_reach
from loadmaster.strategies.candidate import Candidate
from loadmaster.strategies.simple.assigned import assigned
from loadmaster.strategies.simple.layer_ranges import ranges
from loadmaster.systems.registry import refused


def inference_layers(name: str, problem: Problem, root: str, layers: str | None) -> LayerList:
    """The layers of an inference, for the target of a name.

    Raises
    ------
    InputError
        A training step, or as :func:`listed_layers` says. Of several stacks of layers a user may
        name one.
    """
    if set(problem.model.phases) - {"", "f"}:
        raise refused(name, "the graph is of a training step")
    if layers is None:
        way_out = ". A plan for one of them, the rest on its first device, takes the option layers"
        _check_alone(name, problem, root, None, way_out)
    return _checked(name, problem, root, layers)


def listed_layers(name: str, problem: Problem, root: str, layers: str | None) -> LayerList:
    """The layers of a model that is one stack of layers, for the target of a name.

    Raises
    ------
    InputError
        A graph that was transformed, a model without a list of layers, without attention in them,
        with layers of several widths, with several stacks of layers, or one that reads no words.
    """
    _check_alone(name, problem, root, layers)
    return _checked(name, problem, root, layers)


def decoder_layers(name: str, problem: Problem, root: str, layers: str | None) -> LayerList:
    """The layers of a decoder, for the target of a name.

    Raises
    ------
    InputError
        As :func:`listed_layers`, and where tokens attend to later ones.
    """
    layer_list = listed_layers(name, problem, root, layers)
    if is_encoder(layer_list):
        raise refused(
            name,
            f"the attention in the layers {layer_list.name!r} is not causal: tokens attend to "
            "later ones",
        )
    return layer_list


def _check_alone(
    name: str, problem: Problem, root: str, layers: str | None, way_out: str = ""
) -> None:
    if reason := not_alone(ModuleCuts(problem.model, root), layers):
        raise refused(name, f"{reason}{way_out}")


def _checked(name: str, problem: Problem, root: str, layers: str | None) -> LayerList:
    """Layers with attention and of one width, one after another, which words come to."""
    if not problem.program.is_plain or problem.model.is_member.any():
        raise refused(name, "the graph was transformed, or has collectives of its own")
    try:
        layer_list = LayerList.of(problem.model, root, layers)
        layer_list.begins  # noqa: B018
    except InputError as error:
        raise refused(name, str(error)) from error
    if not attention(problem.model, inside(layer_list)):
        raise refused(name, f"there is no attention in the layers {layer_list.name!r}")
    if reason := not_in_line(layer_list):
        raise refused(name, reason)
    if not words_reach(layer_list):
        raise refused(
            name,
            "the model reads no words: no input of whole numbers comes to the layers "
            f"{layer_list.name!r}",
        )
    return layer_list


def inside(layer_list: LayerList) -> list[int]:
    """The ops of the forward pass that are in a layer."""
    prefix = f"{layer_list.name}." if layer_list.name else ""
    is_in = [module.startswith(prefix) and module != "" for module in layer_list.cuts.module_of]
    ops: list[int] = layer_list.cuts.order[is_in].tolist()
    return ops


def is_encoder(layer_list: LayerList) -> bool:
    """True if tokens attend to later ones in every layer, as far as the graph says."""
    return is_two_way(layer_list.cuts.graph, inside(layer_list))


def layer_of(problem: Problem, layer_list: LayerList) -> NDArray[np.int32]:
    """The layer of each reduced op of an inference, from 0; -1: it comes before the first.

    What shares a device with others is in the last layer of them.
    """
    of = np.full(problem.model.n_ops, -1, dtype=np.int64)
    of[layer_list.cuts.order] = np.where(
        np.arange(len(layer_list.layer)) < layer_list.first, -1, layer_list.layer
    )
    reduced, sets = of[problem.reduced.op_of], problem.graph.colocation
    last = np.full(int(sets.max()) + 1, -1, dtype=np.int64)
    np.maximum.at(last, sets, reduced)
    return last[sets].astype(np.int32)


def in_runs(
    problem: Problem, layer: NDArray[np.int32], devices: Sequence[int], before: int
) -> Candidate | None:
    """Layers in one run on each of some devices, the slowest as fast as can be within the memory.

    Parameters
    ----------
    problem : Problem
    layer : int32 [n_reduced]
        Of each op; below 0: it is on the device ``before``.
    devices : sequence of int
        Ascending: in the order of the layers.
    before : int

    Returns
    -------
    Candidate or None
        None: they cannot be held there.
    """
    is_before = layer < 0
    used = np.isin(np.arange(problem.cluster.n_devices), devices)

    def assign(bytes_: NDArray[np.uint64], capacity: NDArray[np.uint64]) -> NDArray[np.int32]:
        room = np.where(used, capacity, np.uint64(0)).astype(np.uint64)
        room[before] -= min(int(room[before]), int(bytes_[is_before].sum()))
        bytes_ = np.where(is_before, np.uint64(0), bytes_).astype(np.uint64)
        placed = ranges(problem, np.maximum(layer, 0), bytes_, room)
        return np.where(is_before, before, placed).astype(np.int32)

    try:
        candidate = assigned(problem, assign, "dynamic")
    except InfeasibleError:
        return None
    # Without room on them, layers end on the last device of the cluster.
    return candidate if set(candidate.assignment.devices.tolist()) <= {*devices, before} else None
