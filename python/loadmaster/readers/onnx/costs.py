"""FLOPs and bytes of one ONNX op: two tables from op kind to function, and nothing else.

The conventions, chosen so that ONNX graphs compare with the traced ones:

* A multiply-add is 2 FLOPs. The bias of a convolution or matrix product is not counted.
* Every other op counts the arithmetic of its defining formula, an elementary function (exp, log,
  sqrt, tanh, erf, a division, a comparison) being one FLOP; integer arithmetic counts alike.
* A fused op counts its parts. Recurrent cells count their matrix products only: the gates are
  under 1 % beyond a few hundred hidden units.
* Attention counts every pair of query and key, masked or not.
* Bytes are the distinct inputs read once and the outputs written once, each at full size, except
  for the kinds in ``BYTES``, which read only a part or nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from loadmaster.base.checks import product
from loadmaster.readers.shared import formulas
from loadmaster.readers.shared.formulas import Cost, by_kind, multiply_adds
from loadmaster.readers.shared.ops import (
    Count,
    Op,
    Tensor,
    dims,
    einsum,
    given,
    none,
    numel,
    or_zero,
    per_input,
    per_output,
    variadic,
)

#: Spelling of element types, by the number that ONNX gives them in TensorProto.DataType. A string
#: has no fixed size, so its tensors count as of unknown size.
ELEMENT_TYPES: dict[int, str] = {
    1: "f32", 2: "u8", 3: "i8", 4: "u16", 5: "i16", 6: "i32", 7: "i64", 8: "str", 9: "b8",
    10: "f16", 11: "f64", 12: "u32", 13: "u64", 14: "c64", 15: "c128", 16: "bf16", 17: "f8e4m3fn",
    18: "f8e4m3fnuz", 19: "f8e5m2", 20: "f8e5m2fnuz", 21: "u4", 22: "i4", 23: "f4e2m1",
    24: "f8e8m0", 25: "u2", 26: "i2",
}  # fmt: skip

VIEWS = frozenset(("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Dropout"))
# These read the shape of their input and never its content.
METADATA = frozenset(("Shape", "Size"))


def is_known(kind: str) -> bool:
    """True if the tables know how many FLOPs an op of this kind takes."""
    return kind in FLOPS or _bare(kind) in FLOPS


def is_view(op: Op) -> bool:
    """True if an op hands on its first input's storage, perhaps under another shape.

    Dropout does so in inference, unless its mask is asked for.
    """
    return op.kind in VIEWS and all(t is None for t in op.outs[1:])


def cost(op: Op) -> Cost:
    """FLOPs and bytes of an op. What cannot be known counts as 0 and makes it not known.

    >>> x = Tensor("f32", (8, 16))
    >>> cost(Op("MatMul", [x, Tensor("f32", (16, 4))], [Tensor("f32", (8, 4))]))
    Cost(flops=1024, bytes=896, known=True)
    """
    if is_view(op):
        return Cost()
    flops_of = FLOPS.get(op.kind) or FLOPS.get(_bare(op.kind), none)
    bytes_of = BYTES.get(op.kind) or BYTES.get(_bare(op.kind), _inputs_and_outputs)
    flops, flops_known = or_zero(flops_of, op)
    moved, bytes_known = or_zero(bytes_of, op)
    if not bytes_known:
        moved = sum(t.nbytes or 0 for t in _touched(op))
    return Cost(flops, moved, flops_known and bytes_known, launches=int(bool(flops or moved)))


# ONNX Runtime's domains hold fused and quantized variants under ONNX's own names; a kind whose
# meaning differs from its namesake stands in the tables with its domain.
_RUNTIME_DOMAINS = ("com.microsoft.nchwc.", "com.microsoft.", "com.ms.internal.nhwc.")


def _bare(kind: str) -> str:
    for domain in _RUNTIME_DOMAINS:
        if kind.startswith(domain):
            return kind.removeprefix(domain)
    return kind


def _at(tensors: Sequence[Tensor | None], i: int) -> Tensor | None:
    return tensors[i] if i < len(tensors) else None


# ---- FLOPs ------------------------------------------------------------------------------------


def _matmul(a: int = 0) -> Count:
    """2 per output element and inner dimension; input ``a`` is the left factor."""

    def count(op: Op) -> int:
        left = dims(op.ins[a])
        inner = left[-2] if op.attrs.get("transA", 0) and len(left) > 1 else left[-1]
        return multiply_adds(numel(op.outs[0]), inner)

    return count


def _conv(weight: int = 1) -> Count:
    """2 per output element and weight of one filter; grouping is in the weight's own shape."""
    return lambda op: multiply_adds(numel(op.outs[0]), product(dims(op.ins[weight])[1:]))


def _fused(product: Count, addend: int) -> Count:
    """A product, then an activation if the op names one and the sum with an optional input."""

    def count(op: Op) -> int:
        extras = ("activation" in op.attrs) + (_at(op.ins, addend) is not None)
        return product(op) + extras * numel(op.outs[0])

    return count


def _conv_transpose(op: Op) -> int:
    return multiply_adds(numel(op.ins[0]), product(dims(op.ins[1])[1:]))


def _recurrent(op: Op) -> int:
    """Two products per step and sample; W and R hold all gates and directions."""
    steps, batch = dims(op.ins[0])[:2]  # or batch, steps: only their product counts
    return formulas.recurrent(steps * batch, numel(op.ins[1]) + numel(op.ins[2]))


def _pool(flops: int) -> Count:
    def count(op: Op) -> int:
        return formulas.pool(numel(op.outs[0]), product(op.attrs.get("kernel_shape", ())), flops)

    return count


def _resize(op: Op) -> int:
    """A multiply-add per neighbour: 2 (linear) or 4 (cubic) along each resized axis."""
    taps = {"linear": 2, "bilinear": 2, "cubic": 4}.get(op.attrs.get("mode", "nearest"), 0)
    pairs = zip(dims(op.ins[0]), dims(op.outs[0]), strict=False)
    axes = sum(a != b for a, b in pairs)
    return multiply_adds(numel(op.outs[0]), taps**axes) if taps and axes else 0


def _grid_sample(op: Op) -> int:
    taps = {"nearest": 0, "bicubic": 4, "cubic": 4}.get(op.attrs.get("mode", "linear"), 2)
    axes = len(dims(op.ins[0])) - 2
    return multiply_adds(numel(op.outs[0]), taps**axes) if taps else 0


def _roi_align(op: Op) -> int:
    samples = max(int(op.attrs.get("sampling_ratio", 0)), 1) ** 2
    return 8 * samples * numel(op.outs[0])


def _lrn(op: Op) -> int:
    return (2 * int(op.attrs.get("size", 1)) + 3) * numel(op.outs[0])


def _top_k(op: Op) -> int:
    return formulas.top_k(numel(op.ins[0]), dims(op.outs[0])[int(op.attrs.get("axis", -1))])


def _det(op: Op) -> int:
    n = dims(op.ins[0])[-1]
    return 2 * numel(op.ins[0]) * n // 3


def _fft(length_axis: int) -> Count:
    """The last axis has real and imaginary parts."""

    def count(op: Op) -> int:
        shape = dims(op.outs[0])
        return formulas.fft(product(shape[:-1]), shape[length_axis])

    return count


def _attend(batch: int, heads: int, queries: int, keys: int, qk_width: int, v_width: int) -> int:
    """Scores, softmax (5 per score) and the weighted sum; widths are over all heads."""
    pairs = batch * queries * keys
    return formulas.attention(pairs, qk_width, v_width) + 5 * pairs * heads


def _past_length(past: Tensor | None, axis: int = -2) -> int:
    return dims(past)[axis] if past is not None else 0


def _attention(op: Op) -> int:
    """ONNX Attention: Q, K, V of rank 4 (batch, heads, length, width) or 3 (heads packed)."""
    q, k, v = (dims(t) for t in op.ins[:3])
    if len(q) == 4:
        heads, qk_width, v_width = q[1], q[1] * q[3], q[1] * v[3]
    else:
        heads = int(op.attrs.get("q_num_heads", 1))
        kv_heads = int(op.attrs.get("kv_num_heads", heads))
        qk_width, v_width = q[2], v[2] * heads // kv_heads
    keys = k[-2] + _past_length(_at(op.ins, 4))
    return _attend(q[0], heads, q[-2], keys, qk_width, v_width)


def _packed_attention(past: int) -> Count:
    """ONNX Runtime's Attention: the projection to Q, K and V, then the attention itself."""

    def count(op: Op) -> int:
        batch, length, width = dims(op.ins[0])
        projected = dims(op.ins[1])[1]
        v_width = dims(op.outs[0])[-1]
        keys = length + _past_length(_at(op.ins, past))
        core = _attend(
            batch,
            int(op.attrs.get("num_heads", 1)),
            length,
            keys,
            (projected - v_width) // 2,
            v_width,
        )
        return multiply_adds(batch * length * projected, width) + core

    return count


def _multi_head_attention(op: Op) -> int:
    """Q of rank 3, or Q, K and V packed in rank 5; K and V of rank 3 or 4."""
    q = dims(op.ins[0])
    batch, queries, v_width = dims(op.outs[0])
    key = _at(op.ins, 1)
    keys = queries if key is None else dims(key)[1 if len(dims(key)) != 4 else 2]
    keys += _past_length(_at(op.ins, 6))
    qk_width = q[2] if len(q) == 3 else q[2] * q[4]
    return _attend(batch, int(op.attrs.get("num_heads", 1)), queries, keys, qk_width, v_width)


def _group_query_attention(op: Op) -> int:
    """Counts keys by the length of the cache, which is what the kernel is given room for."""
    batch, queries, width = dims(op.outs[0])
    present = _at(op.outs, 1)
    keys = dims(present)[2] if present is not None else queries + _past_length(_at(op.ins, 3))
    return _attend(batch, int(op.attrs.get("num_heads", 1)), queries, keys, width, width)


_PER_OUTPUT: dict[int, str] = {
    1: "Abs Acos Acosh Add And Asin Asinh Atan Atanh BitShift BitwiseAnd BitwiseNot BitwiseOr "
    "BitwiseXor Ceil Cos Cosh CumProd CumSum Div Equal Erf Exp Floor Greater GreaterOrEqual "
    "Inverse IsInf IsNaN Less LessOrEqual Log Mod Mul Neg Not Or Pow QLinearAdd QLinearMul "
    "Reciprocal Relu Round Sign Sin Sinh Sqrt Sub Tan Tanh Xor BlackmanWindow HammingWindow "
    "HannWindow AffineGrid BiasAdd MulInteger",
    2: "BatchNormalization Clip DequantizeLinear DequantizeWithOrder GatherBlockQuantized "
    "LeakyRelu PRelu QLinearLeakyRelu Shrink ThresholdedRelu",
    3: "Elu LpNormalization RotaryEmbedding Softplus Softsign",
    4: "HardSigmoid QLinearSigmoid QuantizeLinear QuantizeWithOrder RMSNormalization Selu Sigmoid "
    "SimplifiedLayerNormalization",
    5: "Celu Gelu HardSwish LogSoftmax Mish QLinearSoftmax QOrderedGelu QuickGelu Softmax Swish "
    "SkipSimplifiedLayerNormalization",
    6: "BiasGelu BiasSoftmax BiasSplitGelu MeanVarianceNormalization SwiGLU",
    7: "GroupNorm GroupNormalization InstanceNormalization LayerNormalization "
    "QOrderedLayerNormalization",
    8: "SkipGroupNorm SkipLayerNormalization",
    9: "FastGelu",
    10: "EmbedLayerNormalization QEmbedLayerNormalization",
}
_PER_INPUT: dict[int, str] = {
    1: "ArgMax ArgMin Col2Im GlobalAveragePool GlobalMaxPool MaxRoiPool NegativeLogLikelihoodLoss "
    "NonMaxSuppression QLinearGlobalAveragePool QLinearReduceMean ReduceMax ReduceMean ReduceMin "
    "ReduceProd ReduceSum ReduceSumInteger",
    2: "GlobalLpPool ReduceL1 ReduceL2 ReduceLogSum ReduceSumSquare",
    4: "ReduceLogSumExp",
    6: "DynamicQuantizeLinear SoftmaxCrossEntropyLoss",
}
_MOVES = (
    "Bernoulli BitCast Cast CastLike CenterCropPad Compress Concat ConcatFromSequence Constant "
    "ConstantOfShape DepthToSpace Dropout Expand EyeLike Flatten Gather GatherElements GatherND "
    "Hardmax Identity MaxUnpool MelWeightMatrix Multinomial NonZero OneHot Optional "
    "OptionalGetElement OptionalHasElement Pad QLinearConcat QLinearWhere RandomNormal "
    "RandomNormalLike RandomUniform RandomUniformLike Range ReorderInput ReorderOutput Reshape "
    "ReverseSequence Scatter ScatterElements ScatterND SequenceAt SequenceConstruct "
    "SequenceEmpty SequenceErase SequenceInsert SequenceLength Shape Size Slice SpaceToDepth "
    "Split SplitToSequence Squeeze StringConcat StringNormalizer StringSplit TensorScatter "
    "TfIdfVectorizer Tile Transpose Trilu Unique Unsqueeze Where"
)

FLOPS: dict[str, Count] = {
    **by_kind(per_output, _PER_OUTPUT),
    **by_kind(per_input, _PER_INPUT),
    **dict.fromkeys(_MOVES.split(), none),
    **dict.fromkeys(("Max", "Min", "Sum", "Mean"), variadic),
    **dict.fromkeys(("MatMul", "MatMulInteger", "Gemm", "QLinearMatMul", "QGemm"), _matmul()),
    **dict.fromkeys(("FusedMatMul", "TransposeMatMul"), _matmul()),
    **dict.fromkeys(("MatMulIntegerToFloat", "DynamicQuantizeMatMul"), _matmul()),
    **dict.fromkeys(("MatMulNBits", "MatMulBnb4", "MatMulNBitsQLoRA", "MatMulFpQ4"), _matmul()),
    **dict.fromkeys(("MatMulInteger16", "QOrderedMatMul", "GemmFloat8"), _matmul()),
    **dict.fromkeys(("MatMulBlockQuantizedFp4Weight", "MatMulBlockQuantizedFp8Weight"), _matmul()),
    **dict.fromkeys(("FusedGemm", "FusedMatMulActivation"), _fused(_matmul(), 3)),
    **dict.fromkeys(("Conv", "ConvInteger", "DeformConv", "CausalConvWithState"), _conv()),
    "QLinearConv": _conv(3),
    **dict.fromkeys(("FusedConv", "com.microsoft.nchwc.Conv"), _fused(_conv(), 3)),
    "ConvTranspose": _conv_transpose,
    **dict.fromkeys(("RNN", "GRU", "LSTM", "DynamicQuantizeLSTM"), _recurrent),
    **dict.fromkeys(("MaxPool", "AveragePool", "QLinearAveragePool", "NhwcMaxPool"), _pool(1)),
    "LpPool": _pool(2),
    **dict.fromkeys(("Resize", "Upsample"), _resize),
    "GridSample": _grid_sample,
    "RoiAlign": _roi_align,
    "LRN": _lrn,
    "TopK": _top_k,
    "Det": _det,
    "DFT": _fft(-2),
    "STFT": _fft(-2),
    "Einsum": einsum,
    "Attention": _attention,
    "com.microsoft.Attention": _packed_attention(past=4),
    "com.microsoft.QAttention": _packed_attention(past=8),
    "com.microsoft.MultiHeadAttention": _multi_head_attention,
    "com.microsoft.GroupQueryAttention": _group_query_attention,
}

# ---- bytes ------------------------------------------------------------------------------------


def _touched(op: Op) -> list[Tensor]:
    """The tensors an op reads or writes; one read twice counts once."""
    tensors = (*op.ins, *op.outs)
    return list({id(t): t for t in tensors if t is not None}.values())


def _sum_bytes(tensors: Sequence[Tensor | None]) -> int:
    total = 0
    for tensor in tensors:
        if tensor is not None:
            total += given(tensor.nbytes)
    return total


def _inputs_and_outputs(op: Op) -> int:
    return _sum_bytes(_touched(op))


def _gathered(op: Op) -> int:
    """As many bytes of the first input as are written, and the indices in full."""
    return formulas.gathered(_sum_bytes(op.outs), _sum_bytes(op.ins[1:]))


def _embedded(op: Op) -> int:
    """One row of each of up to three tables per token; then the norm's own inputs and outputs."""
    tables = sum(t is not None for t in op.ins[2:5])
    rest = [t for i, t in enumerate(op.ins) if i not in (2, 3, 4)]
    return tables * _sum_bytes(op.outs[:1]) + _sum_bytes([*rest, *op.outs])


BYTES: dict[str, Callable[[Op], int]] = {
    **dict.fromkeys((*METADATA, "Constant"), none),
    **dict.fromkeys(("Gather", "GatherElements", "GatherND", "Slice", "Compress"), _gathered),
    "GatherBlockQuantized": _gathered,
    **dict.fromkeys(("EmbedLayerNormalization", "QEmbedLayerNormalization"), _embedded),
}
