"""Layers read off the module paths of ops, and ranges of them that balance time and memory."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

import loadmaster.fast as fast
from loadmaster.judge.problem import Problem, ranks
from loadmaster.model.module_paths import module_path
from loadmaster.strategies.simple.assigned import on_allowed

#: A layer of a stack of them: ``layer.12``, ``blocks.3``, ``block_7``, ``cell_stem_1``.
_NUMBERED = re.compile(r".*\d$")

#: Share of a device's part above which a module that is no layer of a stack is taken apart; a layer
#: is, above the whole part.
_FINE = 0.25


@dataclass(frozen=True)
class Layers:
    """Layers in forward order.

    Attributes
    ----------
    layer : int32 [n_reduced]
        Layer of each op; the same for a colocated set, and for ops with their forward ones.
    names : tuple of str
        Module path of each layer; "" where layers are single ops.
    """

    layer: NDArray[np.int32]
    names: tuple[str, ...]


def layers(problem: Problem) -> Layers:
    """Layers by module path: backward and optimizer ops are in the layer of their forward ops.

    The tree of module paths is cut from the top: a module becomes a layer when it is small, or the
    numbered member of a stack (``layer.12``) that is no larger than a device's part. Ops of no such
    module go with the op that feeds them. Without any paths each op is a layer, in program order.

    Notes
    -----
    O(V + E) for paths of bounded depth.

    Examples
    --------
    >>> import loadmaster as lm
    >>> from loadmaster.judge.problem import Problem, ranks
    >>> g, c = lm.read("example:bert-large"), lm.Cluster.preset("4xV100-PCIe")
    >>> found = layers(Problem.make(g, c, lm.costs.estimate(g, c)))
    >>> [name for name in found.names if name.endswith(("layer.0", "layer.23"))]
    ['m.bert.encoder.layer.0', 'm.bert.encoder.layer.23']
    """
    model, of = problem.model, problem.reduced.op_of.tolist()
    paths = [module_path(model.modules[op]) for op in of]
    part = float(problem.op_time.sum()) / problem.cluster.n_devices
    # An optimizer's path ends in the name of a parameter, which is no module.
    trained = [path for path, op in zip(paths, of, strict=True) if model.phases[op] != "o"]
    phase = np.array([model.phases[op] for op in of])
    names = _cut(trained, problem.op_time[phase != "o"], part)
    position = _program_order(problem)
    if len(names) < 2:
        _, layer = np.unique(position[problem.graph.lead], return_inverse=True)
        return Layers(layer.astype(np.int32), ("",) * int(layer.max() + 1))
    at = {path: i for i, path in enumerate(names)}
    layer = np.array([_layer_of(path, at) for path in paths], dtype=np.int64)
    _spread(problem, layer)

    # In the order in which their first forward ops come; those without one, by their first op.
    key = np.where((phase == "") | (phase == "f"), position, position + len(position))
    first = np.full(len(names), 2 * len(position) + 1, dtype=np.int64)
    np.minimum.at(first, layer, key)
    order = np.argsort(first, kind="stable")
    rank = np.empty(len(names), dtype=np.int32)
    rank[order] = np.arange(len(names), dtype=np.int32)
    return Layers(rank[layer][problem.graph.lead], tuple(".".join(names[i]) for i in order))


def ranges(
    problem: Problem,
    layer: NDArray[np.int32],
    bytes_: NDArray[np.uint64],
    capacity: NDArray[np.uint64],
) -> NDArray[np.int32]:
    """A device per reduced op: ranges of layers, the slowest as fast as can be within capacity.

    Where nothing fits, the fullest device is as little over as can be.

    Parameters
    ----------
    layer : int32 [n_reduced]
    bytes_ : uint64 [n_reduced]
    capacity : uint64 [n_devices]

    Notes
    -----
    Filling devices one after another is best for a given limit, so the limit is bisected:
    O(V + k log L) for L layers and k devices, 60 times.
    """
    n = int(layer.max()) + 1
    types = problem.cluster.device_types
    seconds = np.stack([np.bincount(layer, weights=t, minlength=n) for t in problem.time.T])
    held = np.bincount(layer, weights=bytes_.astype(np.float64), minlength=n)
    seconds_until = np.concatenate([np.zeros((len(seconds), 1)), np.cumsum(seconds, axis=1)], 1)
    held_until = np.concatenate([[0.0], np.cumsum(held)])

    def ends(limit: float, share: float) -> list[int]:
        """The end of each device's range, filled up to the limits on time and memory."""
        cut, at = [], 0
        for d, k in enumerate(types):
            by_time = np.searchsorted(seconds_until[k], seconds_until[k][at] + limit, "right") - 1
            room = held_until[at] + share * float(capacity[d])
            by_memory = np.searchsorted(held_until, room, "right") - 1
            at = max(at, int(min(by_time, by_memory)))
            cut.append(at)
        return cut

    share = 1.0
    if ends(np.inf, share)[-1] < n:
        enough = held_until[-1] / max(float(capacity.min()), 1.0) + 1.0
        share = _least(lambda s: ends(np.inf, s)[-1] == n, 1.0, enough)
    slowest = max(seconds_until[k][-1] for k in types)
    limit = _least(lambda t: ends(t, share)[-1] == n, 0.0, slowest * (1 + 1e-9))
    # No share of nothing is room: the last device takes what devices without memory leave.
    cut = np.searchsorted(ends(limit, share)[:-1], np.arange(n), "right")
    device_of_layer = cut.astype(np.int32)
    by_set = np.zeros(int(problem.graph.colocation.max()) + 1, dtype=np.int32)
    by_set[problem.graph.colocation] = device_of_layer[layer]
    return on_allowed(problem, by_set)[problem.graph.colocation]


def _least(holds: Callable[[float], bool], low: float, high: float) -> float:
    """The least number in a range for which a monotone condition holds, to 60 halvings."""
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def _cut(
    paths: list[tuple[str, ...]], op_time: NDArray[np.float64], part: float
) -> list[tuple[str, ...]]:
    """The modules that are layers, given the time of a device's part."""
    weight: dict[tuple[str, ...], float] = {}
    children: dict[tuple[str, ...], dict[tuple[str, ...], None]] = {}
    for path, seconds in zip(paths, op_time.tolist(), strict=True):
        for depth in range(1, len(path) + 1):
            node = path[:depth]
            weight[node] = weight.get(node, 0.0) + seconds
            children.setdefault(node[:-1], {})[node] = None
    layers = []
    stack = list(children.get((), ()))[::-1]
    while stack:
        node = stack.pop()
        inner = list(children.get(node, ()))
        most = part if _NUMBERED.match(node[-1]) else part * _FINE
        # One submodule that does not do all of the work is no stack to take apart.
        alone = len(inner) == 1 and weight[inner[0]] < weight[node]
        if not inner or alone or weight[node] <= most:
            layers.append(node)
        else:
            stack.extend(reversed(inner))
    return layers


def _layer_of(path: tuple[str, ...], at: dict[tuple[str, ...], int]) -> int:
    return next((at[path[:d]] for d in range(1, len(path) + 1) if path[:d] in at), -1)


def _spread(problem: Problem, layer: NDArray[np.int64]) -> None:
    """Gives ops without a layer that of the op that feeds them most, or that they feed most."""
    src, dst, _, sizes = problem.graph.flows()
    order = fast.m_topo(problem.graph)
    for ends, others, along in ((dst, src, order), (src, dst, order[::-1])):
        by_end = np.lexsort((others, -sizes.astype(np.float64), ends))
        start = np.searchsorted(ends[by_end], np.arange(len(layer) + 1))
        for op in along[layer[along] < 0]:
            near = others[by_end[start[op] : start[op + 1]]]
            known = layer[near][layer[near] >= 0]
            if len(known):
                layer[op] = known[0]
    layer[layer < 0] = 0


def _program_order(problem: Problem) -> NDArray[np.int32]:
    """Position of each op in the program: its index, where that respects the edges."""
    src, dst, _, _ = problem.graph.flows()
    if (src < dst).all():
        return np.arange(problem.graph.n_ops, dtype=np.int32)
    return ranks(fast.m_topo(problem.graph))
