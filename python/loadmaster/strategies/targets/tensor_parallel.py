"""Tensor parallelism as Megatron-LM and vLLM have it: no product of a layer has whole weights."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from loadmaster.base.errors import InfeasibleError
from loadmaster.dimensions.dimensions import Dimensions
from loadmaster.model.recipe import Mesh
from loadmaster.rules.layer_list import LayerList
from loadmaster.rules.module_cuts import inside
from loadmaster.strategies.sharding.ranking import Ranked
from loadmaster.strategies.sharding.solving import Solver
from loadmaster.strategies.sharding.space import Space
from loadmaster.strategies.sharding.structure import WEIGHT, Structure
from loadmaster.strategies.sharding.uniform import TENSOR, Mask, by_turns, matrices, roles_only


def divides(dimensions: Dimensions, k: int) -> bool:
    """Whether heads go into ``k`` equal parts, wherever ops have them; and there are some."""
    sizes = {cut.size for form in dimensions.forms for cut in form.cuts if cut.role == "head"}
    return bool(sizes) and all(size % k == 0 for size in sizes)


def weights_cut(space: Space, mesh: Mesh, found: LayerList, *, sequence: bool) -> Ranked | None:
    """The cheapest labels of a mesh whose axis ``tp`` cuts the weights of every layer, and whose
    other axis, if any, shares the batch; None: there are none.

    Parameters
    ----------
    space : Space
    mesh : Mesh
    found : LayerList
    sequence : bool
        Whether what lies between the products may be cut by tokens.
    """
    structure = space.structure
    masks: list[Mask] = [
        in_layers(structure, found, sequence=sequence) if axis.name == "tp" else shared(structure)
        for axis in mesh.axes
    ]
    solver = Solver(space.setting(mesh), masks)
    try:
        labels = solver.solve(1.0)
    except InfeasibleError:
        return None
    return Ranked(mesh, labels, solver, labels.fits(space.memory(mesh)))


def shared(structure: Structure, state: Sequence[str] = ("whole",)) -> Mask:
    """Labels of replicas: all that has a batch is cut by it, and updates are as ``state`` says."""
    mask = roles_only(structure, ("batch",), state).copy()
    has = ~structure.in_update & mask[:, 1:].any(axis=1)
    mask[has, 0] = False
    return mask


def in_layers(structure: Structure, found: LayerList, *, sequence: bool) -> Mask:
    """Labels of tensor parallelism: a parameter of two dimensions or more in a layer is cut, and so
    is what reads it, where they have such labels.
    """
    graph, state = structure.graph, ("whole", *TENSOR)
    mask = roles_only(structure, (*TENSOR, *["token"] * sequence), state).copy()
    only = roles_only(structure, TENSOR, TENSOR)
    only[:, 0] = False
    prefix = f"{found.name}."
    is_weight = matrices(structure)
    for node in np.flatnonzero(is_weight).tolist():
        module = inside(graph.modules[int(structure.op[node])], found.cuts.root) or ""
        is_weight[node] = f"{module}.".startswith(prefix)
    arguments = structure.arguments
    reads = is_weight[arguments.root] & (arguments.traffic == WEIGHT)
    is_product = np.zeros(structure.n, dtype=bool)
    is_product[arguments.reader[reads]] = True
    forward = is_product & (structure.phase == 0)
    only &= np.where(forward[:, None], by_turns(structure, forward), True)
    held = (is_weight | is_product) & only.any(axis=1)
    mask[held] &= only[held]
    return mask
