"""FLOPs and bytes of one op of OpenVINO, from the sizes of its ports, by the conventions of ONNX.

They are those of :mod:`loadmaster.readers.onnx.costs`: a multiply-add is 2 FLOPs, the formula of an
op defines the rest, and bytes are distinct inputs read once and outputs written once.
"""

from __future__ import annotations

from collections.abc import Callable

from loadmaster.base.checks import product
from loadmaster.readers.shared import formulas
from loadmaster.readers.shared.formulas import Cost, by_kind, multiply_adds
from loadmaster.readers.shared.ops import (
    Count,
    Op,
    dims,
    einsum,
    given,
    none,
    numel,
    or_zero,
    per_input,
    per_output,
)

VIEWS = frozenset(("Reshape", "Squeeze", "Unsqueeze"))


def is_known(kind: str) -> bool:
    """True if the table knows how many FLOPs an op of this kind takes."""
    return kind in _FLOPS


def cost(op: Op) -> Cost:
    """FLOPs and bytes of an op. What cannot be known counts as 0 and makes it not known.

    >>> from loadmaster.readers.shared.ops import Tensor
    >>> x, w, y = Tensor("f32", (8, 16)), Tensor("f32", (4, 16)), Tensor("f32", (8, 4))
    >>> cost(Op("MatMul", [x, w], [y], {"transpose_b": "true"}))
    Cost(flops=1024, bytes=896, known=True)
    """
    flops, flops_known = or_zero(_FLOPS.get(op.kind, none), op)
    moved, bytes_known = or_zero(_BYTES.get(op.kind, _all_bytes), op)
    if not bytes_known:
        moved = sum(t.nbytes or 0 for t in (*op.ins, *op.outs) if t is not None)
    return Cost(flops, moved, flops_known and bytes_known)


def _numbers(op: Op, attribute: str) -> list[int]:
    return [int(n) for n in str(op.attrs[attribute]).split(",")]


def _matmul(op: Op) -> int:
    left = dims(op.ins[0])
    is_turned = op.attrs.get("transpose_a") in ("true", "1") and len(left) > 1
    return multiply_adds(numel(op.outs[0]), left[-2 if is_turned else -1])


def _conv(weight: int, first: int) -> Count:
    """2 per output element and weight of a filter, whose sizes begin at dimension ``first``."""
    return lambda op: multiply_adds(numel(op.outs[0]), product(dims(op.ins[weight])[first:]))


def _conv_back(first: int) -> Count:
    """2 per input element and weight that it meets."""
    return lambda op: multiply_adds(numel(op.ins[0]), product(dims(op.ins[1])[first:]))


def _pool(op: Op) -> int:
    return formulas.pool(numel(op.outs[0]), product(_numbers(op, "kernel")))


def _recurrent(weights: int, last: int) -> Count:
    """Both products of every step; the rows of the input are all but its last dimension."""

    def count(op: Op) -> int:
        rows = product(dims(op.ins[0])[:-1])
        return formulas.recurrent(rows, numel(op.ins[weights]) + numel(op.ins[last]))

    return count


def _attention(op: Op) -> int:
    q, k, v = (dims(tensor) for tensor in op.ins[:3])
    pairs = product(q[:-1]) * k[-2]
    return formulas.attention(pairs, q[-1], v[-1]) + 5 * pairs


def _top_k(op: Op) -> int:
    return formulas.top_k(numel(op.ins[0]), dims(op.outs[0])[int(op.attrs.get("axis", -1))])


def _interpolate(op: Op) -> int:
    mode = str(op.attrs.get("mode", "nearest"))
    taps = 4 if "cubic" in mode else 2 if "linear" in mode else 0
    pairs = zip(dims(op.ins[0]), dims(op.outs[0]), strict=False)
    axes = sum(a != b for a, b in pairs)
    return multiply_adds(numel(op.outs[0]), taps**axes) if taps and axes else 0


_PER_OUTPUT: dict[int, str] = {
    1: "Abs Acos Acosh Add Asin Asinh Atan Atanh BitwiseAnd BitwiseLeftShift BitwiseNot BitwiseOr "
    "BitwiseRightShift BitwiseXor Ceiling Cos Cosh CumSum Divide Equal Erf Exp Floor FloorMod "
    "Greater GreaterEqual Less LessEqual Log LogicalAnd LogicalNot LogicalOr LogicalXor Maximum "
    "Minimum Mod Multiply Negative NotEqual Power ReLU Round Sign Sin Sinh Sqrt "
    "SquaredDifference Subtract Tan TanH Tanh",
    2: "BatchNormInference Clamp PReLU",
    3: "Elu NormalizeL2 SoftPlus SoftSign",
    4: "HardSigmoid HSigmoid Selu Sigmoid",
    5: "Gelu HSwish LogSoftmax Mish SoftMax Softmax Swish",
    6: "FakeQuantize MVN",
    7: "GroupNormalization",
}
_PER_INPUT: dict[int, str] = {
    1: "AdaptiveAvgPool AdaptiveMaxPool ReduceLogicalAnd ReduceLogicalOr ReduceMax ReduceMean "
    "ReduceMin ReduceProd ReduceSum",
    2: "ReduceL1 ReduceL2",
}
_MOVES = (
    "Assign Broadcast Concat Convert ConvertLike DepthToSpace Eye Gather GatherElements GatherND "
    "NonZero OneHot Pad Range ReadValue Reverse ReverseSequence Roll ScatterElementsUpdate "
    "ScatterNDUpdate ScatterUpdate Select ShapeOf ShuffleChannels Slice SpaceToDepth Split "
    "StridedSlice Tile Transpose Unique VariadicSplit"
)

_FLOPS: dict[str, Count] = {
    **by_kind(per_output, _PER_OUTPUT),
    **by_kind(per_input, _PER_INPUT),
    **dict.fromkeys((*_MOVES.split(), *VIEWS), none),
    "MatMul": _matmul,
    "Convolution": _conv(1, 1),
    "GroupConvolution": _conv(1, 2),
    "DeformableConvolution": _conv(2, 1),
    "ConvolutionBackpropData": _conv_back(1),
    "GroupConvolutionBackpropData": _conv_back(2),
    **dict.fromkeys(("MaxPool", "AvgPool"), _pool),
    "LSTMSequence": _recurrent(4, 5),
    "GRUSequence": _recurrent(3, 4),
    "RNNSequence": _recurrent(3, 4),
    "LSTMCell": _recurrent(3, 4),
    "GRUCell": _recurrent(2, 3),
    "RNNCell": _recurrent(2, 3),
    "ScaledDotProductAttention": _attention,
    "TopK": _top_k,
    "Interpolate": _interpolate,
    "Einsum": einsum,
}


def _all_bytes(op: Op) -> int:
    tensors = {id(t): t for t in (*op.ins, *op.outs) if t is not None}
    return sum(given(t.nbytes) for t in tensors.values())


def _gathered(op: Op) -> int:
    """As many bytes of the first input as are written, and the rest in full."""
    written = sum(given(t.nbytes) for t in op.outs if t is not None)
    rest = sum(given(t.nbytes) for t in op.ins[1:] if t is not None)
    return formulas.gathered(written, rest)


_BYTES: dict[str, Callable[[Op], int]] = {
    "ShapeOf": none,
    **dict.fromkeys(("Gather", "GatherElements", "GatherND", "Slice", "StridedSlice"), _gathered),
}
