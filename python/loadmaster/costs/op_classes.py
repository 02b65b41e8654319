"""Classes of ops whose times err together: an error of a class stretches all its seconds."""

from __future__ import annotations

from loadmaster.costs.kernels.kinds import family_of
from loadmaster.model.graph import OpGraph

ATTENTION, CONVOLUTIONS, PRODUCTS = "attention", "convolutions", "products"
NORMS, POINTWISE, OPTIMIZER = "norms", "pointwise", "optimizer"

#: Classes of ops that compute.
OF_OPS = (ATTENTION, CONVOLUTIONS, PRODUCTS, NORMS, POINTWISE, OPTIMIZER)

#: Classes of families of kernels; all others move bytes.
_OF_FAMILY = {
    "attention": ATTENTION,
    "convolutions": CONVOLUTIONS,
    "products": PRODUCTS,
    **dict.fromkeys(("norm", "softmax", "batch norm"), NORMS),
}


#: Parts of names of recurrent cells, which are products for the most part.
_RECURRENT = ("lstm", "gru", "rnn")


def class_of_kind(kind: str) -> str:
    """The class of ops of a kind.

    >>> [class_of_kind(kind) for kind in ("aten.addmm", "MatMul", "aten.native_layer_norm", "Add")]
    ['products', 'products', 'norms', 'pointwise']
    """
    if any(part in kind.lower() for part in _RECURRENT):
        return PRODUCTS
    return _OF_FAMILY.get(family_of(kind), POINTWISE)


def classes_of(graph: OpGraph) -> list[str]:
    """The class of each op: those of the optimizer's step are one of their own. O(ops)."""
    by_kind = {kind: class_of_kind(kind) for kind in set(graph.kinds)}
    pairs = zip(graph.phases, graph.kinds, strict=True)
    return [OPTIMIZER if phase == "o" else by_kind[kind] for phase, kind in pairs]
