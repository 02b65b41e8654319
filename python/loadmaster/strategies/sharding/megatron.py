"""Uniform tensor parallelism inside of data parallelism, as Megatron-LM has it.

Shoeybi et al. 2019: on the inner axis products are cut by columns, then by rows, in attention by
heads, embeddings and losses by the vocabulary, so that a layer all-reduces twice in each direction.
Korthikanti et al. 2022, sequence parallelism: what lies between is cut by tokens, and all-reduces
become reduce-scatters and all-gathers. The outer axis shares the batch, with the weights whole.

Here the labels of the inner axis are the cheapest of those that cut every product, attention and
experts so, and tokens between them; layers are alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from loadmaster.base import checks
from loadmaster.base.errors import InfeasibleError, InputError
from loadmaster.judge.problem import Problem
from loadmaster.model.recipe import DeviceMesh
from loadmaster.strategies.attempts import Outcome, accepted
from loadmaster.strategies.candidate import Candidate
from loadmaster.strategies.registry import strategy
from loadmaster.strategies.sharding.judging import expanded, notes, with_recipe
from loadmaster.strategies.sharding.meshes import meshes
from loadmaster.strategies.sharding.ranking import Ranked, best_of
from loadmaster.strategies.sharding.solving import Solver
from loadmaster.strategies.sharding.space import Space
from loadmaster.strategies.sharding.uniform import TENSOR, Mask, roles_only, tensor_parallel


@strategy("megatron", "columns, then rows, in every layer, inside of replicas", is_final=True)
def place(problem: Problem, *, tp: int | None = None, sequence: bool = True) -> Candidate:
    """Tensor parallelism of ``tp`` devices, as often as there are devices for.

    Parameters
    ----------
    problem : Problem
    tp : int, optional
        Size of the inner axis, which must divide the number of usable devices; absent: the best.
    sequence : bool
        Whether what lies between the products may be cut by tokens.

    Raises
    ------
    InputError
        The graph does not say what its ops were called with; a size that does not divide.
    InfeasibleError
        It does not fit.
    """
    space = Space.of(problem)
    shapes = list(_shapes(problem))
    if tp is not None:
        checks.integer("tp", tp, 1)
        shapes = [mesh for mesh in shapes if mesh.shape[-1] == tp]
    if not shapes:
        raise InputError(f"tp is {tp}: it does not divide the number of devices that can be used")
    rows = best_of(_labelled(space, shapes, sequence), len(shapes))
    if not rows:
        raise InfeasibleError("no labels of features, heads and experts go with each other")
    judged = [(expanded(space, ranked), ranked) for ranked in rows[:2]]
    best, labels = min(judged, key=lambda one: problem.objective.rank(one[0].verdict))
    best = with_recipe(space, labels, best).noted(*notes(labels, best))
    return accepted(best.problem, Outcome(best, 1.0))


def _shapes(problem: Problem) -> Iterator[DeviceMesh]:
    """Meshes of all usable devices: one axis of tensor parallelism, or replicas of such."""
    size = 0
    for mesh in meshes(problem):
        size = size or mesh.size
        if mesh.size == size and len(mesh.axes) <= 2:
            yield mesh
            if len(mesh.axes) == 2 and mesh.shape[0] != mesh.shape[1]:
                turned = mesh.axes[::-1]
                if all(axis.shares is None for axis in turned):
                    yield DeviceMesh(tuple(turned), mesh.devices)


def _labelled(space: Space, shapes: list[DeviceMesh], sequence: bool) -> Iterator[Ranked]:
    """The labels of each mesh: by turns, or, where those do not go with each other, as between
    convolutions and what follows them, any by features, heads and experts.
    """
    structure = space.structure
    replicas = roles_only(structure, ("batch",), ("whole",))
    loose = roles_only(structure, TENSOR, ("whole", *TENSOR))
    for mesh in shapes:
        turns = tensor_parallel(structure, mesh.shape[-1], sequence=sequence)
        for inner in (turns, loose):
            masks: list[Mask] = [replicas] * (len(mesh.axes) - 1) + [inner]
            solver = Solver(space.setting(mesh), masks)
            with suppress(InfeasibleError):
                labels = solver.solve(1.0)
                yield Ranked(mesh, labels, solver, labels.fits(space.memory(mesh)))
                break
