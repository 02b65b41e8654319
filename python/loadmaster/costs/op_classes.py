"""Classes of ops whose times err together: an error of a class stretches all its seconds."""

from __future__ import annotations

from loadmaster.model.graph import OpGraph

#: Classes of ops by parts of their kinds' names; the first that fits counts, else POINTWISE.
_PARTS = {
    "attention": ("attention", "flash"),
    "convolutions": ("conv",),
    "products": ("mm", "matmul", "linear", "gemm", "dot", "einsum", "lstm", "gru"),
    "norms": ("norm", "softmax", "loss"),
}
POINTWISE, OPTIMIZER = "pointwise", "optimizer"

#: Classes of ops that compute.
OF_OPS = (*_PARTS, POINTWISE, OPTIMIZER)


def class_of_kind(kind: str) -> str:
    """The class of ops of a kind.

    >>> [class_of_kind(kind) for kind in ("aten.addmm", "MatMul", "aten.native_layer_norm", "Add")]
    ['products', 'products', 'norms', 'pointwise']
    """
    name = kind.lower()
    return next((c for c, parts in _PARTS.items() if any(p in name for p in parts)), POINTWISE)


def classes_of(graph: OpGraph) -> list[str]:
    """The class of each op: those of the optimizer's step are one of their own. O(ops)."""
    by_kind = {kind: class_of_kind(kind) for kind in set(graph.kinds)}
    pairs = zip(graph.phases, graph.kinds, strict=True)
    return [OPTIMIZER if phase == "o" else by_kind[kind] for phase, kind in pairs]
