"""FLOPs and bytes of one TensorFlow op by its kind, and what kinds of ops there are.

The conventions are those of :mod:`loadmaster.readers.shared.formulas` and of the table for ONNX:
other ops count the arithmetic of their formula, bytes are distinct inputs read once and outputs
written once. Filters are spatial, in, out (``HWIO``), as TensorFlow has them whatever
``data_format`` says.
"""

from __future__ import annotations

import re

from loadmaster.base.checks import product
from loadmaster.readers.shared import formulas
from loadmaster.readers.shared.formulas import Cost, by_kind, multiply_adds
from loadmaster.readers.shared.ops import (
    Count,
    Op,
    Tensor,
    dims,
    einsum,
    none,
    numel,
    or_zero,
    per_input,
    per_output,
    variadic,
)

#: Spelling of element types, by number in ``types.proto``; a reference to one counts 100 more.
#: Resources and variants have no size, strings none that is fixed.
ELEMENT_TYPES: dict[int, str] = {
    1: "f32", 2: "f64", 3: "i32", 4: "u8", 5: "i16", 6: "i8", 7: "str", 8: "c64", 9: "i64",
    10: "b8", 11: "i8", 12: "u8", 13: "i32", 14: "bf16", 15: "i16", 16: "u16", 17: "u16",
    18: "c128", 19: "f16", 20: "resource", 21: "variant", 22: "u32", 23: "u64", 24: "f8e5m2",
    25: "f8e4m3fn", 29: "i4", 30: "u4",
}  # fmt: skip
HANDLES = frozenset(("resource", "variant"))

INPUTS = frozenset(("Placeholder", "PlaceholderV2", "PlaceholderWithDefault", "_Arg"))
VARIABLES = frozenset(("Variable", "VariableV2", "VarHandleOp"))

#: Beginning of names of ops that oneDNN runs.
_ONEDNN = re.compile("_Mkl(Native|Eager)?(?=[A-Z])")

#: Kinds that hand on their first input's storage, perhaps under another shape.
VIEWS = frozenset(
    (
        *("Identity", "IdentityN", "Snapshot", "StopGradient", "PreventGradient", "CheckNumerics"),
        *("Reshape", "ExpandDims", "Squeeze", "Bitcast", "ReadVariableOp", "RefIdentity"),
        *("Enter", "RefEnter", "Exit", "RefExit", "NextIteration", "RefNextIteration"),
        *("Switch", "RefSwitch", "Merge", "RefMerge", "PlaceholderWithDefault", "EnsureShape"),
    )
)
#: Kinds that read only the shape of their input: where one did not run, nothing read its data.
OF_SHAPES = frozenset(
    (
        *("Shape", "ShapeN", "Size", "Rank", "ConcatOffset", "BroadcastGradientArgs"),
        *("BroadcastArgs", "InvertPermutation", "VariableShape", "Range"),
    )
)
#: Kinds that update the variables of an optimizer, and no others.
OPTIMIZERS = ("Apply", "ResourceApply", "SparseApply", "ResourceSparseApply")
_UPDATES = ("Assign", "Scatter", "ResourceScatter", "ResourceStridedSliceAssign")
#: Kinds that are named like updates, but change no variable.
_NO_UPDATES = frozenset(("ScatterNd", "ScatterNdNonAliasingAdd"))
NEXT_ITERATIONS = frozenset(("NextIteration", "RefNextIteration"))
MERGES = frozenset(("Merge", "RefMerge"))
SWITCHES = frozenset(("Switch", "RefSwitch"))
ENTERS = frozenset(("Enter", "RefEnter"))
EXITS = frozenset(("Exit", "RefExit"))


def is_optimizer(kind: str) -> bool:
    """True if ops of a kind apply gradients.

    >>> is_optimizer("ResourceApplyMomentum"), is_optimizer("AssignSub")
    (True, False)
    """
    return kind.startswith(OPTIMIZERS)


def is_update(kind: str) -> bool:
    """True if ops of a kind change their first input, a variable, in place."""
    return kind.startswith((*OPTIMIZERS, *_UPDATES)) and kind not in _NO_UPDATES


def plain_kind(kind: str) -> str:
    """The kind of an op before oneDNN took it over, as it does on some CPUs.

    >>> [plain_kind(kind) for kind in ("_MklMatMul", "_MklNativeFusedConv2D", "_MklToTf", "Relu")]
    ['MatMul', '_FusedConv2D', '_MklToTf', 'Relu']
    """
    if _ONEDNN.match(kind):
        rest = _ONEDNN.sub("", kind)
        return next((name for name in (f"_{rest}", rest) if is_known(name)), kind)
    return kind


def is_known(kind: str) -> bool:
    """True if the table knows how many FLOPs an op of this kind takes."""
    return kind in FLOPS


def cost(op: Op) -> Cost:
    """FLOPs and bytes of an op. What cannot be known counts as 0, and the cost is not known.

    >>> x = Tensor("f32", (8, 16))
    >>> cost(Op("MatMul", [x, Tensor("f32", (16, 4))], [Tensor("f32", (8, 4))]))
    Cost(flops=1024, bytes=896, known=True)
    """
    flops, flops_known = or_zero(FLOPS.get(op.kind, none), op)
    moved, bytes_known = _bytes(op)
    return Cost(flops, moved, flops_known and bytes_known)


def _bytes(op: Op) -> tuple[int, bool]:
    """Bytes that an op reads and writes, and whether all sizes were known."""
    if op.kind in VIEWS or op.kind in INPUTS or op.kind in _MOVES_NOTHING:
        return 0, True
    tensors = [t for t in (*op.ins, *op.outs) if t is not None and t.dtype not in HANDLES]
    if op.kind.startswith("FusedBatchNorm"):  # cuDNN's reserved output has no shape of its own
        tensors = [t for t in tensors if t.shape is not None]
    known = all(t.nbytes is not None for t in tensors)
    if op.kind in _PARTLY_READ:
        outs = sum(t.nbytes or 0 for t in op.outs if t is not None)
        rest = sum(t.nbytes or 0 for t in op.ins[1:] if t is not None)
        return formulas.gathered(outs, rest), known
    distinct = {id(t): t for t in tensors}.values()
    return sum(t.nbytes or 0 for t in distinct), known


def _matmul(op: Op) -> int:
    """2 per output element and inner dimension: the left factor's elements by its rows."""
    out = dims(op.outs[0])
    if not out or not product(out):
        return 0
    left = numel(op.ins[0])
    rows = out[-2] * product(dims(op.ins[0])[:-2]) if len(out) > 1 else 1
    return multiply_adds(product(out), left // max(rows, 1))


def _filter(op: Op, tensor: Tensor | None, at: int) -> int:
    """2 per element of the convolution's output and weight of one filter of the tensor.

    ``at`` is the input that the convolution put out, or its gradient; -1: this op's output.
    """
    result = op.outs[0] if at < 0 else op.ins[at]
    return multiply_adds(numel(result), product(dims(tensor)[:-1]))


def _depthwise(op: Op, tensor: Tensor | None, at: int) -> int:
    """The same where each channel has filters of its own."""
    result = op.outs[0] if at < 0 else op.ins[at]
    return multiply_adds(numel(result), product(dims(tensor)[:-2]))


def _window(op: Op) -> int:
    return product([*map(int, op.attrs["ksize"])])


def _pool(op: Op) -> int:
    return formulas.pool(numel(op.outs[0]), _window(op))


def _pool_gradient(gradient: int) -> Count:
    """One per window element and gradient, which is the input given."""
    return lambda op: formulas.pool(numel(op.ins[gradient]), _window(op))


def _fused(product: Count) -> Count:
    """A product, then a bias; activations are what ``fused_ops`` add, one FLOP each."""

    def count(op: Op) -> int:
        return product(op) + max(len(op.attrs.get("fused_ops", ())), 1) * numel(op.outs[0])

    return count


def _conv(op: Op) -> int:
    return _filter(op, op.ins[1], -1)


def _all_inputs(flops: int) -> Count:
    """FLOPs per element of the variable that an optimizer updates: its gradient's size."""
    return lambda op: (
        flops * max((numel(t) for t in op.ins if t is not None and t.shape), default=1)
    )


_PER_OUTPUT: dict[int, str] = {
    1: "Abs Acos Acosh Add AddV2 Angle Asin Asinh Atan Atan2 Atanh BiasAdd BitwiseAnd BitwiseOr "
    "BitwiseXor Ceil ClipByValue Conj Cos Cosh Cumprod Cumsum Digamma Div DivNoNan Equal Erf Erfc "
    "Exp Expm1 Floor FloorDiv FloorMod Greater GreaterEqual Imag Inv Invert IsFinite IsInf IsNan "
    "LeftShift Less LessEqual Lgamma Log Log1p LogicalAnd LogicalNot LogicalOr Maximum "
    "Minimum Mod Mul MulNoNan Neg NotEqual OnesLike Pow Real RealDiv Reciprocal Relu Relu6 "
    "Relu6Grad ReluGrad RightShift Rint Round Rsqrt Select SelectV2 Sign Sin Sinh Sqrt Square Sub "
    "Tan Tanh TruncateDiv TruncateMod Xdivy Xlogy",
    2: "LeakyRelu LeakyReluGrad SquaredDifference InvGrad",
    3: "Elu EluGrad RsqrtGrad SigmoidGrad Softplus SoftplusGrad Softsign SoftsignGrad SqrtGrad "
    "TanhGrad",
    4: "Selu SeluGrad Sigmoid",
    5: "LogSoftmax Softmax",
}
_PER_INPUT: dict[int, str] = {
    1: "All Any ArgMax ArgMin BiasAddGrad Max Mean Min Prod SegmentSum Sum UnsortedSegmentSum "
    "UnsortedSegmentMax UnsortedSegmentMin UnsortedSegmentProd SparseSegmentSum",
    2: "EuclideanNorm L2Loss",
    4: "FusedBatchNorm FusedBatchNormV2 FusedBatchNormV3",
    6: "SoftmaxCrossEntropyWithLogits SparseSoftmaxCrossEntropyWithLogits",
    7: "FusedBatchNormGrad FusedBatchNormGradV2 FusedBatchNormGradV3",
}
_PER_GRADIENT: dict[int, str] = {
    1: "Assign AssignAdd AssignSub AssignAddVariableOp AssignSubVariableOp ScatterAdd ScatterSub "
    "ScatterUpdate ResourceScatterAdd ResourceScatterSub",
    2: "ApplyGradientDescent ResourceApplyGradientDescent",
    4: "ApplyMomentum ResourceApplyMomentum ResourceApplyKerasMomentum",
    5: "ApplyAdagrad ResourceApplyAdagrad ApplyAdagradV2 ResourceApplyAdagradV2",
    8: "ApplyRMSProp ResourceApplyRMSProp ApplyAdadelta ResourceApplyAdadelta",
    10: "ApplyAdam ResourceApplyAdam ApplyFtrl ResourceApplyFtrl",
}
_MOVES_NOTHING = frozenset(
    (
        *("Shape", "ShapeN", "Size", "Rank", "NoOp", "ControlTrigger", "Const", "LoopCond"),
        *("VarIsInitializedOp", "StackV2", "TensorArrayV3", "TensorArrayGradV3", "_SOURCE"),
        *("StackPushV2", "StackPopV2", "TensorArrayReadV3", "TensorArraySizeV3", "Placeholder"),
    )
)
_MOVES = (
    "AssignVariableOp BatchToSpaceND BroadcastArgs BroadcastGradientArgs BroadcastTo Cast Concat "
    "ConcatOffset ConcatV2 DepthToSpace DynamicPartition DynamicStitch Empty Fill Gather GatherNd "
    "GatherV2 InvertPermutation LinSpace ListDiff MatrixDiag MirrorPad OneHot Pack "
    "ParallelConcat ParallelDynamicStitch Pad PadV2 RandomShuffle RandomStandardNormal "
    "RandomUniform RandomUniformInt Range Reverse ReverseSequence ReverseV2 ScatterNd Slice "
    "SpaceToBatchND SpaceToDepth Split SplitV StridedSlice StridedSliceGrad TensorArrayConcatV3 "
    "TensorArrayGatherV3 TensorArrayScatterV3 TensorArraySplitV3 TensorArrayWriteV3 "
    "TensorScatterUpdate Tile Transpose TruncatedNormal Unique UniqueV2 Unpack VariableShape Where "
    "ZerosLike _Recv _Send"
)
_PARTLY_READ = frozenset(("Gather", "GatherNd", "GatherV2", "Slice", "StridedSlice"))

FLOPS: dict[str, Count] = {
    **by_kind(per_output, _PER_OUTPUT),
    **by_kind(per_input, _PER_INPUT),
    **by_kind(_all_inputs, _PER_GRADIENT),
    **dict.fromkeys((*_MOVES.split(), *_MOVES_NOTHING, *VIEWS, *INPUTS, *VARIABLES), none),
    **dict.fromkeys(("AddN", "AccumulateNV2"), variadic),
    **dict.fromkeys(("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"), _matmul),
    **dict.fromkeys(("Conv2D", "Conv3D", "Conv"), _conv),
    **dict.fromkeys(
        ("Conv2DBackpropInput", "Conv3DBackpropInputV2"), lambda op: _filter(op, op.ins[1], 2)
    ),
    **dict.fromkeys(
        ("Conv2DBackpropFilter", "Conv3DBackpropFilterV2"), lambda op: _filter(op, op.outs[0], 2)
    ),
    "Einsum": einsum,
    "DepthwiseConv2dNative": lambda op: _depthwise(op, op.ins[1], -1),
    "DepthwiseConv2dNativeBackpropInput": lambda op: _depthwise(op, op.ins[1], 2),
    "DepthwiseConv2dNativeBackpropFilter": lambda op: _depthwise(op, op.outs[0], 2),
    **dict.fromkeys(("_FusedMatMul", "_FusedBatchMatMulV2"), _fused(_matmul)),
    "_FusedConv2D": _fused(_conv),
    "_FusedDepthwiseConv2dNative": _fused(lambda op: _depthwise(op, op.ins[1], -1)),
    "_FusedBatchNormEx": lambda op: 5 * numel(op.ins[0]),
    **dict.fromkeys(("MaxPool", "AvgPool", "MaxPool3D", "AvgPool3D"), _pool),
    **dict.fromkeys(("AvgPoolGrad", "AvgPool3DGrad"), _pool_gradient(1)),
    **dict.fromkeys(("MaxPoolGrad", "MaxPool3DGrad"), _pool_gradient(2)),
}
