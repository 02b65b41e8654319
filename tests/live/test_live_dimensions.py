"""Every rule for ATen: the parts of a call, executed by PyTorch and joined, are the whole call.

Needs torch (no GPU): without it these tests are skipped. Kernels that need a GPU are replaced by
their formula.
"""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from parted import Case, Outputs, Part, check, masked

torch = pytest.importorskip("torch", reason="needs PyTorch 2.5 or later")

from loadmaster.dimensions.rules import rules  # noqa: E402

KINDS = {kind: rule for kind, rule in rules().items() if kind.startswith("aten.")}


# -- execution ------------------------------------------------------------------------------------


def to_torch(value):
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value.copy())
    if isinstance(value, list):
        return [to_torch(item) for item in value]
    if isinstance(value, dict):
        return {key: to_torch(item) for key, item in value.items()}
    if isinstance(value, str) and value.startswith("torch."):
        return getattr(torch, value.removeprefix("torch."))
    return value


def run_of(kind, overload=None):
    """What executes the op of a kind."""
    base, _, own = kind.removeprefix("aten.").partition(".")
    op = getattr(getattr(torch.ops.aten, base), own or overload or "default")

    def run(args, keywords) -> Outputs:
        made = op(*to_torch(args), **to_torch(keywords))
        several = made if isinstance(made, (tuple, list)) else [made]
        return [None if each is None else each.detach().numpy().copy() for each in several]

    return run


def call(kind, *args, overload=None, keywords=None, **options):
    """A call, by a kind without its overload, of one of its overloads."""
    options.setdefault("run", run_of(kind, overload))
    named = kind if "." in kind.removeprefix("aten.") else f"{kind}.{overload or 'default'}"
    return Case(named, list(args), keywords=keywords or {}, **options)


class Drawn:
    """Draws shapes from Hypothesis, values from a seed."""

    def __init__(self, data):
        self.data = data
        self.random = np.random.default_rng(data.draw(st.integers(0, 2**16)))

    def int(self, least, most):
        return self.data.draw(st.integers(least, most))

    def one(self, *values):
        return self.data.draw(st.sampled_from(values))

    def sizes(self, least, most, longest=5):
        return tuple(self.int(1, longest) for _ in range(self.int(least, most)))

    def floats(self, *sizes):
        return np.asarray(self.random.uniform(0.1, 0.9, sizes))

    def ints(self, below, *sizes):
        return np.asarray(self.random.integers(0, below, sizes))

    def bools(self, *sizes):
        return np.asarray(self.random.random(sizes) < 0.5)

    def broadcast(self, sizes):
        """Sizes that broadcast to others."""
        mine = [1 if self.int(0, 3) == 0 else size for size in sizes]
        return tuple(mine[self.int(0, len(mine)) if self.int(0, 2) == 0 else 0 :])


# -- elements -------------------------------------------------------------------------------------

RANDOM = ("bernoulli", "dropout", "normal", "uniform", "exponential", "rrelu_with_noise_functional")
INTEGERS = ("bitwise_",)
OVERLOADS = {
    "aten.to": "dtype",
    "aten.normal": "Tensor_float",
    "aten.pow": "Tensor_Tensor",
    "aten.masked_fill": "Scalar",
    "aten.where": "self",
    "aten.clamp": "Tensor",
    "aten.remainder": "Tensor",
}


def elementwise(drawn, kind):
    base, _, own = kind.removeprefix("aten.").partition(".")
    op = getattr(torch.ops.aten, base)
    names = op.overloads()
    overload = own or OVERLOADS.get(kind) or ("Tensor" if "Tensor" in names else "default")
    if not own and hasattr(torch.ops.aten, f"{base}_") and drawn.int(0, 1):
        if overload in getattr(torch.ops.aten, f"{base}_").overloads():
            base = f"{base}_"
    schema = getattr(getattr(torch.ops.aten, base), overload)._schema
    sizes = drawn.sizes(0, 3)
    args = []
    for argument in schema.arguments:
        if argument.has_default_value() and "Tensor" not in str(argument.type):
            break
        first = not args or "backward" in base or "rrelu" in base
        args.append(_element(drawn, base, argument, sizes if first else drawn.broadcast(sizes)))
    if base == "masked_fill":
        args[2] = drawn.one(0, 0.5)
    if base == "to":
        args[1:] = [drawn.one("torch.float64", "torch.float32", "torch.int64")]
    random = any(word in base for word in RANDOM) and "backward" not in base
    keywords = {"dtype": "torch.float64"} if base == "_to_copy" else {}
    kind = f"aten.{base}.{overload}"
    return Case(kind, args, run_of(kind), keywords=keywords, random=random)


def _element(drawn, base, argument, sizes):
    kind, name = str(argument.type), argument.name
    if "Tensor" in kind:
        if name in ("condition", "mask"):
            return drawn.bools(*sizes)
        if any(word in base for word in INTEGERS):
            return drawn.ints(7, *sizes)
        if base.startswith("fill"):
            return drawn.floats(*(sizes if name == "self" else ()))
        return drawn.floats(*sizes)
    if kind == "bool":
        return drawn.one(True, False)
    return 0.5


# -- tensors that are made, views -----------------------------------------------------------------


def _resize(at):
    """The argument at a position is the size of the output."""

    def fit(part: Part) -> None:
        part.args[at] = list(part.outputs[0])

    return fit


MADE = {
    "aten.arange": lambda d, s: call("aten.arange", d.int(1, 9), random=True, fit=lambda p: p.args.__setitem__(0, p.outputs[0][0])),
    "aten.linspace": lambda d, s: call("aten.linspace", 0, 1, d.int(1, 9), random=True, fit=lambda p: p.args.__setitem__(2, p.outputs[0][0])),
    "aten.eye": lambda d, s: call("aten.eye", 4, 6, overload="m", random=True, fit=lambda p: p.args.__setitem__(slice(2), list(p.outputs[0]))),
    "aten.empty_strided": lambda d, s: call("aten.empty_strided", [3, 4], [4, 1], random=True, fit=_resize(0)),
    "aten.new_empty_strided": lambda d, s: call("aten.new_empty_strided", d.floats(*s), [3, 4], [4, 1], random=True, fit=_resize(1)),
    "aten.scalar_tensor": lambda d, s: call("aten.scalar_tensor", 0.5),
    "aten.empty": lambda d, s: call("aten.empty", list(s), overload="memory_format", random=True, fit=_resize(0)),
    "aten.full": lambda d, s: call("aten.full", list(s), 0.5, fit=_resize(0)),
    "aten.full_like": lambda d, s: call("aten.full_like", d.floats(*s), 0.5),
    "aten.new_full": lambda d, s: call("aten.new_full", d.floats(2), list(s), 0.5, fit=_resize(1)),
    "aten.randint": lambda d, s: call("aten.randint", 9, list(s), random=True, fit=_resize(1)),
    "aten.randint_like": lambda d, s: call("aten.randint_like", d.floats(*s), 9, random=True),
}  # fmt: skip


def made(drawn, kind):
    sizes = drawn.sizes(0, 3)
    name, random = kind.removeprefix("aten."), "empty" in kind or "rand" in kind
    if kind in MADE:
        case = MADE[kind](drawn, sizes)
    elif name.endswith("_like"):
        case = call(kind, drawn.floats(*sizes), random=random)
    elif name.startswith("new_"):
        case = call(
            kind, drawn.floats(*sizes), list(drawn.sizes(0, 3)), random=random, fit=_resize(1)
        )
    else:
        case = call(kind, list(sizes), random=random, fit=_resize(0))
    if any(isinstance(arg, np.ndarray) for arg in case.args) and case.fit is None:
        # Values do not matter, so a part may have all of them; the shape is that of the part.
        shaped = case.args[0]
        case.fit = lambda part: part.args.__setitem__(0, np.ones(part.outputs[0], shaped.dtype))
    return case


RESHAPES = {
    "aten.unsqueeze": lambda d, x: call("aten.unsqueeze", x, d.int(-1, x.ndim)),
    "aten.squeeze": lambda d, x: call("aten.squeeze", x[:, None], 1, overload="dim"),
    "aten.flatten": lambda d, x: call("aten.flatten", x, overload="using_ints"),
    "aten.unflatten": lambda d, x: call("aten.unflatten", np.repeat(x, 2, 0), 0, [2, len(x)], overload="int"),
    "aten.ravel": lambda d, x: call("aten.ravel", x),
    "aten.view_as": lambda d, x: call("aten.view_as", x, x.reshape(-1).copy()),
    "aten._reshape_alias": lambda d, x: call("aten._reshape_alias", x, [x.size], [1]),
}  # fmt: skip


def reshape(drawn, kind):
    x = drawn.floats(*drawn.sizes(1, 3))
    if kind in RESHAPES:
        return RESHAPES[kind](drawn, x)
    sizes = drawn.one([-1], [*x.shape[::-1]], [1, *x.shape], [x.shape[0], -1])
    return call(kind, x, sizes)


def permute(drawn, kind):
    rank = drawn.int(2, 4)
    x = drawn.floats(*(drawn.int(1, 5) for _ in range(rank)))
    if kind == "aten.permute":
        return call(kind, x, drawn.data.draw(st.permutations(range(-1, rank - 1))))
    if kind == "aten.t":
        return call(kind, drawn.floats(*drawn.sizes(1, 2)))
    if kind == "aten.mT":
        return call(kind, x)
    pair = [drawn.int(-rank, rank - 1), drawn.int(-rank, rank - 1)]
    return call(kind, x, *pair, overload="int" if kind == "aten.transpose" else None)


def same(drawn, kind):
    sizes = drawn.sizes(1, 3)
    x = drawn.floats(*drawn.broadcast(sizes))
    if kind == "aten.expand_as":

        def fit(part: Part) -> None:
            part.args[1] = np.ones(part.outputs[0])

        return call(kind, x, drawn.floats(*sizes), fit=fit)
    if kind in ("aten.expand", "aten.broadcast_to"):
        return call(kind, x, list(sizes), fit=_resize(1))
    return call(kind, x)


def element(drawn, kind):
    x = drawn.floats(*drawn.sizes(1, 3))
    axis = drawn.int(-x.ndim, x.ndim - 1)
    if kind == "aten.unbind":
        return call(kind, x, axis, overload="int")
    return call(kind, x, axis, drawn.int(-1, 0), overload="int")


def piece(drawn, kind):
    count, size = drawn.int(1, 3), drawn.int(1, 4)
    sizes = list(drawn.sizes(1, 3))
    axis = drawn.int(0, len(sizes) - 1)
    sizes[axis] = count * size
    x = drawn.floats(*sizes)

    def fit(part: Part) -> None:
        if part.word != f"axis{axis}":
            return
        each = part.end - part.begin
        if kind == "aten.slice":
            first = start // size
            part.args[2:4] = (
                [first * each, (first + 1) * each] if size < count * size or start else [0, each]
            )
        elif kind == "aten.narrow":
            part.args[2:4] = [start // size * each, each]
        elif kind.endswith("sizes"):
            part.args[1] = [each] * count
        elif not kind.endswith("chunk"):
            part.args[1] = each

    start = size * drawn.int(0, count - 1)
    if kind == "aten.slice":
        if drawn.int(0, 2) == 0:
            begin = drawn.int(-1, count * size - 1)
            return call(
                kind,
                x,
                axis,
                begin,
                begin + drawn.int(1, 3) if begin >= 0 else 2**63 - 1,
                overload="Tensor",
                fit=_along_only(fit, axis, x, begin),
            )
        return call(kind, x, axis, start, start + size, overload="Tensor", fit=fit)
    if kind == "aten.narrow":
        return call(kind, x, axis, start, size, fit=fit)
    if kind.endswith("chunk"):
        return call(kind, x, count, axis, fit=fit)
    if kind.endswith("sizes"):
        parts = (
            [size] * count
            if drawn.int(0, 1)
            else [1, *([count * size - 1] if count * size > 1 else [])]
        )
        return call(kind, x, parts, axis, fit=fit)
    return call(kind, x, size, axis, overload="Tensor", fit=fit)


def _along_only(fit, axis, x, begin):
    """Slices that begin anywhere: places are those of the part's period."""

    def other(part: Part) -> None:
        if part.word != f"axis{axis}":
            return
        each, length = part.end - part.begin, part.case.run(part.case.args, {})[0].shape[axis]
        first = (begin % x.shape[axis]) // length
        part.args[2:4] = [first * each, (first + 1) * each]

    return other


def joined(drawn, kind):
    sizes = list(drawn.sizes(1, 3))
    axis = drawn.int(-len(sizes), len(sizes) - 1)
    tensors = []
    for _ in range(drawn.int(1, 3)):
        if drawn.int(0, 2) == 0:
            sizes[axis] = drawn.int(1, 4)
        tensors.append(drawn.floats(*sizes))
    return call(kind, tensors, axis)


def stacked(drawn, kind):
    sizes = drawn.sizes(1, 3)
    tensors = [drawn.floats(*sizes) for _ in range(drawn.int(1, 3))]
    return call(kind, tensors, drawn.int(-len(sizes) - 1, len(sizes)))


def put_back(drawn, kind):
    sizes = list(drawn.sizes(1, 3))
    axis = drawn.int(0, len(sizes) - 1)
    if kind == "aten.select_backward":
        gradient = drawn.floats(*sizes[:axis], *sizes[axis + 1 :])
        return call(kind, gradient, sizes, axis, drawn.int(0, sizes[axis] - 1), fit=_resize(1))
    size, count = sizes[axis], drawn.int(1, 3)
    whole = [*sizes]
    whole[axis] = size * count
    start = size * drawn.int(0, count - 1)

    def fit(part: Part) -> None:
        part.args[1] = list(part.outputs[0])
        if part.word == f"axis{axis}":
            each = part.end - part.begin
            part.args[3:5] = [start // size * each, start // size * each + each]

    return call(kind, drawn.floats(*sizes), whole, axis, start, start + size, 1, fit=fit)


def repeat(drawn, kind):
    x = drawn.floats(*drawn.sizes(1, 3))
    times = [drawn.int(1, 3) for _ in range(x.ndim + drawn.int(0, 1))]

    def fit(part: Part) -> None:
        given = [1] * (len(times) - x.ndim) + list(part.args[0].shape)
        part.args[1] = [made // size for made, size in zip(part.outputs[0], given, strict=True)]

    return call(kind, x, times, fit=fit)


def padded(drawn, kind):
    x = drawn.floats(*drawn.sizes(1, 3))
    pads = [drawn.one(0, 0, 1, 2) for _ in range(2 * drawn.int(1, x.ndim))]
    # Sizes of whole tensors, so that a pad of one place is not of a whole period.
    return call(kind, x, pads, drawn.one(0.0, 0.5))


# -- products, attention --------------------------------------------------------------------------


def product(drawn, kind):
    b, m, k, n = (drawn.int(1, 5) for _ in range(4))
    f = drawn.floats
    rows = drawn.sizes(0, 2)
    table = {
        "aten.mm": lambda: call(kind, f(m, k), f(k, n)),
        "aten.addmm": lambda: call(kind, f(*drawn.broadcast((m, n))), f(m, k), f(k, n)),
        "aten.bmm": lambda: call(kind, f(b, m, k), f(b, k, n)),
        "aten.baddbmm": lambda: call(kind, f(*drawn.broadcast((b, m, n))), f(b, m, k), f(b, k, n)),
        "aten.matmul": lambda: call(kind, f(*rows, m, k), f(*drawn.broadcast(rows), k, n)),
        "aten.mv": lambda: call(kind, f(m, k), f(k)),
        "aten.dot": lambda: call(kind, f(k), f(k)),
        "aten.vdot": lambda: call(kind, f(k), f(k)),
        "aten.outer": lambda: call(kind, f(m), f(n)),
        "aten.ger": lambda: call(kind, f(m), f(n)),
        "aten.linear": lambda: call(kind, f(*rows, m, k), f(n, k), *drawn.one([], [f(n)])),
        "aten.one_hot": lambda: one_hot(drawn, kind, rows),
        "aten.embedding": lambda: embedding(drawn, kind, rows, n),
        "aten.embedding_dense_backward": lambda: embedding_backward(drawn, kind, rows, n),
    }
    return attention(drawn, kind) if kind not in table else table[kind]()


def einsum(drawn, kind):
    equation = drawn.one("ij,jk->ik", "bij,bjk->bik", "bihd,bjhd->bhij", "ij->ji", "ij->i")
    of = {letter: drawn.int(1, 4) for letter in "bijkhd"}
    tensors = [drawn.floats(*(of[c] for c in term)) for term in equation.split("->")[0].split(",")]
    return call(kind, equation, tensors)


def one_hot(drawn, kind, rows):
    def classes(part: Part) -> Outputs:
        whole = part.run()[0]
        return [whole[..., part.begin : part.end]]

    return call(kind, drawn.ints(5, *rows, 2), 5, alone={"class": classes})


def embedding(drawn, kind, rows, n):
    def vocabulary(part: Part) -> Outputs:
        """A part looks up what is in its own rows, and has zeros for the rest."""
        weight, indices = part.args[:2]
        mine = (indices >= part.begin) & (indices < part.end)
        part.args[1] = np.where(mine, indices - part.begin, 0)
        return [part.run()[0] * mine[..., None]]

    return call(kind, drawn.floats(7, n), drawn.ints(7, *rows, 3), alone={"vocabulary": vocabulary})


def embedding_backward(drawn, kind, rows, n):
    def vocabulary(part: Part) -> Outputs:
        gradient, indices = part.args[:2]
        mine = (indices >= part.begin) & (indices < part.end)
        part.args[:3] = [
            gradient * mine[..., None],
            np.where(mine, indices - part.begin, 0),
            part.end - part.begin,
        ]
        return part.run()

    indices = drawn.ints(7, *rows, 3)
    gradient = drawn.floats(*indices.shape, n)
    return call(kind, gradient, indices, 7, -1, False, alone={"vocabulary": vocabulary})


def attend(q, k, v, mask=None, scale=None):
    """Attention and the logarithms of its sums, by their formula."""
    k, v = (np.repeat(x, q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = q @ k.swapaxes(-1, -2) * (scale or q.shape[-1] ** -0.5)
    scores = scores if mask is None else scores + mask
    most = scores.max(-1, keepdims=True)
    sums = np.exp(scores - most).sum(-1, keepdims=True)
    return np.exp(scores - most) / sums @ v, (most + np.log(sums))[..., 0]


def attend_backward(gradient, q, k, v, out, log_sums, mask=None):
    """Gradients of query, key, value, and of the mask."""
    times, scale = q.shape[1] // k.shape[1], q.shape[-1] ** -0.5
    wide_k, wide_v = (np.repeat(x, times, 1) for x in (k, v))
    scores = q @ wide_k.swapaxes(-1, -2) * scale + (0 if mask is None else mask)
    weights = np.exp(scores - log_sums[..., None])
    inner = weights * (gradient @ wide_v.swapaxes(-1, -2) - (gradient * out).sum(-1, keepdims=True))

    def narrow(x):
        return x.reshape(len(x), k.shape[1], times, *x.shape[2:]).sum(2)

    of_k = narrow(inner.swapaxes(-1, -2) @ q) * scale
    return inner @ wide_k * scale, of_k, narrow(weights.swapaxes(-1, -2) @ gradient), inner


def causal(rows, keys):
    return np.where(np.tri(rows, keys, dtype=bool), 0.0, -np.inf)


def attention(drawn, kind):
    batch, heads, rows, keys, width = (drawn.int(1, 4) for _ in range(5))
    kv_heads = heads if "cpu" in kind else drawn.one(1, heads)
    q = drawn.floats(batch, heads, rows, width)
    k, v = drawn.floats(batch, kv_heads, keys, width), drawn.floats(batch, kv_heads, keys, width)
    mask = drawn.floats(*(drawn.one(1, size) for size in (batch, heads)), rows, keys)
    name = kind.removeprefix("aten.")
    if "backward" in name:
        return attention_backward(drawn, kind, q, k, v, mask)
    if name == "_scaled_dot_product_flash_attention_for_cpu":
        if drawn.int(0, 1):

            def rows_of_causal(part: Part) -> Outputs:
                part.keywords["attn_mask"] = causal(rows, rows)[part.begin : part.end]
                part.args[4] = False
                return part.run()

            k, v = k[:, :, :1].repeat(rows, 2), v[:, :, :1].repeat(rows, 2)
            return call(kind, q, k, v, 0.0, True, alone={"row": rows_of_causal})
        return call(kind, q, k, v, keywords=drawn.one({}, {"attn_mask": mask}))
    if name == "scaled_dot_product_attention":
        keywords = {"enable_gqa": True} if kv_heads < heads else {}
        return call(kind, q, k, v, *drawn.one([], [mask]), keywords=keywords)
    if name == "_scaled_dot_product_attention_math":

        def weights(args, keywords) -> Outputs:
            of = np.eye(args[1].shape[2])[None, None].repeat(len(args[0]), 0)
            return [
                attend(*args)[0],
                attend(*args[:2], of.repeat(args[1].shape[1], 1), *args[3:])[0],
            ]

        return call(kind, q, k, v, *drawn.one([], [mask]), run=weights)
    seeds = 2 if "efficient" in name else 7

    def kernel(args, keywords) -> Outputs:
        given = [arg for arg in args if isinstance(arg, np.ndarray)]
        return [*attend(*given), *([None] * seeds)]

    more = [mask, True] if "efficient" in name else [0.0, False]
    return call(kind, q, k, v, *more, run=kernel)


def attention_backward(drawn, kind, q, k, v, mask):
    name = kind.removeprefix("aten.")
    with_mask = "efficient" in name or (name.endswith("cpu_backward") and drawn.int(0, 1))
    out, log_sums = attend(q, k, v, mask if with_mask else None)
    gradient = drawn.floats(*out.shape)
    if name.endswith("cpu_backward"):
        keywords = {"attn_mask": mask} if with_mask else {}
        return call(kind, gradient, q, k, v, out, log_sums, 0.0, False, keywords=keywords)
    if "efficient" in name:

        def efficient(args, keywords) -> Outputs:
            g, q, k, v, bias, out, log_sums = args[:7]
            *rest, inner = attend_backward(g, q, k, v, out, log_sums, bias)
            return [*rest, inner]

        bias = drawn.floats(*q.shape[:3], k.shape[2])
        out, log_sums = attend(q, k, v, bias)
        return call(kind, gradient, q, k, v, bias, out, log_sums, 0.0, [True] * 4, run=efficient)

    def flash(args, keywords) -> Outputs:
        return list(attend_backward(*args[:6])[:3])

    return call(kind, gradient, q, k, v, out, log_sums, None, None, 0.0, False, run=flash)


# -- windows --------------------------------------------------------------------------------------


def windows(drawn, count, padded=True):
    """Sizes of an input, and size, stride, padding and dilation of a window in it."""
    rows = []
    for _ in range(count):
        kernel, stride, dilation = drawn.int(1, 3), drawn.int(1, 3), drawn.int(1, 2)
        reach = dilation * (kernel - 1) + 1
        padding = drawn.int(0, kernel // 2) if padded else 0
        least = max(reach - 2 * padding, 1)
        rows.append((drawn.int(least, reach + 9), kernel, stride, padding, dilation))
    return [list(column) for column in zip(*rows, strict=True)]


def edged(part: Part, padding, at, value=0.0) -> None:
    """Adds to the slice what its halo lacks at the edges; the op then pads no more along it."""
    axis, _ = part.places[0]
    i = axis - part.args[0].ndim
    before, after = part.wanting[0]
    pads = [(0, 0)] * part.args[0].ndim
    pads[axis] = before, padding[i] if part.index + 1 == part.of else after
    part.args[0] = np.pad(part.args[0], pads, constant_values=value)
    if len(part.args) > at:
        part.args[at] = [0 if j == i + len(padding) else p for j, p in enumerate(padding)]


def first_of(part: Part) -> Outputs:
    """As many places as the part has; a slice that goes on to the end may have one more."""
    return [
        made[tuple(map(slice, sizes))] for made, sizes in zip(part.run(), part.outputs, strict=True)
    ]


def convolution(drawn, kind):
    general = "convolution" in kind
    count = drawn.int(1, 2) if general else int(kind[len("aten.conv")])
    sizes, kernel, stride, padding, dilation = windows(drawn, count)
    transposed = general and drawn.int(0, 2) == 0
    sizes = [size + 2 * transposed for size in sizes]
    groups = drawn.one(1, 1, 2, 3)
    source, target = groups * drawn.int(1, 3), groups * drawn.int(1, 3)
    pair = (source, target // groups) if transposed else (target, source // groups)
    args = [
        drawn.floats(drawn.int(1, 3), source, *sizes),
        drawn.floats(*pair, *kernel),
        drawn.one(None, drawn.floats(target)),
        stride,
        padding,
        dilation,
    ]
    if general:
        args += [transposed, [drawn.int(0, s - 1) if transposed else 0 for s in stride]]
    args += [groups] + [False] * 4 * (kind == "aten._convolution")

    def fit(part: Part) -> None:
        if part.word == "group":
            part.args[8 if general else 6] = part.end - part.begin

    def spatial(part: Part) -> Outputs:
        if transposed or 0 not in part.places:
            return masked(part)
        edged(part, padding, 4)
        return first_of(part)

    return call(kind, *args, fit=fit, alone={"spatial": spatial})


def convolution_backward(drawn, kind):
    count = drawn.int(1, 2)
    sizes, kernel, stride, padding, dilation = windows(drawn, count)
    transposed, groups = drawn.int(0, 3) == 0, drawn.one(1, 1, 2, 3)
    sizes = [size + 2 * transposed for size in sizes]
    source, target = groups * drawn.int(1, 2), groups * drawn.int(1, 2)
    pair = (source, target // groups) if transposed else (target, source // groups)
    x, weight = drawn.floats(drawn.int(1, 3), source, *sizes), drawn.floats(*pair, *kernel)
    rest = [stride, padding, dilation, transposed, [0] * count, groups]
    [forward] = run_of("aten.convolution")([x, weight, None, *rest], {})
    mask = drawn.one([True] * 3, [True, True, False], [False, True, True])

    def fit(part: Part) -> None:
        if part.word == "group":
            part.args[9] = part.end - part.begin
        part.args[3] = [part.args[0].shape[1]]

    def sources(part: Part) -> Outputs:
        """One of the parts has the gradient of the bias, the others zeros."""
        made = part.run()
        return [*made[:2], made[2] if part.index == 0 or made[2] is None else 0 * made[2]]

    return call(
        kind, drawn.floats(*forward.shape), x, weight, [target], *rest, mask, fit=fit,
        alone={"spatial": masked, "input_channel": sources},
    )  # fmt: skip


def pool(drawn, kind):
    sizes, kernel, stride, padding, dilation = windows(drawn, 2)
    if any(padding):
        # Else a window may see nothing but padding.
        dilation, sizes = [1, 1], [max(pair) for pair in zip(sizes, kernel, strict=True)]
    x = drawn.floats(*drawn.sizes(1, 2), *sizes)
    backward, average = "backward" in kind, "avg" in kind
    more = [drawn.one(True, False), drawn.one(True, False), None] if average else [dilation, False]
    sized = [kernel, stride, padding]
    if not average and not backward and drawn.int(0, 1):
        sized, more = [kernel], []
    if average:
        more[0] = drawn.one(True, False) and not backward
    if backward:
        forward = run_of(kind.removesuffix("_backward"))([x, *sized, *more], {})
        gradient = drawn.floats(*forward[0].shape)
        indices = forward[1:]
        return call(
            kind, gradient, x, *sized, *more, *indices, fit=_shaped, alone={"spatial": masked}
        )

    def spatial(part: Part) -> Outputs:
        """Edges are padded by hand; an average that leaves them out divides by what is there."""
        if 0 not in part.places or (average and (more[0] or not more[1])):
            return masked(part)
        edged(part, padding if len(part.args) > 3 else [0, 0], 3, 0.0 if average else -np.inf)
        return first_of(part)

    return call(kind, x, *sized, *more, alone={"spatial": spatial})


def _shaped(part: Part) -> None:
    """A second argument of which only the shape matters has that of the part."""
    part.args[1] = np.ones(part.outputs[0])


def resize(drawn, kind):
    rows, columns, times = drawn.int(1, 4), drawn.int(1, 4), drawn.int(1, 3)
    leading = drawn.sizes(2, 2)
    fine, coarse = [rows * times, columns * times], [rows, columns]
    if drawn.int(0, 3) == 0:
        coarse = [1, 1]
    name = kind.removeprefix("aten.")
    backward, upsample = "backward" in name, "upsample" in name
    bilinear = [False] if "bilinear" in name else []

    def fit(part: Part) -> None:
        if upsample and backward:
            part.args[1:3] = list(part.args[0].shape[2:]), list(part.outputs[0])
        elif backward:
            _shaped(part)
        else:
            part.args[1] = list(part.outputs[0][2:])

    if upsample and backward:
        sizes = [list(fine), [*leading, *coarse]]
        return call(kind, drawn.floats(*leading, *fine), *sizes, *bilinear, fit=fit)
    if backward:
        return call(kind, drawn.floats(*leading, *coarse), drawn.floats(*leading, *fine), fit=fit)
    if upsample:
        return call(kind, drawn.floats(*leading, *coarse), fine, *bilinear, fit=fit)
    return call(kind, drawn.floats(*leading, *fine), coarse, fit=fit)


# -- normalisation --------------------------------------------------------------------------------


def sums_of(values, over):
    """The sum over parts of what each has, a term summed over some axes."""
    return sum(value.sum(over, keepdims=True) for value in values)


def layer_norm(drawn, kind):
    rows, features = drawn.sizes(1, 2), list(drawn.sizes(1, 2))
    x, rank = drawn.floats(*rows, *features), len(rows)
    over, count = tuple(range(rank, rank + len(features))), prod(features)
    rms, eps = "rms" in kind, 1e-5
    weight, bias = drawn.floats(*features), drawn.floats(*features)

    def normalised(part: Part, x, of):
        mean, square = (s / count for s in of)
        rstd = 1 / np.sqrt(square + eps if rms else square - mean**2 + eps)
        out = (x if rms else x - mean) * rstd * part.args[2]
        return [out, rstd] if rms else [out + part.args[3], mean, rstd]

    def forward(parts: list[Part]) -> list[Outputs]:
        slices = [part.args[0] for part in parts]
        of = sums_of(slices, over), sums_of([s**2 for s in slices], over)
        outputs = [normalised(part, x, of) for part, x in zip(parts, slices, strict=True)]
        return [made[: len(parts[0].outputs)] for made in outputs]

    def backward(parts: list[Part]) -> list[Outputs]:
        """Gradients of a part's features need two sums over all features."""
        terms = []
        for part in parts:
            gradient, x, _, mean, rstd, weight, _, _ = part.args
            seen = (x - mean) * rstd
            terms.append((gradient * weight, seen, gradient))
        a = sums_of([g for g, _, _ in terms], over) / count
        b = sums_of([g * seen for g, seen, _ in terms], over) / count
        rows = tuple(range(rank))
        return [
            [(g - a - seen * b) * part.args[4], (gradient * seen).sum(rows), gradient.sum(rows)]
            for part, (g, seen, gradient) in zip(parts, terms, strict=True)
        ]

    if "backward" in kind:
        _, mean, rstd = run_of("aten.native_layer_norm")([x, features, weight, bias, eps], {})
        args = [drawn.floats(*x.shape), x, features, mean, rstd, weight, bias, [True] * 3]
        return call(kind, *args, together={"feature": backward})
    args = [x, features, weight, eps] if rms else [x, features, weight, bias, eps]
    return call(kind, *args, together={"feature": forward})


def batch_norm(drawn, kind):
    x = drawn.floats(drawn.int(2, 4), drawn.int(1, 4), *drawn.sizes(0, 2))
    over = (0, *range(2, x.ndim))
    count, channels = x.size // x.shape[1], x.shape[1]
    weight, bias, mean, variance = (drawn.floats(channels) for _ in range(4))
    training, eps = "no_training" not in kind and drawn.one(True, False), 1e-5
    if "no_stats" in kind:
        training = True

    def wide(values):
        return values.reshape(1, -1, *([1] * (x.ndim - 2)))

    def forward(parts: list[Part]) -> list[Outputs]:
        slices = [part.args[0] for part in parts]
        mean = sums_of(slices, over) / count
        rstd = 1 / np.sqrt(sums_of([s**2 for s in slices], over) / count - mean**2 + eps)
        return [
            [(s - mean) * rstd * wide(weight) + wide(bias), mean.ravel(), rstd.ravel()][
                : len(parts[0].outputs)
            ]
            for s in slices
        ]

    def backward(parts: list[Part]) -> list[Outputs]:
        mean, rstd = wide(parts[0].args[5]), wide(parts[0].args[6])
        pairs = [(part.args[0], (part.args[1] - mean) * rstd) for part in parts]
        a = sums_of([g for g, _ in pairs], over)
        b = sums_of([g * seen for g, seen in pairs], over)
        return [
            [(g - a / count - seen * b / count) * rstd * wide(weight), b.ravel(), a.ravel()]
            for g, seen in pairs
        ]

    words = ("batch", "spatial")
    if "backward" in kind:
        [_, *saved] = run_of("aten.native_batch_norm")(
            [x, weight, bias, mean, variance, training, 0.1, eps], {}
        )
        saved = saved if training else [drawn.floats(channels) for _ in range(2)]
        args = [
            drawn.floats(*x.shape),
            x,
            weight,
            mean,
            variance,
            *saved,
            training,
            eps,
            [True] * 3,
        ]
        return call(kind, *args, together=dict.fromkeys(words, backward) if training else {})
    statistics = [] if "no_stats" in kind else [mean, variance]
    mode = [] if "no_training" in kind else [training]
    last = [False] if kind == "aten.batch_norm" else []
    args = [x, weight, bias, *statistics, *mode, 0.1, eps, *last]
    return call(kind, *args, together=dict.fromkeys(words, forward) if training else {})


def group_norm(drawn, kind):
    batch, groups, per = (drawn.int(1, 3) for _ in range(3))
    plane = drawn.sizes(1, 2, 4)
    channels, area, eps = groups * per, prod(plane), 1e-5
    x = drawn.floats(batch, channels, *plane)
    weight, bias = drawn.floats(channels), drawn.floats(channels)

    def grouped(values):
        return values.reshape(batch, groups, per, -1)

    def wide(values):
        return values.reshape(1, groups, per, 1)

    def fit(part: Part) -> None:
        at = 5 if "backward" in kind else 3
        tensor = part.args[1] if "backward" in kind else part.args[0]
        of = groups if part.word != "channel" else groups * tensor.shape[1] // channels
        part.args[at : at + 4] = [*tensor.shape[:2], prod(tensor.shape[2:]), of]

    def forward(parts: list[Part]) -> list[Outputs]:
        slices = [grouped(part.args[0]) for part in parts]
        count = per * area
        mean = sums_of(slices, (2, 3)) / count
        rstd = 1 / np.sqrt(sums_of([s**2 for s in slices], (2, 3)) / count - mean**2 + eps)
        return [
            [
                ((s - mean) * rstd * wide(weight) + wide(bias)).reshape(part.args[0].shape),
                mean[..., 0, 0],
                rstd[..., 0, 0],
            ]
            for s, part in zip(slices, parts, strict=True)
        ]

    def backward(parts: list[Part]) -> list[Outputs]:
        mean, rstd = (parts[0].args[j][:, :, None, None] for j in (2, 3))
        count = per * area
        pairs = [(grouped(p.args[0]), (grouped(p.args[1]) - mean) * rstd) for p in parts]
        a, b = sums_of([g for g, _ in pairs], 3), sums_of([g * seen for g, seen in pairs], 3)
        of = [(term * wide(weight)).sum(2, keepdims=True) / count for term in (a, b)]
        return [
            [
                ((g * wide(weight) - of[0] - seen * of[1]) * rstd).reshape(part.args[0].shape),
                b.sum(0).ravel(),
                a.sum(0).ravel(),
            ]
            for part, (g, seen) in zip(parts, pairs, strict=True)
        ]

    sizes = [batch, channels, area, groups]
    if "backward" in kind:
        _, mean, rstd = run_of("aten.native_group_norm")([x, weight, bias, *sizes, eps], {})
        args = [drawn.floats(*x.shape), x, mean, rstd, weight, *sizes, [True] * 3]
        return call(kind, *args, fit=fit, together={"spatial": backward})
    return call(kind, x, weight, bias, *sizes, eps, fit=fit, together={"spatial": forward})


# -- along an axis --------------------------------------------------------------------------------


def softmax(drawn, kind):
    x = drawn.floats(*drawn.sizes(1, 3))
    axis, is_log = drawn.int(-x.ndim, x.ndim - 1), "log" in kind

    def forward(parts: list[Part]) -> list[Outputs]:
        slices = [part.args[0] for part in parts]
        most = np.max([s.max(axis, keepdims=True) for s in slices], axis=0)
        total = sums_of([np.exp(s - most) for s in slices], axis)
        return [[s - most - np.log(total) if is_log else np.exp(s - most) / total] for s in slices]

    def backward(parts: list[Part]) -> list[Outputs]:
        pairs = [part.args[:2] for part in parts]
        total = sums_of([g if is_log else g * out for g, out in pairs], axis)
        return [[g - np.exp(out) * total if is_log else out * (g - total)] for g, out in pairs]

    if "backward" in kind:
        [out] = run_of(kind.removesuffix("_backward_data"))([x, axis, False], {})
        args = [drawn.floats(*x.shape), out, axis, "torch.float64"]
        return call(kind, *args, together={"softmax": backward})
    args = [x, axis, False] if "._" in kind else [x, axis]
    return call(
        kind, *args, overload=None if "._" in kind else "int", together={"softmax": forward}
    )


def along(drawn, kind):
    if "softmax" in kind:
        return softmax(drawn, kind)
    sizes = list(drawn.sizes(1, 3))
    axis = drawn.int(-len(sizes), len(sizes) - 1)
    if kind == "aten.glu":
        sizes[axis] *= 2
    x = drawn.floats(*sizes)
    index = [*sizes]
    index[axis] = drawn.int(1, sizes[axis])
    if "scatter" in kind or kind == "aten.gather":
        short = drawn.ints(sizes[axis], *index)
        if kind == "aten.gather":
            return call(kind, x, axis, short)
        places = np.argsort(drawn.random.random(index), axis)
        source = drawn.floats(*index)
        if kind == "aten.scatter_reduce":
            return call(kind, x, axis, short, source, "amax", overload="two")
        if kind == "aten.scatter_add":
            return call(kind, x, axis, short, source)
        return call(kind, x, axis, places, source, overload="src")
    most = drawn.int(1, sizes[axis])
    square = drawn.floats(*drawn.sizes(0, 1), drawn.int(1, 4), drawn.int(1, 4))
    table = {
        "aten.cumsum": lambda: call(kind, x, axis),
        "aten.cumprod": lambda: call(kind, x, axis),
        "aten.logcumsumexp": lambda: call(kind, x, axis),
        "aten.glu": lambda: call(kind, x, axis),
        "aten.flip": lambda: call(kind, x, [axis]),
        "aten.roll": lambda: call(kind, x, [drawn.int(-2, 2)], [axis]),
        "aten.sort.default": lambda: call(kind, x, axis, drawn.one(True, False)),
        "aten.argsort.default": lambda: call(kind, x, axis),
        "aten.sort.stable": lambda: call(kind, x, keywords={"stable": True, "dim": axis}),
        "aten.topk": lambda: call(
            kind, x, most, *drawn.one([axis], [-1]) if most <= sizes[-1] else [axis]
        ),
        "aten.tril": lambda: call(kind, square, drawn.int(-1, 1)),
        "aten.triu": lambda: call(kind, square, drawn.int(-1, 1)),
    }
    return table[kind]()


# -- reductions, losses ---------------------------------------------------------------------------


def reduction(drawn, kind):
    """Parts exchange what the formula of each reduction needs."""
    x = drawn.floats(*drawn.sizes(1, 3))
    base, _, own = kind.removeprefix("aten.").partition(".")
    axes = sorted(drawn.data.draw(st.sets(st.integers(0, x.ndim - 1), min_size=1)))
    keep, signed = drawn.one(True, False), [axis - x.ndim for axis in axes]
    one = base in ("argmax", "argmin", "prod") or own == "dim"
    args, overload = [x, signed, keep], None
    if one:
        axes = axes[:1]
        args, overload = [x, signed[0], keep], {"prod": "dim_int"}.get(base)
    if base in ("sum", "mean"):
        overload = "dim_IntList" if base == "sum" else "dim"
    if base in ("all", "any"):
        overload, args[0] = "dims", drawn.bools(*x.shape)
    if base in ("var", "std", "var_mean", "std_mean"):
        overload, args, x = (
            "dim",
            [drawn.floats(*(s + 1 for s in x.shape)), signed, False, keep],
            None,
        )
    if "norm" in base:
        args = [x, drawn.one(1.0, 2.0, 3.0), signed, keep]
    if own == "default" or own == "Scalar" or (base in ("sum", "mean") and drawn.int(0, 3) == 0):
        args, overload = [x, *([2.0] if own == "Scalar" else [])], None
    name = own or overload or "default"

    def exchange(parts: list[Part]) -> list[Outputs]:
        """What all have is the op on all slices: the formulas are those of associative ops."""
        return exchanged_reduction(base, parts)

    return call(
        f"aten.{base}.{name}",
        *args,
        run=run_of(f"aten.{base}", name),
        together={} if base in ("sum", "mean") else {"axis": exchange},
    )


COMBINED = {"amax": np.max, "max": np.max, "amin": np.min, "min": np.min, "prod": np.prod, "all": np.all, "any": np.any}  # fmt: skip


def exchanged_reduction(base, parts: list[Part]) -> list[Outputs]:
    d = int(parts[0].word.removeprefix("axis"))
    results = [part.run() for part in parts]
    values = np.array([result[0] for result in results])
    if base not in ("argmax", "argmin") and len(parts[0].outputs) == 1 and base in COMBINED:
        combined = [COMBINED[base](values, axis=0)]
    elif "norm" in base:
        order = parts[0].args[1]
        combined = [(values**order).sum(0) ** (1 / order)]
    elif base == "logsumexp":
        combined = [np.log(np.exp(values).sum(0))]
    elif base in ("argmax", "argmin", "max", "min"):
        combined = best_of(base, parts, results, d)
    else:
        combined = moments(base, parts)
    return [combined] * len(parts)


def best_of(base, parts, results, d):
    """Values and places of the best: places count from the begin of a part."""
    keep = parts[0].args[2]
    pick = np.argmax if "max" in base else np.argmin
    best, places = [], []
    for part, result in zip(parts, results, strict=True):
        at = result[-1] if keep else np.expand_dims(result[-1], d)
        best.append(np.take_along_axis(part.args[0], at, d))
        places.append(at + part.begin)
    winner = pick(np.array(best), axis=0)[None]
    found = [np.take_along_axis(np.array(each), winner, 0)[0] for each in (best, places)]
    found = found if keep else [np.squeeze(each, d) for each in found]
    return found[1:] if base.startswith("arg") else found


def moments(base, parts):
    """Variance, deviation and mean, of the sums of parts."""
    axes = _reduced(parts[0])
    keep = parts[0].args[3]
    slices = [part.args[0] for part in parts]
    count = sum(prod(s.shape[a] for a in axes) for s in slices)
    mean = sum(s.sum(axes, keepdims=keep) for s in slices) / count
    variance = sum((s**2).sum(axes, keepdims=keep) for s in slices) / count - mean**2
    first = np.sqrt(variance) if "std" in base else variance
    return [first, mean] if "mean" in base else [first]


def _reduced(part: Part):
    rank = part.args[0].ndim
    named = next((a for a in part.args[1:] if isinstance(a, list)), None)
    if named is None and len(part.args) > 1 and isinstance(part.args[1], int):
        named = [part.args[1]]
    return tuple(range(rank)) if named is None else tuple(a % rank for a in named)


def loss(drawn, kind):
    sizes = drawn.sizes(1, 3)
    x, target = drawn.floats(*sizes), drawn.floats(*sizes)
    reduction = drawn.int(0, 2)
    name = kind.removeprefix("aten.")
    weights = {"binary_cross_entropy": [drawn.one(None, drawn.floats(*sizes))]}
    weights["binary_cross_entropy_with_logits"] = [None, drawn.one(None, drawn.floats(sizes[-1]))]
    weights["binary_cross_entropy_backward"] = [None]
    more = {"smooth_l1_loss_backward": [1.0], "huber_loss_backward": [1.0]}.get(name, [])
    gradient = [drawn.floats(*(sizes if reduction == 0 else ()))] if "backward" in name else []
    return call(kind, *gradient, x, target, *weights.get(name, []), reduction, *more)


def likelihood(drawn, kind):
    batch, classes = drawn.int(1, 5), drawn.int(1, 5)
    positions = drawn.sizes(2, 2) if "2d" in kind else ()
    x, target = drawn.floats(batch, classes, *positions), drawn.ints(classes, batch, *positions)
    weight, reduction = drawn.one(None, drawn.floats(classes)), drawn.int(0, 2)
    ignored = drawn.one(-100, 0) if batch * max(prod(positions), 1) > 1 else -100
    target.flat[0] = classes - 1
    if classes == 1:
        ignored = -100

    def formula(parts: list[Part]) -> list[Outputs]:
        """Sums of the parts, and the weight that a mean is divided by."""
        total = weights = 0.0
        scores = 0.0
        if parts[0].word == "class" and "cross" in kind:
            scores = np.log(sums_of([np.exp(p.args[0]) for p in parts], 1))
        for part in parts:
            x, target, weight = part.args[:3]
            mine = target != ignored
            if "cross" in kind:
                x = x - (
                    scores if part.word == "class" else np.log(np.exp(x).sum(1, keepdims=True))
                )
            if part.word == "class":
                mine &= (target >= part.begin) & (target < part.end)
                target = target - part.begin
            target = np.where(mine, target, 0)
            each = mine * (1.0 if weight is None else weight[target])
            total -= (np.take_along_axis(x, target[:, None], 1)[:, 0] * each).sum()
            weights += each.sum()
        made = [np.array(total / weights if reduction == 1 else total), np.array(weights)]
        return [made[: len(parts[0].outputs)]] * len(parts)

    def classes_of(part: Part) -> Outputs:
        """A part has what falls into its classes, and zeros for the rest."""
        target = part.args[1]
        mine = (target >= part.begin) & (target < part.end) & (target != ignored)
        part.args[1], part.args[4] = np.where(mine, target - part.begin, -7), -7
        return part.run()

    together = {"": formula} if reduction == 1 else {}
    if "cross" in kind and reduction != 1:
        together = {"class": lambda parts: cross_entropies(parts, reduction, ignored)}
    alone = {} if reduction == 1 else {"class": classes_of}
    return call(kind, x, target, weight, reduction, ignored, together=together, alone=alone)


def cross_entropies(parts, reduction, ignored):
    scores = np.log(sums_of([np.exp(p.args[0]) for p in parts], 1))
    total = 0.0
    for part in parts:
        x, target, weight = part.args[:3]
        mine = (target != ignored) & (target >= part.begin) & (target < part.end)
        target = np.where(mine, target - part.begin, 0)
        each = mine * (1.0 if weight is None else weight[target])
        total = total - np.take_along_axis(part.args[0] - scores, target[:, None], 1)[:, 0] * each
    return [[total if reduction == 0 else total.sum()]] * len(parts)


def likelihood_backward(drawn, kind):
    forward = kind.replace("_backward", "_forward")
    case = likelihood(drawn, forward)
    x, target, weight, reduction, ignored = case.args
    made = run_of(forward)(case.args, {})
    gradient = drawn.floats(*made[0].shape)

    def classes_of(part: Part) -> Outputs:
        target = part.args[2]
        mine = (target >= part.begin) & (target < part.end) & (target != ignored)
        part.args[2], part.args[5] = np.where(mine, target - part.begin, -7), -7
        return part.run()

    def fit(part: Part) -> None:
        part.args[1] = np.ones(part.outputs[0])

    args = [gradient, x, target, weight, reduction, ignored, made[1]]
    return call(kind, *args, fit=fit, alone={"class": classes_of})


# -- indices, recurrent nets ----------------------------------------------------------------------


def entries(at):
    """A part has what falls into its own places, the argument at ``at`` being the index."""

    def own(part: Part):
        index = part.args[at][0] if isinstance(part.args[at], list) else part.args[at]
        return index, (index >= part.begin) & (index < part.end)

    return own


def index(drawn, kind):
    sizes = list(drawn.sizes(1, 3))
    shape = drawn.sizes(1, 2, 4)
    several = len(sizes) > 1 and drawn.int(0, 1)
    at = drawn.int(0, len(sizes) - 1)
    if several:
        places = sorted(
            drawn.data.draw(st.sets(st.integers(0, len(sizes) - 1), min_size=2, max_size=2))
        )
    else:
        places = [at]
    indices = [None] * (places[-1] + 1)
    for place in places:
        indices[place] = drawn.ints(sizes[place], *drawn.broadcast(shape))
    indices[places[0]] = drawn.ints(sizes[places[0]], *shape)
    x = drawn.floats(*sizes)
    if "put" not in kind:

        def looked_up(part: Part) -> Outputs:
            given = part.args[1][places[0]]
            mine = (given >= part.begin) & (given < part.end)
            part.args[1][places[0]] = np.where(mine, given - part.begin, 0)
            wide = mine.reshape(
                *([1] * places[0]), *mine.shape, *([1] * (len(sizes) - places[0] - 1))
            )
            return [part.run()[0] * wide]

        return call(kind, x, indices, alone={"entry": looked_up})
    [found] = run_of("aten.index.Tensor")([x, indices], {})
    accumulate = drawn.one(True, False)
    if not accumulate:
        indices = [None if i is None else np.zeros_like(i) for i in indices]
    values = drawn.floats(*found.shape) if accumulate else np.array(0.5)

    def written(part: Part) -> Outputs:
        """Writes into places of other parts go into a row that is thrown away."""
        given = part.args[1][places[0]]
        mine = (given >= part.begin) & (given < part.end)
        size = part.end - part.begin
        pads = [(0, 0)] * len(sizes)
        pads[places[0]] = (0, 1)
        part.args[0] = np.pad(part.args[0], pads)
        part.args[1][places[0]] = np.where(mine, given - part.begin, size)
        return [np.take(part.run()[0], range(size), places[0])]

    return call(kind, x, indices, values, accumulate, alone={"entry": written})


def index_select(drawn, kind):
    x = drawn.floats(*drawn.sizes(1, 3))
    axis = drawn.int(0, x.ndim - 1)

    def looked_up(part: Part) -> Outputs:
        given = part.args[2]
        mine = (given >= part.begin) & (given < part.end)
        part.args[2] = np.where(mine, given - part.begin, 0)
        return [part.run()[0] * mine.reshape(-1, *([1] * (x.ndim - axis - 1)))]

    index = drawn.ints(x.shape[axis], drawn.int(1, 5))
    return call(kind, x, drawn.one(axis, axis - x.ndim), index, alone={"entry": looked_up})


def index_add(drawn, kind):
    x = drawn.floats(*drawn.sizes(1, 3))
    axis = drawn.int(0, x.ndim - 1)
    index = drawn.ints(x.shape[axis], drawn.int(1, 5))
    source = list(x.shape)
    source[axis] = len(index)

    def written(part: Part) -> Outputs:
        given = part.args[2]
        mine = (given >= part.begin) & (given < part.end)
        part.args[2] = np.where(mine, given - part.begin, 0)
        part.args[3] = part.args[3] * mine.reshape(-1, *([1] * (x.ndim - axis - 1)))
        return part.run()

    return call(kind, x, axis, index, drawn.floats(*source), alone={"entry": written})


def recurrent(drawn, kind):
    steps, batch, width, hidden = (drawn.int(1, 4) for _ in range(4))
    first, base = drawn.one(True, False), kind.removeprefix("aten.").partition(".")[0]
    gates = {"lstm": 4, "gru": 3}.get(base, 1)
    x = drawn.floats(batch, steps, width) if first else drawn.floats(steps, batch, width)
    state = drawn.floats(1, batch, hidden)
    sizes = (gates * hidden, width), (gates * hidden, hidden), (gates * hidden,), (gates * hidden,)
    hx = [state, drawn.floats(1, batch, hidden)] if base == "lstm" else state
    params = [drawn.floats(*size) for size in sizes]
    return call(kind, x, hx, params, True, 1, 0.0, False, False, first)


# -- the tests ------------------------------------------------------------------------------------

FAMILIES = {
    "along": along,
    "batch-norm": batch_norm,
    "convolution": convolution,
    "convolution-backward": convolution_backward,
    "einsum": einsum,
    "element": element,
    "elementwise": elementwise,
    "group-norm": group_norm,
    "index": index,
    "index-add": index_add,
    "index-select": index_select,
    "joined": joined,
    "layer-norm": layer_norm,
    "likelihood": likelihood,
    "likelihood-backward": likelihood_backward,
    "loss": loss,
    "made": made,
    "padded": padded,
    "permute": permute,
    "piece": piece,
    "pool": pool,
    "product": product,
    "put-back": put_back,
    "recurrent": recurrent,
    "reduction": reduction,
    "repeat": repeat,
    "reshape": reshape,
    "resize": resize,
    "same": same,
    "stacked": stacked,
}
#: Families whose kinds differ only in what is done to an element, and need fewer examples each.
SIMPLE = ("elementwise", "made")


@pytest.mark.parametrize("kind", sorted(k for k, rule in KINDS.items() if rule.family in SIMPLE))
@settings(max_examples=8)
@given(st.data())
def test_ops_on_elements(kind, data):
    drawn = Drawn(data)
    check(FAMILIES[KINDS[kind].family](drawn, kind), drawn.int(2, 3))


@pytest.mark.parametrize(
    "kind", sorted(k for k, rule in KINDS.items() if rule.family not in SIMPLE)
)
@settings(max_examples=20)
@given(st.data())
def test_parts_joined_are_the_whole(kind, data):
    drawn = Drawn(data)
    check(FAMILIES[KINDS[kind].family](drawn, kind), drawn.int(2, 4))
