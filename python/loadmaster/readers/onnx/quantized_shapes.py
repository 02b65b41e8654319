"""Output shapes of quantized ops of ONNX Runtime's domain, ``com.microsoft``.

Rules are as those of :mod:`~loadmaster.readers.onnx.runtime_shapes`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from loadmaster.readers.onnx.costs import ELEMENT_TYPES
from loadmaster.readers.shared.ops import Op, Tensor, UnknownShapeError, dims

Rule = Callable[[Op], list[Tensor]]


def like_first(op: Op) -> list[Tensor]:
    """One output of the type and shape of the first input."""
    tensor = op.ins[0]
    if tensor is None:
        raise UnknownShapeError
    return [Tensor(tensor.dtype, tensor.shape)]


def matrix_product(left: tuple[int, ...], right: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of a matrix product, batch dimensions broadcast.

    >>> matrix_product((2, 1, 3, 4), (5, 4, 6)), matrix_product((4,), (4, 6))
    ((2, 5, 3, 6), (6,))
    """
    if not left or not right:
        raise UnknownShapeError
    rows, columns = left[-2:-1], right[-1:] if len(right) > 1 else ()
    return (*np.broadcast_shapes(left[:-2], right[:-2]), *rows, *columns)


def swapped(shape: tuple[int, ...], swap: Any) -> tuple[int, ...]:
    """The shape with its last two dimensions exchanged, if ``swap``."""
    return (*shape[:-2], shape[-1], shape[-2]) if swap else shape


def dtype_of(tensor: Tensor | None) -> str:
    """The element type of an input; empty where it is left out."""
    return "" if tensor is None else tensor.dtype


def _typed(op: Op, attribute: str) -> str:
    """The element type that an attribute says by its number; that of single floats without it."""
    return ELEMENT_TYPES.get(int(op.attrs.get(attribute, 1)), "")


def _product(left: int, right: int, dtype: str = "") -> Rule:
    """The product of two inputs, of the left one's type or of another."""

    def rule(op: Op) -> list[Tensor]:
        a, b = (dims(op.ins[i]) for i in (left, right))
        a, b = swapped(a, op.attrs.get("transA")), swapped(b, op.attrs.get("transB"))
        return [Tensor(dtype or dtype_of(op.ins[left]), matrix_product(a, b))]

    return rule


def _float8_product(op: Op) -> list[Tensor]:
    return _product(0, 1, _typed(op, "dtype"))(op)


def _requantized_product(op: Op) -> list[Tensor]:
    """QGemm: floats, if nothing says how to quantize the output."""
    requantized = len(op.ins) > 7 and op.ins[7] is not None
    return _product(0, 3, "" if requantized else "f32")(op)


def _widest(op: Op) -> list[Tensor]:
    """MatMulInteger16: the output has a sign if an input has."""
    unsigned = all(dtype_of(t).startswith("u") for t in op.ins[:2])
    return _product(0, 1, "u32" if unsigned else "i32")(op)


def _projected(*widths: str) -> Rule:
    """Products with packed weights, as wide as attributes say; then, perhaps, the sum before."""

    def rule(op: Op) -> list[Tensor]:
        rows, dtype = dims(op.ins[0])[:-1], dtype_of(op.ins[0])
        packed = [Tensor(dtype, (*rows, int(op.attrs[width]))) for width in widths]
        return [*packed, *like_first(op)]

    return rule


def _by_rows(op: Op) -> list[Tensor]:
    """A product with weights of a row per output feature."""
    return [Tensor(dtype_of(op.ins[0]), (*dims(op.ins[0])[:-1], dims(op.ins[1])[0]))]


def _of_packed(op: Op) -> list[Tensor]:
    """MatMulFpQ4: the third input is the shape of the packed right factor."""
    shape = _content(op, 2)
    return [Tensor(dtype_of(op.ins[0]), matrix_product(dims(op.ins[0]), shape))]


def _content(op: Op, i: int) -> tuple[int, ...]:
    """The numbers that an input holds."""
    tensor = op.ins[i]
    if tensor is None or tensor.data is None:
        raise UnknownShapeError
    return tuple(int(number) for number in tensor.data.reshape(-1))


def _broadcast(*inputs: int, dtype: str = "") -> Rule:
    """Element by element; of the type of the second of these inputs or of another."""

    def rule(op: Op) -> list[Tensor]:
        shape = np.broadcast_shapes(*(dims(op.ins[i]) for i in inputs))
        return [Tensor(dtype or dtype_of(op.ins[inputs[-1]]), shape)]

    return rule


def _joined(op: Op) -> list[Tensor]:
    """QLinearConcat: scale and zero of the output, then each input with its own."""
    parts = [list(dims(t)) for t in op.ins[2::3]]
    axis = int(op.attrs["axis"])
    shape = parts[0].copy()
    shape[axis] = sum(part[axis] for part in parts)
    return [Tensor(dtype_of(op.ins[1]) or dtype_of(op.ins[2]), tuple(shape))]


def _reduced(op: Op) -> list[Tensor]:
    """Axes and whether they are kept are attributes in every version."""
    shape = dims(op.ins[0])
    axes = {int(axis) % len(shape) for axis in op.attrs.get("axes", range(len(shape)))}
    keep = op.attrs.get("keepdims", 1)
    kept = [1 if at in axes else d for at, d in enumerate(shape) if keep or at not in axes]
    dtype = dtype_of(op.ins[0])
    wide = {"i8": "i32", "u8": "u32"}.get(dtype, dtype)
    return [Tensor(wide if op.kind.endswith("Integer") else dtype, tuple(kept))]


def _looked_up(op: Op) -> list[Tensor]:
    """GatherBlockQuantized: a byte holds several numbers along the last axis."""
    shape, picked = list(dims(op.ins[0])), dims(op.ins[1])
    if dtype_of(op.ins[0]) == "u8":
        shape[-1] *= 8 // int(op.attrs.get("bits", 4))
    axis = int(op.attrs.get("gather_axis", 0)) % len(shape)
    return [Tensor(dtype_of(op.ins[2]), (*shape[:axis], *picked, *shape[axis + 1 :]))]


def _quantized_lookup(op: Op) -> list[Tensor]:
    """QEmbedLayerNormalization."""
    batch, length = dims(op.ins[0])
    hidden = Tensor(dtype_of(op.ins[8]), (batch, length, dims(op.ins[2])[1]))
    return [hidden, Tensor("i32", (batch,))]


def _ordered_attention(op: Op) -> list[Tensor]:
    batch, length, _ = dims(op.ins[0])
    sizes = op.attrs.get("qkv_hidden_sizes")
    width = int(sizes[2]) if sizes else dims(op.ins[7])[1]
    return [Tensor(dtype_of(op.ins[0]), (batch, length, width))]


def _recurrent(op: Op) -> list[Tensor]:
    steps, batch, _ = dims(op.ins[0])
    directions = 2 if op.attrs.get("direction") == "bidirectional" else 1
    hidden = int(op.attrs["hidden_size"])
    state = Tensor("f32", (directions, batch, hidden))
    return [Tensor("f32", (steps, directions, batch, hidden)), state, state]


def _blocks(op: Op) -> list[Tensor]:
    """QuantizeBFP: how many bytes there are is its own affair."""
    numbers = Tensor("i64", (len(dims(op.ins[0])),))
    return [Tensor("u8", (None,)), numbers, numbers]


_LIKE_FIRST = (
    "MoE QLinearLeakyRelu QLinearSigmoid QLinearSoftmax QMoE QOrderedGelu "
    "QOrderedLayerNormalization QOrderedLongformerAttention"
)

_OF_KIND: dict[str, Rule] = {
    **dict.fromkeys(_LIKE_FIRST.split(), like_first),
    "DequantizeBFP": lambda op: [Tensor(_typed(op, "dtype"), _content(op, 1))],
    "DequantizeWithOrder": lambda op: [Tensor(_typed(op, "to"), dims(op.ins[0]))],
    "DynamicQuantizeLSTM": _recurrent,
    "DynamicQuantizeMatMul": _product(0, 1, "f32"),
    "GatherBlockQuantized": _looked_up,
    "GemmFloat8": _float8_product,
    "MatMulBlockQuantizedFp4Weight": _by_rows,
    "MatMulBlockQuantizedFp8Weight": _by_rows,
    "MatMulBnb4": _projected("N"),
    "MatMulFpQ4": _of_packed,
    "MatMulInteger16": _widest,
    "MatMulIntegerToFloat": _product(0, 1, "f32"),
    "MatMulNBits": _projected("N"),
    "MatMulNBitsMlp": _projected("N"),
    "MatMulNBitsQLoRA": _projected("N"),
    "MatMulNBitsQkv": _projected("Nq", "Nkv", "Nkv"),
    "MulInteger": _broadcast(0, 2, dtype="i32"),
    "QEmbedLayerNormalization": _quantized_lookup,
    "QGemm": _requantized_product,
    "QLinearAdd": _broadcast(0, 3),
    "QLinearConcat": _joined,
    "QLinearMul": _broadcast(0, 3),
    "QLinearReduceMean": _reduced,
    "QLinearWhere": _broadcast(0, 1, 4),
    "QOrderedAttention": _ordered_attention,
    "QOrderedMatMul": _product(0, 2),
    "QuantizeBFP": _blocks,
    "QuantizeWithOrder": lambda op: [Tensor("i8", dims(op.ins[0]))],
    "ReduceSumInteger": _reduced,
}

#: Rules by kind, with its domain. Others of the domain are those of ONNX's ops or of attention.
RULES: dict[str, Rule] = {f"com.microsoft.{kind}": rule for kind, rule in _OF_KIND.items()}
