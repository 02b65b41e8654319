"""The work of the devices of one stage: replicas, sharded state, or the labels that cost least.

Every stage has the same number of devices, neighbours on the fastest links, and shares its ops in
the same way. Replicas share them by the batch, and each updates its part of all parameters, for
that takes no more traffic. Where memory is short, they share the parameters too (ZeRO 1 and 3).
Labels that cost least (:mod:`loadmaster.strategies.sharding`) are those of the whole model on the
devices of one stage.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from loadmaster.base.errors import InfeasibleError, InputError
from loadmaster.base.units import counted
from loadmaster.dimensions.dimensions import Dimensions
from loadmaster.dimensions.words import labels_of
from loadmaster.judge.problem import Problem
from loadmaster.model.graph import PARAMETER, OpGraph
from loadmaster.model.recipe import DeviceMesh, MeshAxis, Recipe
from loadmaster.strategies.pipelines.chains import Pool, in_sets
from loadmaster.strategies.sharding.space import Space as Labelled
from loadmaster.strategies.sharding.traffic import ALL_REDUCE, Traffic
from loadmaster.transforms.layout import Layout

#: Names of the axis inside of a stage: of replicas, and of other labels.
REPLICAS, SHARDS = "dp", "tp"

#: Sharded parts of a replica's updates, by the words of recipes, how it is said, and whether it
#: is tried only where memory is short.
_STATES = (
    ("optimizer", "optimizers sharded", False),
    ("parameters", "parameters sharded", True),
)


@dataclass(frozen=True, eq=False)
class Inside:
    """A way for the devices of each stage to share its ops.

    Attributes
    ----------
    pools : list of Pool
        Devices that stages are on.
    layout : Layout
        Of one stage's devices.
    words : str
        What it is, as in "2 stages x 4 replicas".
    traffic : float
        Seconds of collectives in a step of the whole model, on the devices of one stage.
    is_lean : bool
        Whether it is for where nothing else fits, since something else is shorter wherever it does.
    """

    pools: list[Pool]
    layout: Layout
    words: str
    traffic: float
    is_lean: bool = False

    @property
    def width(self) -> int:
        """Devices of a stage."""
        return self.layout.mesh.size

    @property
    def sets(self) -> list[tuple[int, ...]]:
        """The devices of each stage."""
        return [devices for pool in self.pools for devices in pool.sets]

    def takes(self, batch: int, m: int) -> bool:
        """True if each part of the batch has the same whole number of samples of each of m
        micro-batches.
        """
        return not self.layout.is_batch.any() or batch % (m * self.width) == 0


def insides(
    problem: Problem, pools: list[Pool], width: int, labelled: Labelled | None
) -> Iterator[Inside]:
    """Ways to share the ops of stages of so many devices each: what is quickly found comes first.

    None where the graph does not say how its ops can be cut (``labelled`` is None), or no stages of
    the width are of equal devices.
    """
    of = in_sets(pools, width)
    if not of or labelled is None:
        return
    graph, by_batch = problem.model, _by_batch(problem.model, width)
    for replicas in (layout for layout in by_batch if layout.is_batch.any()):
        words, is_trained = counted(width, "replica"), graph.updates.any()
        gradients = float(graph.param_bytes[graph.stands_for == PARAMETER].sum()) * is_trained
        first = np.array(of[0].sets[:1], dtype=np.int64)
        traffic = Traffic(problem.links, first).seconds(ALL_REDUCE, gradients)
        for word, said, is_lean in _STATES if is_trained else ():
            sharded = replicas.with_sharded_state([word] * graph.n_ops, [0])
            yield Inside(of, sharded, f"{words}, {said}", traffic, is_lean)
        if not is_trained:
            yield Inside(of, replicas, words, traffic)
    if (cheapest := _cheapest(labelled, of)) is not None:
        labels, traffic = cheapest
        alike = [one for one in by_batch if one.dimensions is labels.dimensions]
        if not any((labels.labels == one.labels)[:, ~graph.view].all() for one in alike):
            yield Inside(of, labels, counted(width, "shard"), traffic)


def _by_batch(graph: OpGraph, width: int) -> list[Layout]:
    """Layouts of replicas: the batch is seen in the sizes of tensors or in recorded arguments.

    Where no arguments are recorded, guessed ones may see it in other ops than sizes do, so both are
    tried.
    """
    recipe = Recipe(DeviceMesh((MeshAxis(REPLICAS, width),)), {REPLICAS: {"**": "batch"}})
    layouts: list[Layout] = []
    with suppress(InputError):  # No op can be cut by the batch.
        layouts.append(Layout.of(graph, recipe))
    dimensions = Dimensions.of(graph)
    if graph.args is None and not any(one.dimensions is dimensions for one in layouts):
        with suppress(InputError):
            layouts.append(Layout(dimensions, recipe.mesh, labels_of(dimensions, recipe)))
    return layouts


def _cheapest(space: Labelled, pools: list[Pool]) -> tuple[Layout, float] | None:
    """The labels that cost least on the devices of the first stage, and seconds of their traffic in
    a step of the whole model.
    """
    problem, width = space.problem, pools[0].width
    devices = tuple(problem.cluster.devices[d].name for d in pools[0].sets[0])
    with suppress(InfeasibleError):
        solution = space.solver(DeviceMesh((MeshAxis(SHARDS, width),), devices)).solve(1.0)
        labels = space.structure.labels(solution.columns)
        mesh = DeviceMesh((MeshAxis(SHARDS, width),))
        imbalance = problem.expert_imbalance
        layout = Layout(Dimensions.of(problem.model), mesh, labels, expert_imbalance=imbalance)
        return layout, solution.estimate.sending
    return None
