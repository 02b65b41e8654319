"""Output shapes of ops ONNX's shape inference does not know: mostly ONNX Runtime's own.

ONNX Runtime's stand in graphs that it has optimised or its tools have quantized. A rule gets an op
with known inputs and gives its outputs in order; it may raise `UnknownShapeError`, `IndexError`,
`KeyError` or `ValueError` where it cannot tell, and then their shapes are unknown.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from loadmaster.readers.onnx import quantized_shapes
from loadmaster.readers.onnx.quantized_shapes import Rule, like_first, matrix_product, swapped
from loadmaster.readers.shared.ops import Op, Tensor, UnknownShapeError, dims


class StandIn(NamedTuple):
    """The ONNX op that has the shapes of an op.

    Attributes
    ----------
    kind : str
    n_inputs : int
        The first inputs, which that op takes.
    has_channels_last : function
        True for an op whose first input and output have their channels last.
    dtype : str
        The element type that ONNX knows that op for, where it does not take the one that there is.
    """

    kind: str
    n_inputs: int
    has_channels_last: Callable[[Op], bool] = lambda op: False
    dtype: str = ""


def _says_channels_last(op: Op) -> bool:
    return bool(op.attrs.get("channels_last"))


_OF_KIND: dict[str, StandIn] = {
    "FusedConv": StandIn("Conv", 3),
    "nchwc.Conv": StandIn("Conv", 3),
    "nchwc.MaxPool": StandIn("MaxPool", 1),
    "nchwc.AveragePool": StandIn("AveragePool", 1),
    "nchwc.GlobalMaxPool": StandIn("GlobalMaxPool", 1),
    "nchwc.GlobalAveragePool": StandIn("GlobalAveragePool", 1),
    "FusedGemm": StandIn("Gemm", 3),
    "GatherND": StandIn("GatherND", 2),
    "NhwcMaxPool": StandIn("MaxPool", 1, lambda op: True),
    "QLinearAveragePool": StandIn("AveragePool", 1, _says_channels_last, "f32"),
    "QLinearConv": StandIn("QLinearConv", 9, _says_channels_last),
    "QLinearGlobalAveragePool": StandIn("GlobalAveragePool", 1, _says_channels_last, "f32"),
    "QuantizeLinear": StandIn("QuantizeLinear", 3),
    "DequantizeLinear": StandIn("DequantizeLinear", 3),
    "Pad": StandIn("Pad", 3),
    "GridSample": StandIn("GridSample", 2),
    "Trilu": StandIn("Trilu", 2),
}

#: Ops with the shapes of an ONNX op, by kind with its domain.
STAND_INS = {f"com.microsoft.{kind}": one for kind, one in _OF_KIND.items()}


def _first(op: Op) -> Tensor:
    tensor = op.ins[0]
    if tensor is None:
        raise UnknownShapeError
    return Tensor(tensor.dtype, tensor.shape)


def _normalized(op: Op) -> list[Tensor]:
    """Output, two statistics per row, and the sum before the norm."""
    x = _first(op)
    rows = Tensor("f32", (*dims(x)[:-1], 1))
    return [x, rows, rows, x]


def _matmul(op: Op) -> list[Tensor]:
    if op.attrs.get("transBatchA") or op.attrs.get("transBatchB"):
        raise UnknownShapeError
    left = swapped(dims(op.ins[0]), op.attrs.get("transA"))
    right = swapped(dims(op.ins[1]), op.attrs.get("transB"))
    return [Tensor(_first(op).dtype, matrix_product(left, right))]


def _halved(op: Op) -> list[Tensor]:
    x = _first(op)
    shape = dims(x)
    return [Tensor(x.dtype, (*shape[:-1], shape[-1] // 2))]


def _heads(op: Op, attribute: str) -> int:
    heads = int(op.attrs[attribute])
    if heads < 1:
        raise UnknownShapeError
    return heads


def _packed_attention(op: Op) -> list[Tensor]:
    """Attention and QAttention: one weight projects to Q, K and V."""
    batch, length, _ = dims(op.ins[0])
    sizes = op.attrs.get("qkv_hidden_sizes") or [dims(op.ins[1])[1] // 3] * 3
    heads = _heads(op, "num_heads")
    past = op.ins[4] if len(op.ins) > 4 and op.kind.endswith(".Attention") else None
    total = length + (dims(past)[3] if past is not None else 0)
    dtype = "f32" if op.kind.endswith("QAttention") else _first(op).dtype
    return [
        Tensor(dtype, (batch, length, int(sizes[2]))),
        Tensor(dtype, (2, batch, heads, total, int(sizes[2]) // heads)),
    ]


def _multi_head_attention(op: Op) -> list[Tensor]:
    q = _first(op)
    heads = _heads(op, "num_heads")
    shape = dims(q)
    value = op.ins[2] if len(op.ins) > 2 else None
    if value is None:  # packed: batch, length, heads, 3 (or keys and values apart, 2), width
        width = shape[2] * shape[4] if len(shape) == 5 else shape[2]
        total = shape[1] if len(shape) == 5 else dims(op.ins[1])[1]
    else:
        v = dims(value)
        width, total = (v[1] * v[3], v[2]) if len(v) == 4 else (v[2], v[1])
    past = op.ins[6] if len(op.ins) > 6 else None
    total += dims(past)[2] if past is not None else 0
    present = Tensor(q.dtype, (shape[0], heads, total, width // heads))
    return [Tensor(q.dtype, (shape[0], shape[1], width)), present, present]


def _group_query_attention(op: Op) -> list[Tensor]:
    q = _first(op)
    batch, length, width = dims(q)
    heads, kv_heads = _heads(op, "num_heads"), _heads(op, "kv_num_heads")
    if op.ins[1] is None:
        width = width * heads // (heads + 2 * kv_heads)
    past = op.ins[3] if len(op.ins) > 3 else None
    total = length + (dims(past)[2] if past is not None else 0)
    present = Tensor(q.dtype, (batch, kv_heads, total, width // heads))
    return [Tensor(q.dtype, (batch, length, width)), present, present]


def _embedded(op: Op) -> list[Tensor]:
    batch, length = dims(op.ins[0])
    table = op.ins[2]
    hidden = Tensor(table.dtype if table else "", (batch, length, dims(table)[1]))
    return [hidden, Tensor("i32", (batch,)), hidden]


def _from_blocks(op: Op) -> list[Tensor]:
    """ReorderOutput drops the channels that padded the last block."""
    x = _first(op)
    batch, _, *space = dims(x)
    channels = int(op.attrs["channels"])
    last = op.attrs.get("channels_last")
    return [Tensor(x.dtype, (batch, *space, channels) if last else (batch, channels, *space))]


def _to_blocks(op: Op) -> list[Tensor]:
    """ReorderInput pads the channels to whole blocks of at least 8."""
    x = _first(op)
    batch, *rest = dims(x)
    last = op.attrs.get("channels_last")
    channels, space = (rest[-1], rest[:-1]) if last else (rest[0], rest[1:])
    return [Tensor(x.dtype, (batch, -(-channels // 8) * 8, *space))]


def _scaled(op: Op) -> list[Tensor]:
    x = _first(op)
    scales = op.attrs["scales"]
    return [Tensor(x.dtype, tuple(int(d * s) for d, s in zip(dims(x), scales, strict=True)))]


_LIKE_FIRST = (
    "BiasAdd BiasGelu BiasSoftmax FastGelu Gelu GroupNorm Inverse QuickGelu "
    "RotaryEmbedding SkipGroupNorm"
)

RULES: dict[str, Rule] = {
    **quantized_shapes.RULES,
    **{f"com.microsoft.{kind}": like_first for kind in _LIKE_FIRST.split()},
    # ONNX has no inference of its own for these two, which it defines by other ops.
    "GroupNormalization": like_first,
    "MeanVarianceNormalization": like_first,
    "SimplifiedLayerNormalization": lambda op: _normalized(op)[:2],
    "com.microsoft.SkipLayerNormalization": _normalized,
    "com.microsoft.SkipSimplifiedLayerNormalization": _normalized,
    "com.microsoft.EmbedLayerNormalization": _embedded,
    "com.microsoft.FusedMatMul": _matmul,
    "com.microsoft.FusedMatMulActivation": _matmul,
    "com.microsoft.TransposeMatMul": _matmul,
    "com.microsoft.BiasSplitGelu": _halved,
    "com.microsoft.Attention": _packed_attention,
    "com.microsoft.QAttention": _packed_attention,
    "com.microsoft.MultiHeadAttention": _multi_head_attention,
    "com.microsoft.GroupQueryAttention": _group_query_attention,
    "com.microsoft.nchwc.ReorderInput": _to_blocks,
    "com.microsoft.nchwc.ReorderOutput": _from_blocks,
    "com.microsoft.nchwc.Upsample": _scaled,
}
