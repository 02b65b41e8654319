"""Tensor parallelism as Megatron-LM and vLLM have it: no product of a layer has whole weights."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from loadmaster.base.errors import InfeasibleError
from loadmaster.dimensions.dimensions import Dimensions
from loadmaster.dimensions.form import PARTIAL
from loadmaster.model.graph import PARAMETER
from loadmaster.model.recipe import Mesh
from loadmaster.model.shapes import parse_output
from loadmaster.rules.layer_list import LayerList
from loadmaster.rules.module_cuts import inside
from loadmaster.strategies.sharding.ranking import Ranked
from loadmaster.strategies.sharding.solving import Solver
from loadmaster.strategies.sharding.space import Space
from loadmaster.strategies.sharding.structure import WEIGHT, Structure
from loadmaster.strategies.sharding.uniform import TENSOR, Mask, roles_only


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
    is_weight = np.zeros(structure.n, dtype=bool)
    for node in np.flatnonzero(structure.stands_for == PARAMETER).tolist():
        op = int(structure.op[node])
        sizes = parse_output(graph.outputs[op])[0][1]
        module = inside(graph.modules[op], found.cuts.root) or ""
        is_weight[node] = f"{module}.".startswith(prefix) and len(sizes or ()) > 1
    arguments = structure.arguments
    reads = is_weight[arguments.root] & (arguments.traffic == WEIGHT)
    is_product = np.zeros(structure.n, dtype=bool)
    is_product[arguments.reader[reads]] = True
    forward = is_product & (structure.phase == 0)
    only &= np.where(forward[:, None], _by_turns(structure, forward), True)
    held = (is_weight | is_product) & only.any(axis=1)
    mask[held] &= only[held]
    return mask


def _by_turns(structure: Structure, product: NDArray[np.bool_]) -> Mask:
    """Columns, then rows: labels that give partial sums, for products that read what a product of
    the layer or attention made with no norm between; other labels for other products. Experts are
    anyhow.
    """
    ways, way = structure.ways, structure.way
    shape = ways.label.shape
    of_experts, idle = (_are(ways.role, word, shape)[way] for word in ("expert", "partial"))
    sums = (ways.outputs[ways.first_output[way]] == PARTIAL) & ~idle
    follows = _follow(structure, product)
    mask: Mask = of_experts | np.where(follows[:, None], sums, ~sums & ~idle)
    return mask


def _follow(structure: Structure, product: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which ops of the forward pass read what a product or attention made, with no norm between."""
    kinds = [structure.graph.kinds[op] for op in structure.op.tolist()]
    starts = product | np.array(["attention" in kind for kind in kinds], dtype=bool)
    is_root = np.array(["rsqrt" in kind for kind in kinds], dtype=bool)
    stops = is_root | np.array(["norm" in kind for kind in kinds], dtype=bool)
    arguments = structure.arguments
    is_data = (arguments.traffic != WEIGHT) & (structure.phase[arguments.reader] == 0)
    makers: dict[int, list[int]] = {}
    ends = (arguments.reader[is_data].tolist(), arguments.root[is_data].tolist())
    for reader, root in zip(*ends, strict=True):
        makers.setdefault(reader, []).append(root)
    found = np.zeros(structure.n, dtype=bool)
    for node in sorted(makers):  # Ops are listed in the order in which they run.
        read = [made for made in makers[node] if not stops[made]]
        stops[node] |= any(is_root[made] for made in makers[node])
        found[node] = any(starts[made] or found[made] for made in read)
    return found


def _are(role: tuple[tuple[str, ...], ...], word: str, shape: tuple[int, ...]) -> Mask:
    """Which labels are of a role: bool, a row per form."""
    found = np.zeros(shape, dtype=bool)
    for row, words in enumerate(role):
        found[row, : len(words)] = [one == word for one in words]
    return found
