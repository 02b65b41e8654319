"""Fully sharded data parallelism: each device has its share of the batch and of every parameter.

ZeRO-3 (Rajbhandari et al., SC 2020), as FSDP runs it (Zhao et al., VLDB 2023): parameters,
gradients and the optimizer's state lie in equal flat parts. A parameter is gathered where it is
used, forward and backward; gradients are reduced and scattered; the update is done on the parts.
"""

from __future__ import annotations

from loadmaster.base.errors import InputError
from loadmaster.judge.problem import Problem
from loadmaster.model.recipe import DeviceMesh
from loadmaster.strategies.attempts import Outcome, accepted
from loadmaster.strategies.candidate import Candidate
from loadmaster.strategies.registry import strategy
from loadmaster.strategies.sharding.judging import expanded, notes, with_recipe
from loadmaster.strategies.sharding.meshes import meshes
from loadmaster.strategies.sharding.ranking import Ranked
from loadmaster.strategies.sharding.solving import Solver
from loadmaster.strategies.sharding.space import Space
from loadmaster.strategies.sharding.uniform import roles_only


@strategy("fsdp", "a share of the batch and of every parameter on each device", is_final=True)
def place(problem: Problem) -> Candidate:
    """Fully sharded data parallelism on all usable devices.

    Parameters
    ----------
    problem : Problem

    Raises
    ------
    InputError
        The graph does not say what its ops were called with, or there is one usable device.
    InfeasibleError
        It does not fit.
    """
    space = Space.of(problem)
    mesh: DeviceMesh | None = next(meshes(problem), None)
    if mesh is None:
        raise InputError("one device can be used: there is nothing to share")
    mask = roles_only(space.structure, ("batch",), ("flat",))
    solver = Solver(space.setting(mesh), [mask])
    labels = solver.solve(1.0)
    ranked = Ranked(mesh, labels, solver, labels.fits(space.memory(mesh))).looked_at()
    candidate = with_recipe(space, ranked, expanded(space, ranked))
    return accepted(candidate.problem, Outcome(candidate.noted(*notes(ranked, candidate)), 1.0))
