"""Meshes, and labels of all arrays on them that specs can say, for systems whose partitioner takes
specs of arrays: JAX, AutoParallel.

The outer axis shares the batch, with parameters whole or in parts. The inner one cuts features,
heads and experts, and between the products tokens. The solver takes the cheapest labels of those
that specs can say (:mod:`.partition_specs`).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from loadmaster.base import checks
from loadmaster.base.effort import Budget
from loadmaster.base.errors import InfeasibleError, InputError
from loadmaster.base.progress import Progress
from loadmaster.base.units import format_seconds
from loadmaster.dimensions.dimensions import Dimensions
from loadmaster.judge.problem import Problem
from loadmaster.model.graph import INPUT, PARAMETER, OpGraph
from loadmaster.model.recipe import DeviceMesh
from loadmaster.strategies.candidate import Candidate
from loadmaster.strategies.sharding.ranking import Ranked, best_of
from loadmaster.strategies.sharding.solving import WEIGHTS, Solver
from loadmaster.strategies.sharding.space import Space, has_shapes
from loadmaster.strategies.sharding.uniform import (
    TENSOR,
    Mask,
    by_batch,
    mapped,
    matrices,
    roles_only,
)
from loadmaster.strategies.simple import single
from loadmaster.systems.registry import refused
from loadmaster.systems.shared.judged_meshes import best_judged
from loadmaster.systems.shared.own_constraints import OwnConstraints
from loadmaster.systems.shared.partition_specs import sayable
from loadmaster.systems.shared.uniform_meshes import (
    DATA,
    MODEL,
    of_most_devices,
    tensor_parts,
    uniform_meshes,
)


def by_specs(
    problem: Problem,
    name: str,
    tp: int | None,
    time_limit: float | None,
    progress: Progress | None,
    way_out: str = "",
    own: OwnConstraints | None = None,
) -> Candidate:
    """The best mesh of data and tensor parallelism, and specs on it, for the target of a name.

    Parameters
    ----------
    problem : Problem
    name : str
    tp : int or None
        Size of the inner axis, which must divide the number of devices in use; None: the best.
    time_limit : float or None
        Seconds on the clock; what is under way is finished first.
    progress : callable or None
        Called with the mesh and the best step time whenever there is a better plan.
    way_out : str
        Added to the message where no rule says how most ops can be cut.
    own : OwnConstraints or None
        Constraints of the program that labels keep.

    Raises
    ------
    InputError
        The graph says no shapes; a size that does not divide; nothing can be shared evenly.
    InfeasibleError
        It does not fit.
    """
    graph = problem.model
    if not problem.program.is_plain or not has_shapes(graph):
        raise refused(name, f"{graph.name!r} does not say them, or is no model as it was read")
    _check_rules(name, graph, way_out)
    if tp is not None:
        checks.integer("tp", tp, 1)
    space = Space.of(problem, batch_norm="synchronised")
    budget = Budget.make(None, time_limit) if time_limit is not None else Budget(1.0, None)
    every = list(uniform_meshes(problem))
    if not every:
        raise InputError(f"target {name!r}: there is one device of its kind, and nothing to share")
    shapes = [mesh for mesh in every if tp in (None, tensor_parts(mesh))]
    if not shapes:
        raise InputError(f"tp is {tp}: it does not divide the {every[0].size} devices of a mesh")
    shapes = shapes if own is None else own.fitting(shapes)
    ranked = best_of(_labelled(space, shapes, budget, own), of_most_devices(shapes))
    if not ranked:
        keeping = "" if own is None else ", with its sharding constraints kept"
        raise refused(
            name,
            f"no axis of the arrays of {graph.name!r} is {shapes[0].size} equal parts{keeping}",
        )
    candidate, _ = best_judged(space, ranked, "specs", budget, progress)
    return candidate.noted(*_beside_one_device(problem, candidate))


def _beside_one_device(problem: Problem, candidate: Candidate) -> tuple[str, ...]:
    """A warning where one device, which no mesh is made for, would be as fast."""
    try:
        alone = single.place(problem).verdict
    except InfeasibleError:
        return ()
    if problem.objective.rank(candidate.verdict) < problem.objective.rank(alone):
        return ()
    times = map(format_seconds, (alone.step_time, candidate.verdict.step_time))
    return (
        "one device would take {}, this plan {}: no mesh of several devices is faster".format(
            *times
        ),
    )


def _check_rules(name: str, graph: OpGraph, way_out: str) -> None:
    """Refuses a graph of which nobody knows how most ops can be cut."""
    unknown = Dimensions.of(graph).unknown
    if sum(unknown.values()) > np.count_nonzero(graph.stands_for < 0) / 2:
        kinds = ", ".join(sorted(unknown, key=lambda kind: -unknown[kind])[:3])
        raise refused(
            name, f"no rule says how most ops of {graph.name!r} can be cut ({kinds} ...){way_out}"
        )


def _labelled(
    space: Space, shapes: list[DeviceMesh], budget: Budget, own: OwnConstraints | None
) -> Iterator[Ranked]:
    """Labels that specs can say, of every mesh: parameters whole or in parts on the outer axis,
    tokens whole or cut on the inner one.
    """
    best: Ranked | None = None
    for mesh in shapes:
        if best is not None and best.fits and space.work / mesh.size > best.key[1]:
            continue
        for state in ("whole", "flat") if DATA in mesh.names else ("whole",):
            for roles in (TENSOR, (*TENSOR, "token")) if MODEL in mesh.names else (TENSOR,):
                if budget.is_cut:
                    return
                # Where the cheapest is that the devices of an axis all do the same, parameters are
                # to be cut.
                for is_cut in (False, True):
                    masks = _masks(space, mesh, state, roles, is_cut=is_cut)
                    if own is not None:
                        masks = own.narrowed(space.structure, mesh, masks)
                    ranked = _solved(space, mesh, masks)
                    if ranked is not None:
                        yield ranked
                        best = min(best or ranked, ranked, key=lambda one: one.key)
                        break


def _solved(space: Space, mesh: DeviceMesh, masks: list[Mask]) -> Ranked | None:
    """The cheapest labels that masks allow; None: there are none, or an axis shares nothing."""
    memory, solver = space.memory(mesh), Solver(space.setting(mesh), masks)
    try:
        labels = next(solver.all_weights(memory, WEIGHTS[:1]))
    except InfeasibleError:
        return None
    return (
        Ranked(mesh, labels, solver, labels.fits(memory))
        if _shares(space, labels.columns)
        else None
    )


def _masks(
    space: Space, mesh: DeviceMesh, state: str, roles: tuple[str, ...], *, is_cut: bool
) -> list[Mask]:
    """Labels by axis; where ``is_cut``, no parameter of two axes or more is whole on the inner one
    that need not be. What a program maps over devices by hand is cut along the axes of that map, as
    the partitioner leaves it.
    """
    structure, masks = space.structure, []
    is_matrix, by_hand = matrices(structure), mapped(structure)
    for axis in mesh.axes:
        if axis.name == DATA:
            mask = by_batch(structure, state)
        else:
            mask = roles_only(structure, roles, ("whole", *TENSOR, "parameter")).copy()
        said = sayable(structure, axis.size, mesh.size)
        mask &= said
        is_mapped = (by_hand & said).any(axis=1)
        mask[is_mapped] = (by_hand & said)[is_mapped]
        if axis.name == MODEL and is_cut:
            mask[is_matrix, 0] = False
        mask[~mask.any(axis=1), 0] = True
        masks.append(mask)
    return masks


def _shares(space: Space, columns: NDArray[np.int64]) -> bool:
    """True if every axis cuts an input or a parameter: else its devices all do the same."""
    is_named = np.isin(space.structure.stands_for, (INPUT, PARAMETER))
    label = space.structure.ways.label[space.structure.way, columns]
    return bool((label[:, is_named] != 0).any(axis=1).all())
