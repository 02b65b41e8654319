"""Families of ops by their kinds, in the words of ATen, ONNX, TensorFlow and HLO."""

from __future__ import annotations

import re
from functools import cache

#: Names of products of matrices, without dots, underscores and capitals.
_PRODUCTS = frozenset(
    (
        *("mm", "addmm", "bmm", "baddbmm", "addbmm", "matmul", "linear", "mv", "addmv", "einsum"),
        *("dot", "dotgeneral", "gemm", "fusedmatmul", "fusedgemm", "batchmatmul", "batchmatmulv2"),
        *(
            "matmulnbits",
            "matmulinteger",
            "qlinearmatmul",
            "groupedmm",
            "scaledmm",
            "fullyconnected",
        ),
        *("innerproduct", "int8mm", "intmm", "xlaeinsum"),
    )
)
_NORMS = re.compile(r"(layer|rms|group|instance)norm|normalization|normbackward")
_GATHERS = re.compile(r"^(embedding|index|gather|scatter|take|onehot|oneHot|roll|sort|topk)")
_ATTENTION = re.compile(r"scaleddotproduct|flashattn|flashattention|efficientattention")


@cache
def family_of(kind: str) -> str:
    """The family of an op's kind; ``"other"``: none, bound by its bytes unless it counts FLOPs.

    >>> family_of("aten.addmm.default"), family_of("MatMul"), family_of("stablehlo.dot_general")
    ('products', 'products', 'products')
    >>> family_of("aten.native_layer_norm_backward.default"), family_of("aten.relu.default")
    ('norm', 'other')
    """
    name = _plain(kind)
    if _ATTENTION.search(name):
        return "attention"
    if "conv" in name and "convert" not in name:
        return "convolutions"
    if name.removesuffix("backward") in _PRODUCTS:
        return "products"
    if "softmax" in name:
        return "softmax"
    if "batchnorm" in name:
        return "batch norm"
    if _NORMS.search(name):
        return "norm"
    return "gathers" if _GATHERS.match(name) else "other"


@cache
def is_backward(kind: str) -> bool:
    """True if an op of this kind makes gradients.

    >>> is_backward("aten.convolution_backward.default"), is_backward("ConvGrad")
    (True, True)
    """
    name = _plain(kind)
    return "backward" in name or name.endswith("grad") or "backprop" in name


def _plain(kind: str) -> str:
    """A kind without its namespace, overload, underscores and capitals."""
    name = kind.rpartition("::")[2]
    for prefix in ("aten.", "prims.", "stablehlo.", "mhlo.", "hlo."):
        if name.startswith(prefix):
            name = name.removeprefix(prefix)
            break
    return name.partition(".")[0].replace("_", "").replace("-", "").lower()
