"""Products, attention, and windows that move along axes: see ``torch_calls``."""

from __future__ import annotations

import numpy as np
from parted import Outputs, Part, masked
from torch_calls import call, run_of


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
    if "embedding_bag" in kind:
        return embedding_bag(drawn, kind, n)
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
        indices = part.args[1]
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


def embedding_bag(drawn, kind, n):
    """Sums of bags of rows, or the gradient of the table that they are rows of."""
    bags = drawn.int(1, 4)
    indices = drawn.ints(7, bags * drawn.int(1, 3))
    offsets = np.arange(0, len(indices), len(indices) // bags)
    args = [drawn.floats(7, n), indices, offsets, False, 0, False]
    if "backward" not in kind:

        def run(args, keywords):
            """What else it makes holds what was in memory before, where bags are summed."""
            out, *found = run_of(kind)(args, keywords)
            return [out, *(np.zeros_like(each) for each in found)]

        return call(kind, *args, run=run)
    out, *found = run_of("aten._embedding_bag")(args, {})
    given = [drawn.floats(*out.shape), indices]
    if "dense" in kind:
        # What the forward pass leaves to the backward pass where all bags are summed.
        found[0] = np.repeat(np.arange(bags), len(indices) // bags)
        given += [*found, 7, False, 0, None]
    else:
        given += [offsets, *found, 7, False, 0, False, None]

    def backward(args, keywords):
        """Whatever it is handed, a device has what its own forward pass noted of the bags."""
        return run_of(kind)([args[0], *given[1:]], keywords)

    return call(kind, *given, run=backward)


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
        out, log_sums = attend(*given)
        return [out, log_sums[..., None] if "cudnn" in name else log_sums, *([None] * seeds)]

    more = [0.0, False] if "flash" in name else [mask, True]
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

    if "cudnn" in name:

        def cudnn(args, keywords) -> Outputs:
            return list(attend_backward(*args[:5], args[5][..., 0], args[8])[:3])

        out, log_sums = attend(q, k, v, mask)
        given = [gradient, q, k, v, out, log_sums[..., None], None, None, mask]
        return call(kind, *given, run=cudnn)

    def flash(args, keywords) -> Outputs:
        return list(attend_backward(*args[:6])[:3])

    return call(kind, gradient, q, k, v, out, log_sums, None, None, 0.0, False, run=flash)


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
    count = int(kind[kind.index("pool") + 4])
    sizes, kernel, stride, padding, dilation = windows(drawn, count)
    if any(padding):
        # Else a window may see nothing but padding.
        dilation, sizes = [1] * count, [max(pair) for pair in zip(sizes, kernel, strict=True)]
    x = drawn.floats(*drawn.sizes(1, 2), *sizes)
    backward, average = "backward" in kind, "avg" in kind
    divisor = [None] * (count > 1)
    more = (
        [drawn.one(True, False), drawn.one(True, False), *divisor] if average else [dilation, False]
    )
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
        edged(part, padding if len(part.args) > 3 else [0] * count, 3, 0.0 if average else -np.inf)
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
