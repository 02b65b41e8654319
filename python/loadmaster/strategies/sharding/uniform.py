"""Labels of plans that share all work in one way: by the batch, or by features and heads.

Each is a mask: which labels every node may have. The solver takes the cheapest of these.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from loadmaster.dimensions.calls import MAPPED_WORD
from loadmaster.dimensions.form import PARTIAL
from loadmaster.model.graph import PARAMETER
from loadmaster.model.shapes import parse_output
from loadmaster.strategies.sharding.joint import firsts
from loadmaster.strategies.sharding.structure import GRADIENT, WEIGHT, Structure

Mask = NDArray[np.bool_]

#: Roles of dimensions by which tensor parallelism cuts.
TENSOR = ("feature", "head", "expert")


def roles_only(structure: Structure, roles: Collection[str], state: Collection[str]) -> Mask:
    """Only labels of some roles: bool [n_nodes, most labels].

    An op that updates, its slots and its parameter have labels of the roles ``state``, and are
    whole where they have none. Every other op may also be whole, or work on partial sums.
    """
    ways = structure.ways
    model = ways.with_role({"whole", "partial", *roles})
    held = ways.with_role(state)
    held[~held.any(axis=1), 0] = True
    mask: Mask = np.where(structure.in_update[:, None], held[structure.way], model[structure.way])
    return mask


def by_batch(structure: Structure, state: str) -> Mask:
    """Every op that has a batch has its share of it; parameters lie as ``state`` says."""
    mask, ways = roles_only(structure, ("batch",), (state,)), structure.ways
    shared = mask & ways.with_role(("batch",))[structure.way]
    has = shared.any(axis=1) & ~structure.in_update
    return np.where(has[:, None], shared, mask)


def tensor_parallel(structure: Structure, parts: int, *, sequence: bool) -> Mask:
    """Labels of tensor parallelism on an axis of so many parts: bool [n_nodes, most labels].

    By features, heads and experts. A product with a matrix of weights, and that matrix, are cut
    wherever they have as many of these, by columns and rows in turn. Norms exchange nothing. With
    ``sequence`` what lies between is cut by tokens, too: what is neither such a product, forward or
    backward, nor attention, which is by heads.
    """
    ways, way, state = structure.ways, structure.way, ("whole", *TENSOR)
    mask = roles_only(structure, TENSOR, state)
    weighted, has_heads = products(structure), np.array(["head" in one for one in ways.role])[way]
    if sequence:
        between = ~(has_heads | weighted)
        with_tokens = roles_only(structure, (*TENSOR, "token"), state)
        mask = np.where(between[:, None], with_tokens, mask)
    cuts = ways.with_role(TENSOR) & (ways.label > 0)
    cuts = (cuts & ((ways.limit == 0) | (ways.limit >= parts)))[way]
    sums = (cuts & (ways.outputs[ways.first_output[way]] == PARTIAL)).any(axis=1)
    forward = weighted & sums & (structure.phase == 0)
    turns = cuts & by_turns(structure, forward)
    cuts[forward & turns.any(axis=1)] &= turns[forward & turns.any(axis=1)]
    a = structure.arguments
    held = forward.copy()
    held[a.root[forward[a.reader] & matrices(structure)[a.root]]] = True
    held &= cuts.any(axis=1)
    mask[held] = cuts[held]
    norms = _of_kind(structure, "norm")
    mask[norms] &= (ways.exchanged == 0)[way[norms]]
    return mask


def by_turns(structure: Structure, product: NDArray[np.bool_]) -> Mask:
    """Columns, then rows: labels that give partial sums, for products that read what a product of
    the layer or attention made with no norm between; other labels for other products. Experts are
    anyhow.
    """
    ways, way = structure.ways, structure.way
    of_experts, idle = (ways.with_role({word})[way] for word in ("expert", "partial"))
    sums = (ways.outputs[ways.first_output[way]] == PARTIAL) & ~idle
    follows = _follow(structure, product)
    mask: Mask = of_experts | np.where(follows[:, None], sums, ~sums & ~idle)
    return mask


def _follow(structure: Structure, product: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """True for ops of the forward pass that read what a product or attention made, with no norm
    between.
    """
    starts = product | _of_kind(structure, "attention")
    is_root = _of_kind(structure, "rsqrt")
    stops = is_root | _of_kind(structure, "norm")
    arguments = structure.arguments
    is_data = (arguments.traffic != WEIGHT) & (structure.phase[arguments.reader] == 0)
    makers: dict[int, list[int]] = {}
    ends = (arguments.reader[is_data].tolist(), arguments.root[is_data].tolist())
    for reader, root in zip(*ends, strict=True):
        makers.setdefault(reader, []).append(root)
    follows = np.zeros(structure.n, dtype=bool)
    for node in sorted(makers):  # Ops are listed in the order in which they run.
        read = [maker for maker in makers[node] if not stops[maker]]
        stops[node] |= any(is_root[maker] for maker in makers[node])
        follows[node] = any(starts[maker] or follows[maker] for maker in read)
    return follows


def _of_kind(structure: Structure, word: str) -> NDArray[np.bool_]:
    """True for nodes with a word in their kind."""
    kinds = structure.graph.kinds
    return np.array([word in kinds[op] for op in structure.op.tolist()], dtype=bool)


def mapped(structure: Structure) -> Mask:
    """Labels that cut what is mapped over a mesh by hand along axes of that mesh: bool [n_nodes,
    most labels].
    """
    ways, forms = structure.ways, structure.dimensions.forms
    form_of = structure.dimensions.form_of[structure.op]
    rows = np.zeros(ways.label.shape, dtype=bool)
    for row, node in enumerate(firsts(structure.way).tolist()):
        cuts = forms[form_of[node]].cuts
        is_mapped = [cut.name.startswith(MAPPED_WORD) for cut in cuts]
        label = ways.label[row, : ways.n_labels[row]]
        rows[row, : len(label)] = np.isin(label, 1 + np.flatnonzero(is_mapped))
    mask: Mask = rows[structure.way]
    return mask


def matrices(structure: Structure) -> NDArray[np.bool_]:
    """True for nodes that are parameters of two dimensions or more: bool [n_nodes]."""
    texts, is_matrix = structure.graph.outputs, np.zeros(structure.n, dtype=bool)
    for node in np.flatnonzero(structure.stands_for == PARAMETER).tolist():
        sizes = parse_output(texts[int(structure.op[node])])[0][1]
        is_matrix[node] = len(sizes or ()) > 1
    return is_matrix


def products(structure: Structure) -> NDArray[np.bool_]:
    """True for nodes that read a matrix of weights, or make its gradient; casts stand
    for either.
    """
    a, updates, weights = structure.arguments, structure.updates, matrices(structure)
    of_cast = np.flatnonzero(_is_cast(structure)[a.reader])
    root, reader = a.root[of_cast], a.reader[of_cast]
    reads = np.zeros(structure.n, dtype=bool)
    reads[a.reader[_spread(weights, root, reader)[a.root]]] = True
    at = structure.node[updates.parameter]
    is_matrix = np.zeros(updates.n + 1, dtype=bool)
    is_matrix[updates.of_parameter[(at >= 0) & weights[at]]] = True
    of_matrix = is_matrix[updates.of_op[structure.op[a.reader]]] & (a.traffic == GRADIENT)
    is_weight = np.zeros(structure.n, dtype=bool)
    is_weight[a.root[of_matrix]] = True
    are_products: NDArray[np.bool_] = (
        reads | _spread(is_weight, reader, root)
    ) & ~structure.in_update
    return are_products


def _is_cast(structure: Structure) -> NDArray[np.bool_]:
    """True for nodes with one argument that make as many elements of it."""
    forms, form_of = structure.dimensions.forms, structure.dimensions.form_of[structure.op]
    same = [len(form.inputs) == 1 and form.inputs == form.outputs for form in forms]
    return np.array([*same, False])[form_of]


def _spread(
    reached: NDArray[np.bool_], source: NDArray[np.int64], target: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Nodes, and those that can be reached from them by links. O(links) a link of a chain."""
    while True:
        more = reached.copy()
        more[target[reached[source]]] = True
        if np.array_equal(more, reached):
            return reached
        reached = more
