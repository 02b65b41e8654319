"""Tensor parallelism as Megatron-LM and vLLM have it: no product of a layer has whole weights."""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np

from loadmaster.base.errors import InfeasibleError, InputError
from loadmaster.dimensions.dimensions import Dimensions
from loadmaster.dimensions.words import words_of
from loadmaster.model.recipe import DeviceMesh
from loadmaster.rules.layer_list import LayerList, layer_number
from loadmaster.rules.module_cuts import inside
from loadmaster.strategies.grids import expert_parallel
from loadmaster.strategies.grids.expert_parallel import (
    by_experts,
    experts_apart,
    products_of_experts,
    products_of_routers,
    shared,
    weights_of,
    whole_experts,
)
from loadmaster.strategies.sharding.ranking import Ranked
from loadmaster.strategies.sharding.solving import Solver
from loadmaster.strategies.sharding.space import Space
from loadmaster.strategies.sharding.structure import WEIGHT, Structure
from loadmaster.strategies.sharding.uniform import (
    TENSOR,
    Mask,
    by_turns,
    matrices,
    roles_only,
)
from loadmaster.transforms.layout import Layout

#: Treatments of routed experts by tensor parallelism.
Experts: TypeAlias = Literal["cut", "apart"]


def divides(dimensions: Dimensions, k: int) -> bool:
    """True if heads, or the groups that share keys, go into ``k`` equal parts wherever ops have
    them; and there are some.
    """
    sizes = _numbers_of_heads(dimensions)
    return bool(sizes) and all(any(size % k == 0 for size in of) for of in sizes)


def check_heads(dimensions: Dimensions, tp: int, most: int) -> None:
    """Checks that heads go into ``tp`` equal parts.

    Raises
    ------
    InputError
        They do not. It names the heads, and the sizes up to ``most`` that they go into.
    """
    if tp == 1 or divides(dimensions, tp):
        return
    sizes = _numbers_of_heads(dimensions)
    if not sizes:
        raise InputError(f"tp is {tp}, and the graph does not say which tensors have heads")
    heads = next(max(of) for of in sizes if all(size % tp for size in of))
    fitting = ", ".join(str(k) for k in range(1, most + 1) if k == 1 or divides(dimensions, k))
    raise InputError(
        f"tp is {tp}, and the {heads} heads of a layer, or groups of heads that share keys, do not "
        f"go into {tp} equal parts: tp can be one of {fitting}"
    )


def _numbers_of_heads(dimensions: Dimensions) -> list[set[int]]:
    """The numbers of heads, and of groups of them, of each form of tensors that has heads."""
    sizes = [{cut.size for cut in form.cuts if cut.role == "head"} for form in dimensions.forms]
    return [of for of in sizes if of]


def weights_cut(
    space: Space,
    mesh: DeviceMesh,
    layer_list: LayerList,
    *,
    sequence: bool,
    experts: Experts = "cut",
) -> Ranked | None:
    """The cheapest labels of a mesh whose axis ``tp`` cuts the weights of every layer; on its axis
    ``ep`` replicas have routed experts apart, and its other axis, if any, shares the batch; None:
    there are none.

    Parameters
    ----------
    space : Space
    mesh : Mesh
    layer_list : LayerList
    sequence : bool
        Whether what lies between the products may be cut by tokens.
    experts : "cut" or "apart"
        What ``tp`` does with routed experts, as :func:`in_layers` has it.
    """
    structure = space.structure
    masks: list[Mask] = []
    for axis in mesh.axes:
        if axis.name == "tp":
            mask = in_layers(structure, layer_list, sequence=sequence, experts=experts)
            if sequence and products_of_experts(structure).any():
                _cut_norms(structure, mask)
            masks.append(mask)
        else:
            is_apart = axis.name == expert_parallel.AXIS
            masks.append(experts_apart(structure) if is_apart else shared(structure))
    solver = Solver(space.setting(mesh), masks)
    try:
        labels = solver.solve(1.0)
    except InfeasibleError:
        return None
    return Ranked(mesh, labels, solver, labels.fits(space.memory(mesh)))


def in_layers(
    structure: Structure, layer_list: LayerList, *, sequence: bool, experts: Experts = "cut"
) -> Mask:
    """Labels of tensor parallelism: a parameter of two dimensions or more in a layer is cut, and so
    is what reads it, where they have such labels. Each routed expert is cut, or each device has
    some experts whole: they are ``"apart"``.
    """
    graph, state = structure.graph, ("whole", *TENSOR)
    mask = roles_only(structure, (*TENSOR, *["token"] * sequence), state).copy()
    only = roles_only(structure, TENSOR, TENSOR)
    only[:, 0] = False
    prefix = f"{layer_list.name}."
    is_weight = matrices(structure)
    for node in np.flatnonzero(is_weight).tolist():
        module = inside(graph.modules[int(structure.op[node])], layer_list.cuts.root) or ""
        is_weight[node] = f"{module}.".startswith(prefix)
    arguments = structure.arguments
    reads = is_weight[arguments.root] & (arguments.traffic == WEIGHT)
    is_product = np.zeros(structure.n, dtype=bool)
    is_product[arguments.reader[reads]] = True
    router = products_of_routers(structure)
    forward = is_product & (structure.phase == 0) & ~router
    only &= np.where(forward[:, None], by_turns(structure, forward), True)
    held = (is_weight | is_product) & only.any(axis=1)
    mask[held] &= only[held]
    if products_of_experts(structure).any():
        _routed(structure, mask, experts)
    of_router = roles_only(structure, ["token"] * sequence, ("whole",))
    router |= weights_of(structure, router)
    mask[router] = of_router[router]
    return mask


def _routed(structure: Structure, mask: Mask, experts: Experts) -> None:
    """Leaves of a mask labels by which routed experts are cut, or apart."""
    by, product = by_experts(structure), products_of_experts(structure)
    has, whole = weights_of(structure, product), whole_experts(structure)
    if experts == "apart":
        mask[product], mask[has] = by[product], whole[has]
    else:
        whole[:, 0] = False
        mask &= ~np.where(structure.in_update[:, None], whole & has[:, None], by)


def norms_by_tokens(layout: Layout, layer_list: LayerList, axis: str) -> bool:
    """True if norms of layers are cut by tokens on an axis."""
    graph = layout.graph
    words = words_of(layout.dimensions, layout.mesh.names, layout.labels)[axis]
    return any(
        word == "token"
        and ("norm" in kind or "rsqrt" in kind)
        and layer_number(module, layer_list) >= 0
        for word, kind, module in zip(words, graph.kinds, graph.modules, strict=True)
    )


def _cut_norms(structure: Structure, mask: Mask) -> None:
    """Leaves norms that can be cut by tokens no other label: Megatron-LM trains routed experts and
    tensor parallelism only so.
    """
    by_token = roles_only(structure, ("token",), ()) & ~roles_only(structure, (), ())
    kinds = structure.graph.kinds
    norms = np.array(["norm" in kinds[op] or "rsqrt" in kinds[op] for op in structure.op.tolist()])
    norms &= by_token.any(axis=1)
    mask[norms] = by_token[norms]
