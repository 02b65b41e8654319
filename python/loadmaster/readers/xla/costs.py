"""FLOPs and bytes of one op of a jaxpr, of StableHLO or of HLO: tables by kind, and nothing else.

Kinds are looked up without dialect and punctuation, so that ``reduce_sum``, ``stablehlo.power`` and
``shift-left`` need one table. The conventions are those of the ONNX reader, so that graphs compare:

* A multiply-add is 2 FLOPs; of a convolution only the taps that meet data count, as XLA counts.
* Every other op counts the arithmetic of its defining formula. An elementary function (exp, log,
  sqrt, tanh, erf, sine, a division, a comparison) is ONE FLOP per element, where XLA's own cost
  analysis files transcendental functions apart. Choosing, converting and moving are none.
* A reduction counts one per element that goes in, and op of its body.
* Bytes are the distinct inputs read once and the outputs written once, except for the kinds in
  ``_BYTES``, which touch only a part.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from loadmaster.base.checks import product
from loadmaster.readers.shared import formulas
from loadmaster.readers.shared.formulas import Cost, by_kind, multiply_adds
from loadmaster.readers.xla.program import Computation, Constant, Type


@dataclass(frozen=True, slots=True)
class XlaOp:
    """One op as the cost functions see it.

    ``read`` is the bytes of those distinct inputs that lie in memory; None: all inputs do.
    """

    kind: str
    ins: Sequence[Type]
    outs: Sequence[Type]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    bodies: Sequence[Computation] = ()
    read: int | None = None


@dataclass(frozen=True, slots=True)
class Axis:
    """One spatial axis of a convolution; dilations as factors, 1 for none."""

    size: int
    out: int
    kernel: int
    stride: int = 1
    before: int = 0
    input_dilation: int = 1
    kernel_dilation: int = 1

    def taps(self) -> int:
        """Pairs of an output position and a kernel position that meet an element of the input.

        Of kernels that no model has, it counts the pairs that meet padding too.
        """
        if min(self.size, self.out, self.kernel) <= 0:
            return 0
        if self.kernel * self.input_dilation > _LONGEST:
            return self.out * self.kernel
        last = (self.size - 1) * self.input_dilation
        return sum(
            self._positions(tap * self.kernel_dilation - self.before, last)
            for tap in range(self.kernel)
        )

    def _positions(self, shift: int, last: int) -> int:
        """Positions ``o`` with ``o * stride + shift`` in [0, last] and a multiple of the dilation.

        These ``o`` repeat with the period dilation / gcd, so it is enough to find one in a period.
        """
        first = max(0, -(shift // self.stride))
        end = min(self.out - 1, (last - shift) // self.stride)
        period = self.input_dilation // math.gcd(self.stride, self.input_dilation)
        for o in range(first, min(first + period, end + 1)):
            if (o * self.stride + shift) % self.input_dilation == 0:
                return (end - o) // period + 1
        return 0


#: Positions of a kernel, times the dilation of the input, that are looked at one by one.
_LONGEST = 2**20


@functools.lru_cache(maxsize=4096)
def plain(kind: str) -> str:
    """The kind as the tables have it.

    >>> plain("stablehlo.reduce_window"), plain("shift-left")
    ('reduce_window', 'shift_left')
    """
    for dialect in ("stablehlo.", "chlo.", "mhlo.", "sdy."):
        kind = kind.removeprefix(dialect)
    return kind.replace("-", "_")


def cost(op: XlaOp) -> Cost:
    """FLOPs and bytes of an op, of any size.

    >>> x, w, y = Type("f32", (8, 16)), Type("f32", (16, 4)), Type("f32", (8, 4))
    >>> cost(XlaOp("stablehlo.dot_general", [x, w], [y], {"contracting": (1,)}))
    Cost(flops=1024, bytes=896, known=True)
    """
    kind = plain(op.kind)
    if kind in VIEWS:
        return Cost()
    count = _FLOPS.get(kind)
    try:
        flops = count(op) if count else 0
        moved = _BYTES.get(kind, _touched)(op)
    except (LookupError, TypeError, ValueError, ArithmeticError):
        # Operands or attributes that this kind cannot have: another op of the same name.
        return Cost(0, _touched(op), False)
    return Cost(flops, moved, count is not None and op.attributes.get("known", True))


def is_elementwise(kind: str) -> bool:
    """True if an element of the result needs only the same element of the operands."""
    return plain(kind) in _ELEMENTWISE


def arithmetic(body: Computation) -> int:
    """FLOPs of a body that works on single elements: a reduction's, a scatter's or a sort's."""
    return sum(
        cost(XlaOp(i.kind, _constants(i.operands), [t for _, t in i.results], i.attributes)).flops
        for i in body.instructions
        if plain(i.kind) in _ELEMENTWISE
    )


def _constants(operands: Sequence[Any]) -> list[Type]:
    return [o.type for o in operands if isinstance(o, Constant)]


# ---- FLOPs ------------------------------------------------------------------------------------

_Count = Callable[[XlaOp], int]


def _none(op: XlaOp) -> int:
    return 0


def _per_output(flops: int) -> _Count:
    return lambda op: flops * op.outs[0].numel


def _per_input(flops: int) -> _Count:
    return lambda op: flops * op.ins[0].numel


def _power(op: XlaOp) -> int:
    """Repeated squaring; a negative power divides at the end."""
    y = int(op.attributes["y"])
    products = abs(y).bit_length() + abs(y).bit_count() - 2 if y else 0
    return (products + (y < 0)) * op.outs[0].numel


def _dot(op: XlaOp) -> int:
    left = op.ins[0].shape
    inner = product([int(left[d]) for d in op.attributes["contracting"]])
    return multiply_adds(op.outs[0].numel, inner)


def _ragged_dot(op: XlaOp) -> int:
    """Every row meets the matrix of its own group only."""
    return multiply_adds(op.outs[0].numel, op.ins[0].shape[-1])


def _convolution(op: XlaOp) -> int:
    """``features`` are output batch and channels and the kernel's input channels, multiplied."""
    axes: Sequence[Axis] = op.attributes["axes"]
    taps = product([axis.taps() for axis in axes])
    return multiply_adds(int(op.attributes["features"]), taps)


def _steps(op: XlaOp) -> int:
    """Ops of a reduction's body; 1 where the reduction's kind names its op."""
    return sum(arithmetic(body) for body in op.bodies) if op.bodies else 1


def _reduce(op: XlaOp) -> int:
    return op.ins[0].numel * _steps(op)


def _window(op: XlaOp) -> int:
    return product([int(size) for size in op.attributes["window"]])


def _reduce_window(op: XlaOp) -> int:
    return formulas.pool(op.outs[0].numel, _window(op), _steps(op))


def _select_and_scatter(op: XlaOp) -> int:
    """Per source, a comparison at each position of a window that chooses, and an addition."""
    source = op.ins[1] if len(op.ins) > 2 else op.ins[0]
    return source.numel * (_window(op) + 1)


def _scatter(op: XlaOp) -> int:
    """One step per element of the updates, the last third of the operands."""
    return op.ins[-1].numel * (sum(arithmetic(body) for body in op.bodies) if op.bodies else 1)


def _sort(op: XlaOp) -> int:
    """Comparisons of a merge sort along the sorted axis."""
    length = op.ins[0].shape[int(op.attributes["axis"])]
    return op.ins[0].numel * (max(length, 1) - 1).bit_length()


def _top_k(op: XlaOp) -> int:
    return formulas.top_k(op.ins[0].numel, op.outs[0].shape[-1])


def _fft(op: XlaOp) -> int:
    length = product([int(n) for n in op.attributes["lengths"]])
    return formulas.fft(max(t.numel for t in (op.ins[0], op.outs[0])), length)


def _matrix(share: float) -> _Count:
    """A factorization of m rows and n columns: ``share`` * m * n * min(m, n) each."""

    def count(op: XlaOp) -> int:
        m, n = op.ins[0].shape[-2:]
        return round(share * op.ins[0].numel * min(m, n))

    return count


def _triangular_solve(op: XlaOp) -> int:
    return op.outs[0].numel * op.ins[0].shape[-1]


def _random(op: XlaOp) -> int:
    """Threefry: per 2 words, 20 rounds of add, rotate, xor (5) and five injections of keys (3)."""
    return sum(t.numel for t in op.outs) * (20 * 5 + 5 * 3) // 2


def _words(text: str) -> list[str]:
    return text.split()


VIEWS = frozenset(
    _words(
        "reshape squeeze expand_dims broadcast_in_dim stop_gradient bitcast bitcast_convert "
        "bitcast_convert_type sharding_constraint mesh_cast reshard layout_constraint name pvary "
        "pbroadcast optimization_barrier opt_barrier device_put random_wrap random_unwrap"
    )
)
_PER_OUTPUT: dict[int, str] = {
    1: "abs acos acosh add add_any and asin asinh atan atan2 atanh bessel_i0e bessel_i1e cbrt ceil "
    "clz compare cos cosh cosine count_leading_zeros digamma div divide eq erf erf_inv erfc "
    "exp exp2 expm1 exponential exponential_minus_one floor ge gt igamma igammac imag "
    "is_finite is_inf is_neg_inf is_pos_inf le lgamma log log1p log_plus_one lt max "
    "maximum min minimum mul multiply ne neg negate next_after nextafter not or polygamma popcnt "
    "population_count pow power real reduce_precision regularized_incomplete_beta rem remainder "
    "round round_nearest_afz round_nearest_even rsqrt shift_left shift_right_arithmetic "
    "shift_right_logical sign sin sine sinh sqrt square sub subtract tan tanh xor zeta conj "
    "random_gamma_grad copysign",
    2: "clamp",
    4: "logistic",
}
_CHOOSE = "select select_n convert convert_element_type complex copy"
_ELEMENTWISE = frozenset(
    " ".join((*_PER_OUTPUT.values(), _CHOOSE, "integer_pow stop_gradient")).split()
)
_REDUCTIONS = (
    "argmax argmin cumlogsumexp cummax cummin cumprod cumsum reduce_and reduce_max reduce_min "
    "reduce_or reduce_prod reduce_sum reduce_xor"
)
_MOVES = (
    "after_all broadcast concatenate constant copy_done copy_start create_token dynamic_slice "
    "dynamic_update_slice empty gather iota pad parameter partition_id random_seed replica_id rev "
    "reverse slice split transpose get swap new_ref ref_new freeze mutable_array"
)
#: Traffic between devices of one program: only the bytes that they touch are counted.
COLLECTIVES = frozenset(
    _words(
        "psum psum2 psum_invariant pmax pmin ppermute pgather all_gather all_gather_invariant "
        "all_to_all reduce_scatter all_reduce collective_permute collective_broadcast axis_index "
        "all_reduce_start all_reduce_done all_gather_start all_gather_done "
        "collective_permute_start collective_permute_done"
    )
)
_CALLBACKS = (
    "debug_callback debug_print io_callback pure_callback infeed outfeed send recv send_done "
    "recv_done"
)

_FLOPS: dict[str, _Count] = {
    **by_kind(_per_output, _PER_OUTPUT),
    **dict.fromkeys(f"{_CHOOSE} {_MOVES} {_CALLBACKS}".split(), _none),
    **dict.fromkeys(COLLECTIVES, _none),
    **dict.fromkeys(_REDUCTIONS.split(), _per_input(1)),
    **dict.fromkeys(("dot_general", "dot"), _dot),
    **dict.fromkeys(("ragged_dot", "ragged_dot_general"), _ragged_dot),
    **dict.fromkeys(("conv_general_dilated", "convolution"), _convolution),
    **dict.fromkeys(
        _words(
            "random_bits random_fold_in random_split threefry2x32 rng_bit_generator rng_uniform rng"
        ),
        _random,
    ),
    **dict.fromkeys(
        ("reduce_window_sum", "reduce_window_max", "reduce_window_min"), _reduce_window
    ),
    **dict.fromkeys(
        _words("scatter_add scatter_mul scatter_min scatter_max scatter_sub"), _scatter
    ),
    **dict.fromkeys(
        _words("select_and_scatter select_and_scatter_add select_and_gather_add"),
        _select_and_scatter,
    ),
    **dict.fromkeys(("top_k", "approx_top_k"), _top_k),
    "fusion": lambda op: int(op.attributes["flops"]),
    "addupdate": lambda op: op.ins[1].numel,
    "integer_pow": _power,
    "reduce": _reduce,
    "map": _reduce,
    "reduce_window": _reduce_window,
    "scatter": lambda op: _scatter(op) if op.bodies else 0,
    "sort": _sort,
    "fft": _fft,
    "cholesky": _matrix(1 / 3),
    "lu": _matrix(2 / 3),
    "geqrf": _matrix(4 / 3),
    "qr": _matrix(4 / 3),
    "householder_product": _matrix(4 / 3),
    "triangular_solve": _triangular_solve,
}

# ---- bytes ------------------------------------------------------------------------------------


def _sum(types: Sequence[Type]) -> int:
    return sum(t.nbytes for t in types)


def _touched(op: XlaOp) -> int:
    return (_sum(op.ins) if op.read is None else op.read) + _sum(op.outs)


def _part(op: XlaOp) -> int:
    """Reads as many bytes of the first input as the op writes, and the indices."""
    return formulas.gathered(_sum(op.outs), _sum(op.ins[1:]))


def _update(op: XlaOp) -> int:
    """Reads the update and the indices, and writes as many bytes as the update has."""
    return _sum(op.ins[1:]) + op.ins[1].nbytes


def _scattered(op: XlaOp) -> int:
    """Reads indices and updates; reads and writes as many elements of the changed operand."""
    return _sum(op.ins[1:]) + 2 * op.ins[-1].nbytes


_BYTES: dict[str, Callable[[XlaOp], int]] = {
    **dict.fromkeys(_words("gather dynamic_slice slice split"), _part),
    "get": lambda op: 2 * _sum(op.outs),
    **dict.fromkeys(_words("dynamic_update_slice swap addupdate"), _update),
    "fusion": lambda op: int(op.attributes["bytes"]),
    **dict.fromkeys(
        _words("scatter scatter_add scatter_mul scatter_min scatter_max scatter_sub"), _scattered
    ),
    **dict.fromkeys(_words("parameter constant partition_id replica_id axis_index"), _none),
}
