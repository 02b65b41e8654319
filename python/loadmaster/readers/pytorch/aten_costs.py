"""FLOPs and bytes of one ATen op, and which ops are views: tables by kind, and nothing else.

Kinds are spelled as any part of PyTorch spells them: ``aten.add_.Tensor``, ``aten::add_``.

* FLOPs are those of products, convolutions, attention and recurrent layers, 2 per multiply-add,
  forward and backward: what ``torch.utils.flop_counter`` counts (but for the recurrent layers,
  which it leaves out, and for gradients of grouped convolutions, which it counts as if they were
  not grouped). Everything else is bound by the memory it moves and counts none.
* Attention counts every pair of query and key, masked or not. Recurrent layers count their
  products only: the gates are under 1 % beyond a few hundred hidden units.
* Bytes are the distinct inputs read once and the outputs written once, each at full size, an
  in-place op's target both read and written; the kinds in ``BYTES`` read only a part or nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from loadmaster.base.checks import product
from loadmaster.readers.shared import formulas
from loadmaster.readers.shared.einsum import einsum_flops
from loadmaster.readers.shared.formulas import Cost, multiply_adds

#: Bytes per element of a dtype as graphs spell it. Types under a byte are stored packed in bytes.
ITEM_BYTES: dict[str, int] = {dtype: -(-bits // 8) for dtype, bits in formulas.BITS.items()}


@dataclass(frozen=True, slots=True, eq=False)
class AtenTensor:
    """Element type (``"f32"``), shape, and strides in elements where the source tells them."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None = None

    @property
    def numel(self) -> int:
        """Number of elements."""
        return product(self.shape)

    @property
    def nbytes(self) -> int:
        """Size in bytes when contiguous; 0 for an element type that is not known."""
        return self.numel * ITEM_BYTES.get(self.dtype, 0)

    @property
    def shown_bytes(self) -> int:
        """Bytes of storage that the tensor shows: what a stride of 0 repeats counts once."""
        if self.strides is None or not self.numel:
            return self.nbytes
        shown = product([n for n, s in zip(self.shape, self.strides, strict=True) if s != 0])
        return self.nbytes // self.numel * shown

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


# An argument: a tensor, a list of them, or a plain value, None where it is absent or not known.
Arguments = Sequence[Any]


def cost(kind: str, inputs: Arguments, outputs: Arguments) -> Cost:
    """FLOPs and bytes of an op of ATen.

    ``inputs`` are the arguments in the order of the op's schema, trailing ones left out at will:
    tensors, lists of tensors, plain values. ``outputs`` are its results; None for one that it was
    not asked for. An argument given twice is recognised by being the same object. Of an unknown
    kind, and of one whose arguments are not what the kind takes, only the bytes are counted.

    >>> x = AtenTensor("f32", (8, 16))
    >>> cost("aten::mm", [x, AtenTensor("f32", (16, 4))], [AtenTensor("f32", (8, 4))])
    Cost(flops=1024, bytes=896, known=True)
    >>> cost("flash::attend", [x], [x])
    Cost(flops=0, bytes=1024, known=False)
    """
    if is_view(kind, inputs, outputs):
        return Cost(0, 0, True)
    name = bare(kind)
    moved = BYTES.get(name, _in_and_out)(list(_tensors(inputs)), list(_tensors(outputs)))
    count = FLOPS.get(name)
    if count is None:
        return Cost(0, moved, is_known(kind))
    try:
        return Cost(max(0, int(count(inputs, outputs))), moved, True)
    except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError):
        return Cost(0, moved, False)


def bare(kind: str) -> str:
    """The name of an op without ATen's namespace and overload; any other kind as it is.

    >>> bare("aten.add_.Tensor"), bare("aten::linear"), bare("prims.sum.default")
    ('add_', 'linear', 'prims.sum.default')
    """
    for prefix in ("aten.", "aten::"):
        if kind.startswith(prefix):
            return kind.removeprefix(prefix).partition(".")[0]
    return kind


def is_known(kind: str) -> bool:
    """True if the tables know what an op of this kind costs, or that it is a view."""
    name = bare(kind)
    exact = (FLOPS, BYTES, _VIEWS, _PERHAPS)
    return any(name in table for table in exact) or _family(name) in MOVES


def is_in_place(kind: str) -> bool:
    """True if the op writes into its first argument and returns that: ``aten::add_``."""
    name = bare(kind)
    return name != kind and name.endswith("_") and not name.endswith("__") and name not in _VIEWS


def written(kind: str, inputs: Arguments) -> tuple[int, ...]:
    """Positions of the arguments that an op changes.

    >>> x = AtenTensor("f32", (2,))
    >>> written("aten.add_.Tensor", [x, x]), written("aten.add.Tensor", [x, x])
    ((0,), ())
    """
    name = bare(kind)
    if name.startswith("_fused_") and is_in_place(
        kind
    ):  # an optimizer changes all its lists but the gradients
        return tuple(i for i, each in enumerate(inputs) if i != 1 and isinstance(each, list))
    if is_in_place(kind):
        return (0,) if inputs else ()
    if name in _NORMS_OF_BATCHES and len(inputs) > 5 and inputs[5] is True:
        return tuple(i for i in (3, 4) if isinstance(inputs[i], AtenTensor))
    return ()


# Kinds that update running mean and variance in training, which their schemas do not say.
_NORMS_OF_BATCHES = frozenset(
    ("batch_norm", "native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm",
     "_batch_norm_impl_index", "_native_batch_norm_legit")
)  # fmt: skip


def is_view(kind: str, inputs: Arguments = (), outputs: Arguments = ()) -> bool:
    """True if an op's results share the storage of its first argument, and nothing is moved.

    Some kinds (``reshape``, ``contiguous``, ``to``, ``dropout``) copy only where they must: told by
    shapes and strides; where the strides are not known they are taken for views. Views of several
    tensors at once (``meshgrid``) are none here: a view has one owner.

    >>> is_view("aten.t.default"), is_view("aten::clone")
    (True, False)
    >>> a, b = AtenTensor("f32", (2, 3), (1, 2)), AtenTensor("f32", (6,), (1,))
    >>> is_view("aten.reshape.default", [a, [6]], [b])
    False
    """
    name = bare(kind)
    if name in _PERHAPS:
        return _PERHAPS[name](inputs, outputs)
    joins = bool(inputs) and isinstance(inputs[0], (list, tuple)) and len(inputs[0]) > 1
    return name in _VIEWS and not joins


def _family(name: str) -> str:
    """The op that a list variant, an in-place variant or a gradient belongs to."""
    name = name.removeprefix("_foreach_")
    name = name if name.endswith("__") else name.removesuffix("_")
    for suffix in ("_backward_data", "_backward_input", "_backward"):
        name = name.removesuffix(suffix)
    return name


def _tensors(arguments: Arguments) -> Iterator[AtenTensor]:
    """The distinct tensors among arguments, those in lists too."""
    seen = set()
    for argument in arguments:
        for each in argument if isinstance(argument, (list, tuple)) else (argument,):
            if isinstance(each, AtenTensor) and id(each) not in seen:
                seen.add(id(each))
                yield each


# ---- views ------------------------------------------------------------------------------------

_VIEW_NAMES = """
_conj _nested_view_from_buffer _neg_view _reshape_alias _unsafe_view adjoint alias as_strided
as_strided_ atleast_1d atleast_2d atleast_3d broadcast_tensors broadcast_to chunk conj detach
detach_ diagonal dsplit expand expand_as getitem hsplit imag lift_fresh linalg_diagonal mH mT
matrix_H meshgrid moveaxis movedim narrow numpy_T permute positive real resolve_conj resolve_neg
select slice split split_with_sizes squeeze squeeze_ swapaxes swapaxes_ swapdims swapdims_ t t_
tensor_split transpose transpose_ unbind unflatten unfold unsafe_chunk unsafe_split
unsafe_split_with_sizes unsqueeze unsqueeze_ view view_as view_as_complex view_as_real vsplit
"""
_VIEWS = frozenset(_VIEW_NAMES.split())


def _first(arguments: Arguments) -> AtenTensor | None:
    return next(_tensors(arguments[:1]), None)


def _same_layout(inputs: Arguments, outputs: Arguments) -> bool:
    """True if there is nothing to convert or rearrange: the result is the argument itself."""
    source, result = _first(inputs), _first(outputs)
    if source is None or result is None:
        return True
    strides = {source.strides, result.strides} - {None}
    return source.dtype == result.dtype and len(strides) < 2


def _can_reshape(inputs: Arguments, outputs: Arguments) -> bool:
    """True if strides allow the new shape: each run of old dimensions must be contiguous in itself.

    As ATen's ``computeStride`` does, O(dimensions).
    """
    source, result = _first(inputs), _first(outputs)
    if source is None or result is None or source.strides is None or 0 in source.shape:
        return True
    wanted = [size for size in result.shape if size != 1]
    run, stride_after = 1, None
    old = [(n, s) for n, s in zip(source.shape, source.strides, strict=True) if n != 1]
    for size, stride in reversed(old):
        if stride_after is not None and stride != stride_after:
            # The run ends here: the new dimensions must end at the same place.
            if not _consume(wanted, run):
                return False
            run = 1
        run *= size
        stride_after = stride * size
    return _consume(wanted, run)


def _consume(sizes: list[int], run: int) -> bool:
    """Takes from the end of ``sizes`` those whose product is ``run``; False if none is."""
    product = 1
    while sizes and product < run:
        product *= sizes.pop()
    return product == run


def _off(position: int) -> Callable[[Arguments, Arguments], bool]:
    """Hands its argument on when the flag at ``position`` (``train``) is off."""
    return lambda inputs, outputs: len(inputs) > position and inputs[position] is False


_PERHAPS: dict[str, Callable[[Arguments, Arguments], bool]] = {
    **dict.fromkeys(("contiguous", "to", "type_as", "_autocast_to_full_precision"), _same_layout),
    **dict.fromkeys(("reshape", "reshape_as", "flatten", "ravel"), _can_reshape),
    **dict.fromkeys(("dropout", "feature_dropout", "alpha_dropout"), _off(2)),
}

# ---- FLOPs ------------------------------------------------------------------------------------

_Count = Callable[[Arguments, Arguments], int]


def _product(left: int) -> _Count:
    """2 per element of the result and of the inner dimension: the left factor's last one."""
    return lambda inputs, outputs: multiply_adds(outputs[0].numel, inputs[left].shape[-1])


def _sum_of_products(inputs: Arguments, outputs: Arguments) -> int:
    """``addbmm``: a batch of products added up."""
    return multiply_adds(inputs[1].numel, inputs[2].shape[-1])


def _linear_backward(inputs: Arguments, outputs: Arguments) -> int:
    """Gradients of input and weight, where asked for."""
    each = multiply_adds(inputs[1].numel, inputs[0].shape[-1])
    return sum(each for gradient in outputs[:2] if gradient is not None)


def _grouped_product(inputs: Arguments, outputs: Arguments) -> int:
    """Rows sorted by group, or groups of equal size: each row meets one matrix of its group."""
    return multiply_adds(inputs[0].numel, inputs[1].shape[-1])


def _grouped_gradients(inputs: Arguments, outputs: Arguments) -> int:
    """Its gradients: of the rows, and of the matrices."""
    return 2 * _grouped_product(inputs, outputs)


def _tensordot(inputs: Arguments, outputs: Arguments) -> int:
    """2 per element of the result and of the inner size: dimensions that only the factors have."""
    a, b, out = inputs[0].numel, inputs[1].numel, outputs[0].numel
    return multiply_adds(out, math.isqrt(a * b // max(out, 1)))


def _bilinear(inputs: Arguments, outputs: Arguments) -> int:
    """Every row of the result reads the whole weight."""
    rows = outputs[0].numel // max(outputs[0].shape[-1], 1)
    return multiply_adds(rows, inputs[2].numel)


def _trilinear(inputs: Arguments, outputs: Arguments) -> int:
    """``bilinear`` taken apart: 2 per point of the space that its three factors are spread over."""
    spread = []
    for factor, expanded in zip(inputs[:3], inputs[3:6], strict=True):
        shape = list(factor.shape)
        for dim in sorted(expanded):
            shape.insert(dim, 1)
        spread.append(shape)
    return multiply_adds(product([max(sizes) for sizes in zip(*spread, strict=True)]), 1)


def _einsum(inputs: Arguments, outputs: Arguments) -> int:
    return einsum_flops(inputs[0], [tensor.shape for tensor in inputs[1]])


def _filtered(places: int, weight: AtenTensor) -> int:
    """2 per place and weight of its filters; grouping is in the weight's own shape."""
    return multiply_adds(places, weight.numel) // max(weight.shape[0], 1)


def _conv(inputs: Arguments, outputs: Arguments) -> int:
    return _filtered(outputs[0].numel, inputs[1])


def _conv_transpose(inputs: Arguments, outputs: Arguments) -> int:
    return _filtered(inputs[0].numel, inputs[1])


def _convolution(inputs: Arguments, outputs: Arguments) -> int:
    transposed = len(inputs) > 6 and inputs[6] is True
    return (_conv_transpose if transposed else _conv)(inputs, outputs)


def _convolution_backward(inputs: Arguments, outputs: Arguments) -> int:
    """The forward FLOPs for the gradient of the input, and again for that of the weight."""
    gradient, data, weight = inputs[:3]
    transposed = len(inputs) > 7 and inputs[7] is True
    each = _filtered((data if transposed else gradient).numel, weight)
    return sum(each for gradient in outputs[:2] if gradient is not None)


def _attention(per_query: int, per_value: int, first: int = 0) -> _Count:
    """Products over pairs of query and key: a number of the query's width, another of the value's.

    Query, key and value stand from position ``first`` on: (..., heads, length, width).
    """

    def count(inputs: Arguments, outputs: Arguments) -> int:
        query, key, value = inputs[first : first + 3]
        pairs = query.numel // max(query.shape[-1], 1) * key.shape[-2]
        widths = per_query * query.shape[-1], per_value * value.shape[-1]
        return formulas.attention(pairs, *widths)

    return count


def _long_attention(per_query: int, per_value: int, first: int, longest: int) -> _Count:
    """The same for (batch, length, heads, width), or sequences end to end.

    Of those every query meets as many keys as the longest has, told at position ``longest``.
    """

    def count(inputs: Arguments, outputs: Arguments) -> int:
        query, key, value = inputs[first : first + 3]
        length = inputs[longest] if len(inputs) > longest else None
        keys = length if isinstance(length, int) else key.shape[-3]
        pairs = query.numel // max(query.shape[-1], 1) * keys
        widths = per_query * query.shape[-1], per_value * value.shape[-1]
        return formulas.attention(pairs, *widths)

    return count


def _recurrent(times: int, weights: slice) -> _Count:
    """Every step and sample meets every weight matrix, ``times`` over (2 for the gradients)."""

    def count(inputs: Arguments, outputs: Arguments) -> int:
        data = inputs[0]
        rows = data.numel // max(data.shape[-1], 1)
        matrices = [w for w in _tensors(inputs[weights]) if len(w.shape) == 2]
        if not matrices:
            raise ValueError
        return times * formulas.recurrent(rows, sum(w.numel for w in matrices))

    return count


_FORWARD, _BACKWARD = (1, 1), (3, 2)  # products of the query's width, and of the value's

FLOPS: dict[str, _Count] = {
    **dict.fromkeys(
        ("mm", "bmm", "matmul", "linear", "mv", "dot", "vdot", "inner", "_int_mm", "_scaled_mm",
         "_weight_int4pack_mm", "_weight_int8pack_mm", "mkldnn_linear", "_mkl_linear",
         *(f"bitsandbytes.{name}.default" for name in
           ("gemm_4bit", "gemv_4bit", "int8_linear_matmul", "int8_scaled_mm"))),
        _product(0),
    ),
    **dict.fromkeys(("addmm", "addmm_", "baddbmm", "baddbmm_", "addmv", "addmv_",
                     "_addmm_activation"), _product(1)),
    **dict.fromkeys(("addbmm", "addbmm_"), _sum_of_products),
    **dict.fromkeys(("linear_backward", "mkldnn_linear_backward"), _linear_backward),
    **dict.fromkeys(
        ("_grouped_mm", "_scaled_grouped_mm", "transformers.grouped_mm_fallback.default"),
        _grouped_product,
    ),
    "transformers.grouped_mm_fallback_backward.default": _grouped_gradients,
    **dict.fromkeys(("cdist", "_cdist_forward", "_euclidean_dist"), _product(0)),
    "tensordot": _tensordot,
    "bilinear": _bilinear,
    "_trilinear": _trilinear,
    "einsum": _einsum,
    **dict.fromkeys(
        ("conv1d", "conv2d", "conv3d", "cudnn_convolution", "cudnn_convolution_relu",
         "cudnn_convolution_add_relu", "mkldnn_convolution", "miopen_convolution",
         "miopen_depthwise_convolution", "thnn_conv2d", "_slow_conv2d_forward", "_conv_depthwise2d",
         "conv_depthwise3d", "slow_conv3d", "slow_conv3d_forward", "slow_conv_dilated2d",
         "slow_conv_dilated3d"),
        _conv,
    ),
    **dict.fromkeys(
        ("conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "cudnn_convolution_transpose",
         "miopen_convolution_transpose", "slow_conv_transpose2d", "slow_conv_transpose3d"),
        _conv_transpose,
    ),
    **dict.fromkeys(("convolution", "_convolution", "convolution_overrideable"), _convolution),
    **dict.fromkeys(("convolution_backward", "convolution_backward_overrideable"),
                    _convolution_backward),
    **dict.fromkeys(
        ("scaled_dot_product_attention", "_scaled_dot_product_attention_math",
         "_scaled_dot_product_attention_math_for_mps", "_scaled_dot_product_flash_attention",
         "_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_efficient_attention",
         "_scaled_dot_product_cudnn_attention", "_scaled_dot_product_fused_attention_overrideable",
         "higher_order.flex_attention"),
        _attention(*_FORWARD),
    ),
    **dict.fromkeys(
        ("_scaled_dot_product_flash_attention_backward",
         "_scaled_dot_product_flash_attention_for_cpu_backward",
         "_scaled_dot_product_efficient_attention_backward",
         "_scaled_dot_product_cudnn_attention_backward",
         "_scaled_dot_product_fused_attention_overrideable_backward"),
        _attention(*_BACKWARD, first=1),
    ),
    "higher_order.flex_attention_backward": _attention(*_BACKWARD),
    "_flash_attention_forward": _long_attention(*_FORWARD, first=0, longest=6),
    "_flash_attention_backward": _long_attention(*_BACKWARD, first=1, longest=9),
    "_efficient_attention_forward": _long_attention(*_FORWARD, first=0, longest=7),
    "_efficient_attention_backward": _long_attention(*_BACKWARD, first=1, longest=9),
    **dict.fromkeys(("lstm", "gru", "rnn_tanh", "rnn_relu"), _recurrent(1, slice(1, 4))),
    **dict.fromkeys(("lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell"),
                    _recurrent(1, slice(2, 4))),
    "mkldnn_rnn_layer": _recurrent(1, slice(1, 3)),
    "mkldnn_rnn_layer_backward": _recurrent(2, slice(1, 3)),
    **dict.fromkeys(("_cudnn_rnn", "miopen_rnn"), _recurrent(1, slice(1, 2))),
    **dict.fromkeys(("_cudnn_rnn_backward", "miopen_rnn_backward"), _recurrent(2, slice(1, 2))),
}  # fmt: skip

# Bound by memory, with their in-place variants, lists and gradients (see `_family`).
_MOVE_NAMES = """
__and__ __lshift__ __or__ __rshift__ __xor__
_adaptive_avg_pool2d _adaptive_avg_pool3d _add_relu _aminmax
_amp_foreach_non_finite_check_and_unscale _amp_update_scale _batch_norm_impl_index
_batch_norm_no_update _batch_norm_with_update _batch_norm_with_update_functional _cast_Float
_cast_Half _chunk_cat _conj_physical _copy_from _ctc_loss _cummax_helper _cummin_helper
_dirichlet_grad _fft_c2c _fft_c2r _fft_r2c _fused_adagrad _fused_adam _fused_adamw _fused_dropout
_fused_rms_norm _fused_sgd _index_put_impl _lazy_clone _log_softmax _logcumsumexp _masked_scale
_masked_softmax _native_batch_norm_legit _native_batch_norm_legit_functional
_native_batch_norm_legit_no_training _pack_padded_sequence _pad_circular _pad_enum
_pad_packed_sequence _pin_memory _prelu_kernel _safe_softmax _softmax _stack
_thnn_differentiable_gru_cell _thnn_differentiable_lstm_cell _thnn_fused_gru_cell
_thnn_fused_lstm_cell _thnn_fused_lstm_cell_backward_impl _to_copy _to_dense _to_cpu
_transform_bias_rescale_qkv _unique2 _unsafe_index _unsafe_index_put _unsafe_masked_index
_unsafe_masked_index_put_accumulate _upsample_bicubic2d_aa _upsample_bilinear2d_aa
_upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d _weight_norm
_weight_norm_interface abs absolute acos acosh adaptive_avg_pool1d adaptive_avg_pool2d
adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d add addcdiv
addcmul addr affine_grid_generator all allclose alpha_dropout amax amin aminmax angle any arange
arccos arccosh arcsin arcsinh arctan arctan2 arctanh argmax argmin argsort argwhere
as_strided_scatter asin asinh atan atan2 atanh avg_pool1d avg_pool2d avg_pool3d batch_norm
batch_norm_backward_elemt batch_norm_backward_reduce batch_norm_elemt
batch_norm_gather_stats_with_counts batch_norm_stats bernoulli binary_cross_entropy
binary_cross_entropy_with_logits bincount bitwise_and bitwise_left_shift bitwise_not bitwise_or
bitwise_right_shift bitwise_xor block_diag bucketize cat cauchy ceil celu channel_shuffle clamp
clamp_max clamp_min clip clone col2im column_stack complex concat concatenate conj_physical
constant_pad_nd contiguous copy copysign cos cosh cosine_embedding_loss cosine_similarity
count_nonzero cross cross_entropy_loss cuda cpu cudnn_batch_norm cummax cummin cumprod cumsum
deg2rad dequantize diag diag_embed diagflat diagonal_scatter diff digamma dist div divide dropout
dstack elu embedding embedding_bag _embedding_bag _embedding_bag_forward_only _embedding_bag_dense
embedding_dense embedding_renorm eq equal erf erfc erfinv exp exp2 expm1 exponential eye
feature_alpha_dropout feature_dropout fft_fft fft_fft2 fft_fftn fft_fftshift fft_hfft fft_ifft
fft_ifft2 fft_ifftn fft_ifftshift fft_ihfft fft_irfft fft_irfft2 fft_irfftn fft_rfft fft_rfft2
fft_rfftn fill fill_diagonal fix flatten flip fliplr flipud float_power floor floor_divide fmax
fmin fmod frac frexp full full_like gather ge gelu geometric glu glu_backward_jvp greater
greater_equal grid_sampler grid_sampler_2d grid_sampler_3d group_norm gt hardshrink hardsigmoid
hardswish hardtanh heaviside histc hstack huber_loss hypot im2col index index_add index_copy
index_fill index_put index_reduce index_select instance_norm isclose isfinite isin isinf isnan
isneginf isposinf kl_div kthvalue l1_loss layer_norm ldexp le leaky_relu lerp less less_equal
lgamma lift linalg_cross linalg_matrix_norm linalg_norm linalg_vector_norm linspace log log10
log1p log2 log_normal log_sigmoid log_sigmoid_forward log_softmax logaddexp logaddexp2
logcumsumexp logical_and logical_not logical_or logical_xor logit logspace logsumexp lt
margin_ranking_loss masked_fill masked_scatter masked_select max max_pool1d
max_pool1d_with_indices max_pool2d max_pool2d_with_indices max_pool3d max_pool3d_with_indices
max_unpool2d max_unpool3d maximum mean median min minimum miopen_batch_norm mish mkldnn_max_pool2d
mode msort mse_loss mul multi_margin_loss multinomial multiply mvlgamma nan_to_num nanmean
nanmedian nansum native_batch_norm native_channel_shuffle native_dropout native_group_norm
native_layer_norm ne neg negative nextafter nll_loss nll_loss2d nll_loss2d_forward
nll_loss_forward nll_loss_nd nonzero nonzero_static norm norm_except_dim normal normal_functional
not_equal one_hot ones ones_like outer ger pad pad_sequence pairwise_distance pin_memory
pixel_shuffle pixel_unshuffle poisson polar pow prelu prod quantile rad2deg rand rand_like randint
randint_like randn randn_like random randperm range reciprocal reflection_pad1d reflection_pad2d
reflection_pad3d relu relu6 remainder renorm repeat repeat_interleave replication_pad1d
replication_pad2d replication_pad3d resize_as rms_norm roll rot90 round rrelu rrelu_with_noise
rrelu_with_noise_functional rsqrt rsub scalar_tensor scatter scatter_add scatter_reduce
searchsorted segment_reduce select_scatter selu sgn sigmoid sign signbit silu sin sinc sinh
slice_scatter smooth_l1_loss soft_margin_loss softmax softplus softshrink sort special_entr
special_erfcx special_exp2 special_expit special_expm1 special_log1p special_log_ndtr
special_log_softmax special_logit special_ndtr special_softmax special_xlog1py special_zeta sqrt
square stack std std_mean sub subtract sum sum_to_size take take_along_dim tan tanh threshold tile
to topk trace tril tril_indices triplet_margin_loss triu triu_indices true_divide trunc type_as
uniform unique_consecutive upsample_bicubic2d upsample_bilinear2d upsample_linear1d
upsample_nearest1d upsample_nearest2d upsample_nearest3d
upsample_trilinear3d var var_mean vstack where xlogy zero zeros zeros_like
"""
MOVES = (
    frozenset(_MOVE_NAMES.split())
    | {f"{name}_copy" for name in _VIEWS}
    | {"diagonal", "select", "slice", "unfold"}  # their gradients
    | {
        f"bitsandbytes.{name}.default"
        for name in (
            "dequantize_4bit",
            "dequantize_blockwise",
            "int8_mm_dequant",
            "int8_vectorwise_dequant",
            "int8_vectorwise_quant",
            "quantize_4bit",
            "quantize_blockwise",
        )
    }
)

# ---- bytes ------------------------------------------------------------------------------------

_Moved = Callable[[list[AtenTensor], list[AtenTensor]], int]


def _size(tensors: Sequence[AtenTensor]) -> int:
    return sum(tensor.shown_bytes for tensor in tensors)


def _in_and_out(inputs: list[AtenTensor], outputs: list[AtenTensor]) -> int:
    return _size(inputs) + _size(outputs)


def _nothing(inputs: list[AtenTensor], outputs: list[AtenTensor]) -> int:
    return 0


def _overwritten(inputs: list[AtenTensor], outputs: list[AtenTensor]) -> int:
    """The first argument is only a target, or only its shape is read."""
    return _size(outputs) + _size(inputs[1:])


def _written(inputs: list[AtenTensor], outputs: list[AtenTensor]) -> int:
    return _size(outputs)


def _gathered(inputs: list[AtenTensor], outputs: list[AtenTensor]) -> int:
    """As many bytes of the first input as are written, and the indices in full."""
    return formulas.gathered(_size(outputs), _size(inputs[1:]))


def _bagged(inputs: list[AtenTensor], outputs: list[AtenTensor]) -> int:
    """A row of the table per index; the rest as it is."""
    table, indices = inputs[:2] if len(inputs) > 1 else (inputs[0], inputs[0])
    row = table.nbytes // max(table.shape[0], 1) if table.shape else 0
    return indices.numel * row + _size(inputs[1:]) + _size(outputs)


def _scattered(inputs: list[AtenTensor], outputs: list[AtenTensor]) -> int:
    """In place: the values are read and as many bytes of the target are written."""
    return _size(inputs[1:]) + _size(inputs[-1:])


def _accumulated(inputs: list[AtenTensor], outputs: list[AtenTensor]) -> int:
    """In place: as many bytes of the target as of the values are read and written."""
    return _size(inputs[1:]) + 2 * _size(inputs[-1:])


def _grouped(inputs: list[AtenTensor], outputs: list[AtenTensor]) -> int:
    """All rows, and the matrices of as many groups as there are rows, at most."""
    rows, matrices, *rest = inputs
    groups = matrices.shape[0] if len(matrices.shape) == 3 else 0
    reached = min(groups, rows.shape[0]) if len(rows.shape) == 2 else groups
    read = _size([matrices]) * reached // groups if groups else _size([matrices])
    return _size([rows, *rest]) + read + _size(outputs)


_BYTES: dict[_Moved, str] = {
    _grouped: "_grouped_mm _scaled_grouped_mm transformers.grouped_mm_fallback.default",
    _nothing: "_assert_async _assert_scalar _assert_tensor_metadata _efficientzerotensor "
    "_local_scalar_dense _nested_tensor_size _resize_output_ _shape_as_tensor _version "
    "cudnn_is_acceptable dim empty empty_like empty_permuted empty_strided is_nonzero item "
    "new_empty new_empty_strided numel output_nr record_stream requires_grad_ resize_ set_ "
    "size stride sym_constrain_range sym_constrain_range_for_size sym_numel sym_size "
    "sym_storage_offset sym_stride",
    _overwritten: "bernoulli_ cauchy_ copy_ exponential_ fill_ geometric_ log_normal_ normal_ "
    "random_ uniform_ zero_ _foreach_copy_ _foreach_zero_",
    _written: "full_like new_full new_ones new_zeros ones_like rand_like randint_like randn_like "
    "zeros_like",
    _gathered: "embedding gather index index_select select_copy slice_copy take",
    _bagged: "embedding_bag _embedding_bag _embedding_bag_forward_only",
    _scattered: "index_copy_ index_fill_ index_put_ masked_scatter_ scatter_",
    _accumulated: "index_add_ scatter_add_ scatter_reduce_ index_reduce_",
}
BYTES = {name: moved for moved, names in _BYTES.items() for name in names.split()}
