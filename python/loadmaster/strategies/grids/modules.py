"""Modules of a layer that Megatron-LM can recompute, in the words of ``--recompute-modules``, found
by what the ops of a graph do.

``core_attn`` is what lies between queries and keys and what attention gives: the products of these,
and the softmax between them. Attention that is one op makes nothing else that is kept.
``layernorm`` are the norms that the products of the layer read. ``mlp`` and ``moe`` are all that
comes between the second norm and the residual connection. ``moe_act`` is what experts do between
their products.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from loadmaster.model.patterns import instances
from loadmaster.model.recomputed import line_of
from loadmaster.rules.layer_list import LayerList
from loadmaster.strategies.grids.expert_parallel import products_of_experts
from loadmaster.strategies.grids.recomputation_levels import whole_layers
from loadmaster.strategies.sharding.structure import Structure
from loadmaster.strategies.sharding.uniform import products
from loadmaster.transforms.base import ranks

#: Modules that do not go together: one has what the other keeps.
APART = (("layernorm", "mlp"), ("layernorm", "moe"), ("moe_act", "moe"))

Ops = NDArray[np.bool_]

#: Parts of the names of kinds of products.
_PRODUCTS = ("mm", "matmul", "dot", "einsum")


def lines_of_modules(structure: Structure, layer_list: LayerList) -> dict[str, str]:
    """Modules that can be recomputed alone, in the words of ``--recompute-modules``, each with the
    line of a recipe that says it. Modules that layers lack, or have in different forms, are left
    out.

    O(V + E), and sorting.
    """
    layers, modules = _LayerOps(structure, layer_list), whole_layers(layer_list)
    said = {
        "core_attn": layers.core_attention,
        "layernorm": layers.norms,
        "moe_act": layers.activations_of_experts,
        "mlp": layers.mlp & ~layers.has_experts,
        "moe": layers.mlp & layers.has_experts,
    }
    lines = {name: line_of(structure.graph, modules, ops) for name, ops in said.items()}
    return {name: line for name, line in lines.items() if line is not None}


@dataclass(frozen=True, eq=False)
class _LayerOps:
    """The ops of layers in the forward pass, and what they do: each bool [n_ops]."""

    structure: Structure
    listed: LayerList

    @cached_property
    def layer(self) -> NDArray[np.int64]:
        """The layer of each op of the forward pass; -1: of none."""
        graph = self.structure.graph
        of = instances(graph.modules, [whole_layers(self.listed)], "recompute")
        return np.where([phase == "f" for phase in graph.phases], of, -1)

    @cached_property
    def weighted(self) -> Ops:
        """Products with weights."""
        return self._of_nodes(products(self.structure))

    @cached_property
    def of_experts(self) -> Ops:
        """Products with the weights of routed experts."""
        return self._of_nodes(products_of_experts(self.structure))

    @property
    def core_attention(self) -> Ops:
        """Ops from the product of queries and keys, with it, to that with values."""
        others = self._named(*_PRODUCTS) & ~self.weighted
        softmax = self._named("softmax")
        values = others & self._after(softmax)
        keys = others & self._before(softmax) & self._before(values)
        return keys | (self._after(keys) & self._before(values))

    @property
    def norms(self) -> Ops:
        """Modules of norms that products with weights read."""
        graph, arguments = self.structure.graph, self.structure.arguments
        is_norm = self._named("norm", "rsqrt")
        modules = np.array(graph.modules, dtype=object)
        mixed = set(modules[self._named(*_PRODUCTS, "attention")])
        of_norms = set(modules[is_norm]) - mixed
        inside: Ops = (self.layer >= 0) & np.array([module in of_norms for module in modules])
        read = np.zeros(graph.n_ops, dtype=bool)
        by = self.weighted[self.structure.op[arguments.reader]] & (arguments.root >= 0)
        read[self.structure.op[arguments.root[by]]] = True
        wanted = set(modules[inside & read])
        inside &= np.array([module in wanted for module in modules])
        return inside

    @cached_property
    def mlp(self) -> Ops:
        """From the first product behind attention's own to the last one."""
        attention = self._named("attention") | self.core_attention
        behind = self.weighted & self._after(attention)
        later = behind & self._after(behind)
        return later | (self._after(later) & self._before(later))

    @property
    def activations_of_experts(self) -> Ops:
        """Ops between the products of experts."""
        between = self._after(self.of_experts) & self._before(self.of_experts)
        return between & ~self.of_experts

    @property
    def has_experts(self) -> Ops:
        """True if the layer of an op has routed experts."""
        of = np.unique(self.layer[self.of_experts])
        return np.isin(self.layer, of)

    def _of_nodes(self, nodes: Ops) -> Ops:
        ops = np.zeros(self.structure.graph.n_ops, dtype=bool)
        ops[self.structure.op[nodes]] = True
        ops &= self.layer >= 0
        return ops

    def _named(self, *words: str) -> Ops:
        kinds = self.structure.graph.kinds
        has = np.array([any(word in kind for word in words) for kind in kinds], dtype=bool)
        has &= self.layer >= 0
        return has

    @cached_property
    def _edges(self) -> list[tuple[int, int]]:
        """Data between ops of one layer, readers in an order in which what they read is before."""
        graph = self.structure.graph
        tensor = graph.src if graph.tensor is None else graph.tensor
        layer = self.layer
        at = np.flatnonzero(
            (tensor >= 0) & (layer[graph.src] >= 0) & (layer[graph.src] == layer[graph.dst])
        )
        at = at[np.argsort(ranks(graph)[graph.dst[at]], kind="stable")]
        return list(zip(graph.src[at].tolist(), graph.dst[at].tolist(), strict=True))

    def _after(self, ops: Ops) -> Ops:
        """Ops that come after some ops in their layer, in the forward pass."""
        return self._spread(ops, self._edges)

    def _before(self, ops: Ops) -> Ops:
        """Ops that come before some ops in their layer."""
        return self._spread(ops, [(dst, src) for src, dst in reversed(self._edges)])

    @staticmethod
    def _spread(ops: Ops, edges: list[tuple[int, int]]) -> Ops:
        spread = np.zeros_like(ops)
        for source, target in edges:
            if ops[source] or spread[source]:
                spread[target] = True
        return spread
