"""The ops of a step among the nested calls that PyTorch records, and their names.

PyTorch records every call that goes through its dispatcher, and the calls within that call.
``aten::conv2d`` calls ``aten::convolution``, that calls ``aten::_convolution``, and so on: each has
the time and the output of the same work. The ops of a step are the calls at which
the dispatcher hands over to a backend, as ``torch.export`` and ``make_fx`` capture them:

* Where gradients are recorded, autograd numbers the calls made above it, so the innermost numbered
  call is the one that is dispatched.
* Where they are not (backward, optimizer, inference), it is the outermost call whose kind is not
  one of :data:`COMPOSITE`, which PyTorch itself writes as calls of other ops.
* Frames (autograd's nodes, annotations, modules) are not ops, unless they launch kernels themselves
  or are calls of something else that record nothing inside (a compiled region).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadmaster.base.errors import InputError
from loadmaster.readers.pytorch.aten_costs import AtenTensor, bare

#: Kinds that PyTorch 2.13 registers as CompositeImplicitAutograd and that call other ops.
_COMPOSITE_NAMES = """
_autocast_to_full_precision _autocast_to_reduced_precision _batch_norm_impl_index
_batch_norm_impl_index_backward _convolution_mode _embedding_bag_sparse_backward _pad_circular
_pad_enum _scaled_dot_product_attention_math _sparse_mm _thnn_differentiable_gru_cell_backward
_thnn_differentiable_lstm_cell_backward _thnn_fused_lstm_cell_backward _weight_norm absolute
adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d adjoint
alpha_dropout arctan2 argsort argwhere atleast_1d atleast_2d atleast_3d avg_pool1d batch_norm
bilinear broadcast_tensors broadcast_to cartesian_prod cdist chunk clip clip_ column_stack concat
concatenate conj contiguous conv1d conv2d conv3d conv_transpose1d conv_transpose2d
conv_transpose3d cosine_embedding_loss cosine_similarity cross_entropy_loss ctc_loss
cudnn_is_acceptable diag diff divide divide_ dropout dropout_ dsplit dstack einsum
embedding_backward embedding_bag expand_as feature_dropout fft_fft fft_fft2 fft_fftn fft_ifft
fft_ifft2 fft_ifftn fft_irfft fft_irfft2 fft_irfftn fft_rfft fft_rfft2 fft_rfftn flatten fliplr
flipud float_power frobenius_norm ger greater greater_equal grid_sampler group_norm gru gru_cell
hinge_embedding_loss hsplit hstack imag infinitely_differentiable_gelu_backward inner
instance_norm is_nonzero isclose isfinite item kl_div kron l1_loss layer_norm less less_equal
linalg_matmul linalg_multi_dot linalg_norm linear log_sigmoid log_softmax lstm lstm_cell
margin_ranking_loss masked_select_backward matmul matrix_power max_pool1d max_pool1d_with_indices
max_pool2d max_pool3d meshgrid moveaxis movedim multiply multiply_ narrow nll_loss nll_loss2d
nll_loss_nd norm_except_dim not_equal nuclear_norm numpy_T one_hot outer pad pad_sequence
pairwise_distance poisson_nll_loss positive prelu ravel real relu6 relu6_ repeat_interleave
requires_grad_ reshape reshape_as resolve_conj resolve_neg result_type rms_norm rnn_relu
rnn_relu_cell rnn_tanh rnn_tanh_cell row_stack rrelu scaled_dot_product_attention selu selu_ size
slow_conv3d softmax square square_ std stft stride subtract subtract_ sum_to_size swapaxes
swapdims take_along_dim tensor_split tensordot thnn_conv2d tile to to_dense_backward trapezoid
triplet_margin_loss true_divide true_divide_ type_as unflatten unsafe_chunk
value_selecting_reduction_backward var view_as vsplit vstack
"""
COMPOSITE = frozenset(_COMPOSITE_NAMES.split())

#: Those of them that do no work where they call nothing.
_IDLE_NAMES = """
_autocast_to_full_precision _autocast_to_reduced_precision alpha_dropout contiguous
cudnn_is_acceptable dropout dropout_ expand_as feature_dropout is_nonzero item pad requires_grad_
reshape resolve_conj resolve_neg result_type size stride to type_as
"""
_IDLE = frozenset(_IDLE_NAMES.split())

# The roles of calls, as far as a call's name and source tell.
OP, WRAPPER, AUTOGRAD, ANNOTATION, MODULE, OTHER = range(6)

_AUTOGRAD = re.compile(r"autograd::engine::|torch::autograd::|[^:]*Backward\d*$")
_ANNOTATION = re.compile(r"ProfilerStep#\d+|Optimizer\.|enumerate\(DataLoader\)")
_DYNAMO = frozenset({"TorchDynamo Cache Lookup", "Pregraph bytecode"})
_STEP = re.compile(r"ProfilerStep#(\d+)")
_OPTIMIZER = "Optimizer.step#"
MODULE_PREFIX = "nn.Module: "


def role_of(name: str, *, annotation: bool = False) -> int:
    """The sort of a call: an op, one that PyTorch writes as calls of others, or a frame.

    >>> role_of("aten::mm") == OP, role_of("aten::linear") == WRAPPER
    (True, True)
    >>> role_of("MmBackward0") == AUTOGRAD, role_of("Torch-Compiled Region: 0/0") == OTHER
    (True, True)
    """
    if name.startswith(MODULE_PREFIX):
        return MODULE
    if annotation or name in _DYNAMO or _ANNOTATION.match(name):
        return ANNOTATION
    if _AUTOGRAD.match(name):
        return AUTOGRAD
    if "::" in name:
        return WRAPPER if bare(name) in COMPOSITE and name.startswith("aten::") else OP
    return OTHER


@dataclass(frozen=True, eq=False)
class ProcessCalls:
    """Calls of one process in order of start, a caller before what it calls.

    Attributes
    ----------
    names : list of str
    roles : uint8 [n_calls]
    parent : int32 [n_calls]
        The innermost call in which each was made, -1: none.
    start, end : float64 [n_calls]
        Times, or other numbers in the order of times.
    sequence : int64 [n_calls]
        Autograd's number, of forward calls and of the nodes they made; -1: none.
    launches : bool [n_calls]
        Whether kernels were launched by the call itself.
    """

    names: list[str]
    roles: NDArray[np.uint8]
    parent: NDArray[np.int32]
    start: NDArray[np.float64]
    end: NDArray[np.float64]
    sequence: NDArray[np.int64]
    launches: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def whole(self) -> NDArray[np.bool_]:
        """Calls that are ops together with all that they call."""
        n, parent = len(self), self.parent
        inside = parent >= 0
        is_op = (self.roles == OP) | (self.roles == WRAPPER)
        numbered = is_op & (self.sequence >= 0)
        calls, calls_op, calls_numbered = (np.zeros(n, dtype=bool) for _ in range(3))
        calls[parent[inside]] = True
        calls_op[parent[inside & is_op]] = True
        calls_numbered[parent[inside & numbered]] = True
        idle = np.fromiter((bare(name) in _IDLE for name in self.names), bool, n)
        wrapper = (self.roles == WRAPPER) & (calls_op | idle)
        above = numbered & calls_numbered
        alone = (self.roles == OTHER) & ~calls
        return np.asarray((is_op & ~wrapper & ~above) | alone, dtype=np.bool_)

    @cached_property
    def owner(self) -> NDArray[np.int32]:
        """The op that each call belongs to, int32 [n_calls]; -1: a frame.

        Kernels that a frame launches itself make an op of it, but not of what it calls.
        """
        return np.array(_inherited(self.whole.tolist(), self.parent.tolist()), dtype=np.int32)

    @cached_property
    def ops(self) -> NDArray[np.int32]:
        """The calls that are ops, in order of start."""
        own = self.launches & (self.owner < 0) & (self.roles != ANNOTATION)
        is_op = own | (self.owner == np.arange(len(self)))
        return np.flatnonzero(is_op).astype(np.int32)

    @cached_property
    def phases(self) -> list[str]:
        """Phase of each call: ``"b"`` in autograd's nodes, ``"o"`` in an optimizer's step."""
        phases: list[str] = []
        rows = zip(self.names, self.roles.tolist(), self.parent.tolist(), strict=True)
        for name, role, parent in rows:
            phase = phases[parent] if parent >= 0 else "f"
            if role == AUTOGRAD:
                phase = "b"
            elif role == ANNOTATION and name.startswith("Optimizer."):
                phase = "o"
            phases.append(phase)
        return phases

    @cached_property
    def nodes(self) -> NDArray[np.int64]:
        """The number of the autograd node in which each call was made, -1: none."""
        numbers: list[int] = []
        rows = zip(self.roles.tolist(), self.parent.tolist(), self.sequence.tolist(), strict=True)
        for role, parent, number in rows:
            inherited = numbers[parent] if parent >= 0 else -1
            numbers.append(number if role == AUTOGRAD and number >= 0 else inherited)
        return np.array(numbers, dtype=np.int64)

    @cached_property
    def modules(self) -> list[str]:
        """Path of the ``nn.Module`` frames around each call, as ``"ResNet_0.Conv2d_0"``.

        Calls of a backward node have that of the forward call with the same number.
        """
        paths: list[str] = []
        rows = zip(self.names, self.roles.tolist(), self.parent.tolist(), strict=True)
        for name, role, parent in rows:
            path = paths[parent] if parent >= 0 else ""
            if role == MODULE:
                path = ".".join(filter(None, (path, name.removeprefix(MODULE_PREFIX))))
            paths.append(path)
        if any(paths):
            forward = self.forward_of
            for call, number in enumerate(self.nodes.tolist()):
                if not paths[call] and number in forward:
                    paths[call] = paths[forward[number]]
        return paths

    @cached_property
    def forward_of(self) -> dict[int, int]:
        """The forward op that made the autograd node of each number.

        An op that makes none shows the number of the next node to be made: the last one counts.
        """
        ops = self.ops
        numbers, nodes = self.sequence[ops].tolist(), self.nodes[ops].tolist()
        rows = zip(ops.tolist(), numbers, nodes, strict=True)
        return {number: op for op, number, node in rows if number >= 0 and node < 0}

    def steps(self) -> list[TracedStep]:
        """The steps recorded, each with the ops that start in it; one of all, if none is marked.

        Marked by ``ProfilerStep#n``, or else by more than one step of the same optimizer, which
        then ends the step.

        Raises
        ------
        InputError
            Nothing was recorded that could be an op.
        """
        marks = [
            (int(match[1]), float(self.start[call]), float(self.end[call]))
            for call, name in enumerate(self.names)
            if (match := _STEP.match(name)) and self.roles[call] == ANNOTATION
        ]
        marks = marks or self._optimizer_steps()
        if not marks:
            return [TracedStep(None, self.ops)]
        started = self.start[self.ops]
        steps = []
        for number, begin, end in sorted(marks, key=lambda mark: mark[1]):
            within = self.ops[(started >= begin) & (started < end)]
            if len(within):
                steps.append(TracedStep(number, within))
        return steps

    def _optimizer_steps(self) -> list[tuple[int, float, float]]:
        ends: dict[str, list[float]] = {}
        for call, name in enumerate(self.names):
            if name.startswith(_OPTIMIZER) and self.roles[call] == ANNOTATION:
                ends.setdefault(name, []).append(float(self.end[call]))
        longest: list[float] = max(ends.values(), key=lambda times: len(times), default=[])
        if len(longest) < 2:
            return []
        return list(zip(range(len(longest)), [-np.inf, *longest], longest, strict=False))


@dataclass(frozen=True, eq=False)
class TracedStep:
    """One step: its number, where it has one, and its ops as calls in order of start."""

    number: int | None
    ops: NDArray[np.int32]


def _inherited(whole: list[bool], parent: list[int]) -> list[int]:
    owner: list[int] = []
    for call, (is_op, caller) in enumerate(zip(whole, parent, strict=True)):
        above = owner[caller] if caller >= 0 else -1
        owner.append(above if above >= 0 else call if is_op else -1)
    return owner


def chosen(
    calls: ProcessCalls, step: int | None, source: str, modules: Sequence[str] | None = None
) -> list[tuple[list[str], NDArray[np.int32]]]:
    """Names and ops of the steps asked for: one, or all, which must then have the same ops.

    The ops of each step are in the order of the first one's. ``modules`` are the paths of all
    calls, where they are known better than from the calls themselves.

    Raises
    ------
    InputError
        No ops at all, no such step, or steps that differ: the message says in what.
    """
    steps = calls.steps()
    if not steps or not len(steps[0].ops):
        raise InputError(
            f"{source} records no ops of PyTorch (no call such as aten::mm): record the step with "
            "ProfilerActivity.CPU among the activities"
        )
    numbers = [each.number for each in steps]
    if step is not None:
        if step not in numbers:
            known = ", ".join(str(n) for n in numbers if n is not None) or "not marked"
            raise InputError(f"{source} has no step {step}; its steps are {known}")
        steps = [steps[numbers.index(step)]]
    paths = calls.modules if modules is None else modules
    named = [_named(calls, paths, each.ops.tolist()) for each in steps]
    first = named[0]
    for other, which in zip(named[1:], steps[1:], strict=True):
        odd = sorted(first.keys() ^ other.keys())
        if odd:
            raise InputError(
                f"{source} has steps {', '.join(map(str, numbers))}, and they differ: step "
                f"{which.number} has {len(other)} ops and step {steps[0].number} has {len(first)}, "
                f"{odd[0]!r} in one of them only. Say which one: step={which.number} "
                f"(--step {which.number})"
            )
    return [(list(first), np.array([each[n] for n in first], dtype=np.int32)) for each in named]


def _named(calls: ProcessCalls, modules: Sequence[str], ops: Sequence[int]) -> dict[str, int]:
    """Ops by name: module and kind, with a count behind every one but the first."""
    seen: Counter[str] = Counter()
    named: dict[str, int] = {}
    for op in ops:
        base = name = "/".join(filter(None, (modules[op], calls.names[op])))
        while name in named or not seen[base]:
            seen[base] += 1
            name = base if seen[base] == 1 else f"{base}#{seen[base]}"
        named[name] = op
    return named


#: Element types as PyTorch's C++ spells them, by their spelling in graphs.
_DTYPES = {
    "float": "f32", "double": "f64", "c10::Half": "f16", "c10::BFloat16": "bf16",
    "long int": "i64", "long": "i64", "long long": "i64", "int": "i32", "short int": "i16",
    "short": "i16", "signed char": "i8", "unsigned char": "u8", "bool": "b8",
    "c10::complex<float>": "c64", "c10::complex<double>": "c128", "c10::complex<c10::Half>": "c32",
    "unsigned short": "u16", "unsigned int": "u32", "unsigned long": "u64",
    "c10::Float8_e4m3fn": "f8e4m3fn", "c10::Float8_e5m2": "f8e5m2",
    "c10::Float8_e4m3fnuz": "f8e4m3fnuz", "c10::Float8_e5m2fnuz": "f8e5m2fnuz",
    "c10::Float8_e8m0fnu": "f8e8m0",
}  # fmt: skip

#: Types of the tensors in a type such as ``GenericList[Tensor(float),Tensor(long int)]``.
TENSOR_TYPE = re.compile(r"Tensor\(([^()]*)")


def tensor_of(dims: Any, dtype: Any, strides: Any = None) -> AtenTensor | None:
    """A tensor from its recorded shape and type; None for an argument that is no tensor.

    >>> str(tensor_of([4, 3], "float")), tensor_of([], "Scalar")
    ('f32[4,3]', None)
    """
    kind = _DTYPES.get(dtype) if isinstance(dtype, str) else None
    if kind is None or not _is_shape(dims):
        return None
    known = _is_shape(strides) and len(strides) == len(dims)
    return AtenTensor(kind, tuple(dims), tuple(strides) if known else None)


def _is_shape(dims: Any) -> bool:
    if not isinstance(dims, list) or not set(map(type, dims)) <= {int}:
        return False
    return not dims or (min(dims) >= 0 and max(dims) < 2**48)
