"""Every rule for ONNX: the parts of a call, executed by ONNX's own reference and joined.

The same families of rules read the calls of other frameworks.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from drawn import Drawn
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator
from parted import Case, Outputs, Part, check, masked

from loadmaster.dimensions.rules import rules

KINDS = {kind for kind in rules() if "." not in kind and kind[0].isupper()}


def run_of(kind: str, n_outputs: int = 1, domain: str = ""):
    """Executes an op; keywords that are no attributes repeat the numbers of inputs."""

    def run(args, keywords) -> Outputs:
        schema = onnx.defs.get_schema(kind, domain)
        names = [f"x{i}" if arg is not None else "" for i, arg in enumerate(args)]
        made = [f"y{i}" for i in range(n_outputs)]
        attributes = {k: v for k, v in keywords.items() if k in schema.attributes}
        node = onnx.helper.make_node(kind, names, made, domain=domain, **attributes)
        given = {name: arg for name, arg in zip(names, args, strict=True) if name}
        return [np.asarray(each) for each in ReferenceEvaluator(node).run(None, given)]

    return run


def call(kind, *args, keywords=None, outputs=1, **options) -> Case:
    options.setdefault("run", run_of(kind, outputs))
    return Case(kind, list(args), keywords=keywords or {}, **options)


def numbers(at, of: Callable[[Part], list[int]], keyword: str):
    """An input of numbers, which a keyword repeats, is something else in a part."""

    def fit(part: Part) -> None:
        values = of(part)
        part.args[at] = np.array(values)
        part.keywords[keyword] = values

    return fit


INTEGERS = ("Bitwise", "BitShift")
TRUTHS = ("And", "Or", "Xor", "Not")


def elementwise(drawn: Drawn, kind: str) -> Case:
    sizes = drawn.sizes(0, 3)
    if kind in FORMULAS:
        run = lambda args, _: [np.asarray(FORMULAS[kind](args[0]))]  # noqa: E731
        return call(kind, drawn.floats(*sizes), run=run)
    schema = onnx.defs.get_schema(kind)
    needed = schema.min_input + (kind in ("Sum", "Mean", "Max", "Min")) * drawn.int(0, 2)
    args = []
    for i in range(needed):
        mine = drawn.broadcast(sizes) if i and kind != "PRelu" else sizes
        if kind in TRUTHS or (kind == "Where" and i == 0):
            args.append(drawn.bools(*mine))
        elif kind.startswith(INTEGERS):
            args.append(drawn.ints(7, *mine).astype(np.int64))
        else:
            args.append(drawn.floats(*mine))
    keywords = {"Cast": {"to": onnx.TensorProto.DOUBLE}, "Mod": {"fmod": 1}}.get(kind, {})
    if kind == "BitShift":
        return call(kind, *(a.astype(np.uint64) for a in args), keywords={"direction": "LEFT"})
    return call(kind, *args, keywords=keywords)


#: Ops that ONNX's reference does not execute as single nodes, and ops of ONNX Runtime.
FORMULAS = {
    "FastGelu": lambda x: x / (1 + np.exp(-1.702 * x)),
    "QuickGelu": lambda x: x / (1 + np.exp(-1.702 * x)),
    "ReorderInput": np.copy,
    "ReorderOutput": np.copy,
    "Gelu": lambda x: x / (1 + np.exp(-1.702 * x)),
    "Softsign": lambda x: x / (1 + abs(x)),
}


def products(drawn: Drawn, kind: str) -> Case:
    m, k, n = (drawn.int(1, 5) for _ in range(3))
    if kind == "MatMul":
        rows = drawn.sizes(0, 2)
        return call(kind, drawn.floats(*rows, m, k), drawn.floats(*drawn.broadcast(rows), k, n))
    if kind in ("GRU", "RNN", "LSTM"):
        return recurrent(drawn, kind)
    if kind == "FusedMatMul":
        rows, flags = drawn.sizes(0, 2), {"transA": drawn.int(0, 1), "transB": drawn.int(0, 1)}
        a = drawn.floats(*rows, *((k, m) if flags["transA"] else (m, k)))
        b = drawn.floats(*rows, *((n, k) if flags["transB"] else (k, n)))

        def run(args, given) -> Outputs:
            x = args[0].swapaxes(-1, -2) if given["transA"] else args[0]
            return [x @ (args[1].swapaxes(-1, -2) if given["transB"] else args[1])]

        return call(kind, a, b, keywords=flags, run=run)
    flags = {"transA": drawn.int(0, 1), "transB": drawn.int(0, 1), "alpha": 1.0, "beta": 1.0}
    a = drawn.floats(*((k, m) if flags["transA"] else (m, k)))
    b = drawn.floats(*((n, k) if flags["transB"] else (k, n)))
    c = drawn.one([], [drawn.floats(*drawn.broadcast((m, n)))])
    return call(kind, a, b, *c, keywords=flags)


def recurrent(drawn: Drawn, kind: str) -> Case:
    steps, batch, width, hidden = (drawn.int(1, 4) for _ in range(4))
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[kind] * hidden
    f = drawn.floats
    args = [f(steps, batch, width), f(1, gates, width), f(1, gates, hidden), f(1, 2 * gates)]
    args += [None, f(1, batch, hidden)] + [f(1, batch, hidden)] * (kind == "LSTM")
    keywords = {"hidden_size": hidden, "layout": 0}
    return call(kind, *args, keywords=keywords, outputs=2 if kind != "LSTM" else 3)


def einsum(drawn: Drawn, kind: str) -> Case:
    equation = drawn.one("ij,jk->ik", "bihd,bjhd->bhij", "ij->ji", "ij->i")
    of = {letter: drawn.int(1, 4) for letter in "bijkhd"}
    terms = equation.split("->")[0].split(",")
    tensors = [drawn.floats(*(of[letter] for letter in term)) for term in terms]
    return call(kind, *tensors, keywords={"equation": equation})


def window(drawn: Drawn, count: int):
    """Sizes of an input, kernel, strides, pads and dilations."""
    kernel = [drawn.int(1, 3) for _ in range(count)]
    pads = [drawn.int(0, size // 2) for size in kernel * 2]
    sizes = [size + drawn.int(0, 6) for size in kernel]
    return sizes, kernel, [drawn.int(1, 3) for _ in range(count)], pads, [1] * count


def convolution(drawn: Drawn, kind: str) -> Case:
    count = drawn.int(1, 2)
    sizes, kernel, strides, pads, dilations = window(drawn, count)
    groups = drawn.one(1, 1, 2)
    source, target = groups * drawn.int(1, 2), groups * drawn.int(1, 2)
    transposed = kind == "ConvTranspose"
    pair = (source, target // groups) if transposed else (target, source // groups)
    keywords = {"kernel_shape": kernel, "strides": strides, "dilations": dilations, "group": groups}
    keywords["auto_pad"] = "NOTSET" if transposed else drawn.one("NOTSET", "SAME_UPPER", "VALID")
    if keywords["auto_pad"] == "NOTSET":
        keywords["pads"] = [0] * 2 * count if transposed else pads
    x, weight = drawn.floats(drawn.int(1, 2), source, *sizes), drawn.floats(*pair, *kernel)

    def fit(part: Part) -> None:
        if part.word == "group":
            part.keywords["group"] = part.end - part.begin

    bias = drawn.one([], [drawn.floats(target)])
    if transposed:
        return call(
            kind, x, weight, *bias, run=transposed_convolution,
            keywords=keywords, fit=fit, alone={"spatial": masked},
        )  # fmt: skip
    return call(kind, x, weight, *bias, keywords=keywords, fit=fit, alone={"spatial": masked})


def transposed_convolution(args, keywords) -> Outputs:
    """Every position of the input adds the kernel, times its value, at its place."""
    x, weight, *bias = args
    groups, strides = keywords["group"], keywords["strides"]
    kernel, each, out = weight.shape[2:], x.shape[1] // groups, weight.shape[1]
    plane = [(n - 1) * s + k for n, s, k in zip(x.shape[2:], strides, kernel, strict=True)]
    made = np.zeros((len(x), groups * out, *plane))
    for group in range(groups):
        taken, given = (
            slice(group * each, group * each + each),
            slice(group * out, group * out + out),
        )
        for tap in np.ndindex(*kernel):
            at = tuple(
                slice(t, t + (n - 1) * s + 1, s)
                for t, n, s in zip(tap, x.shape[2:], strides, strict=True)
            )
            product = np.einsum("bi...,io->bo...", x[:, taken], weight[(taken, slice(None), *tap)])
            made[(slice(None), given, *at)] += product
    return [made + bias[0].reshape(-1, *([1] * len(plane))) if bias else made]


def largest(args, keywords) -> Outputs:
    """The largest value that each window sees."""
    [x], kernel, strides, pads = args, *(keywords[k] for k in ("kernel_shape", "strides", "pads"))
    count = len(kernel)
    edges = [(0, 0), (0, 0), *zip(pads[:count], pads[count:], strict=True)]
    x = np.pad(x, edges, constant_values=-np.inf)
    axes = tuple(range(2, 2 + count))
    windows = np.lib.stride_tricks.sliding_window_view(x, kernel, axes)
    places = (slice(None), slice(None), *(slice(None, None, s) for s in strides))
    return [windows[places].max(tuple(range(-count, 0)))]


def pool(drawn: Drawn, kind: str) -> Case:
    sizes, kernel, strides, pads, dilations = window(drawn, drawn.int(1, 2))
    keywords = {"kernel_shape": kernel, "strides": strides, "pads": pads, "auto_pad": "NOTSET"}
    if kind == "LpPool":
        keywords |= {"pads": [0] * len(pads), "p": 2}
    x = drawn.floats(drawn.int(1, 3), drawn.int(1, 3), *sizes)
    keywords["dilations"] = dilations
    run = largest if kind == "MaxPool" else run_of(kind)
    return call(kind, x, keywords=keywords, run=run, alone={"spatial": masked})


def resize(drawn: Drawn, kind: str) -> Case:
    x = drawn.floats(*(drawn.int(1, 4) for _ in range(4)))
    if kind.startswith("Global"):
        return call(kind, x)

    def run(args, keywords) -> Outputs:
        """Twice as many places in both directions, each the nearest."""
        return [args[0].repeat(2, 2).repeat(2, 3)]

    return call(kind, x, np.array([1.0, 1.0, 2.0, 2.0]), run=run)


def normalised(x, over, parts, eps=1e-5):
    """Mean and deviation of slices, by sums that their parts exchange."""
    count = sum(np.prod([s.shape[a] for a in over]) for s in x)
    mean = sum(s.sum(over, keepdims=True) for s in x) / count
    square = sum((s**2).sum(over, keepdims=True) for s in x) / count
    return [(s - mean) / np.sqrt(square - mean**2 + eps) for s in x], square


def layer_norm(drawn: Drawn, kind: str) -> Case:
    x = drawn.floats(*(drawn.int(1, 5) for _ in range(3)))
    axis = -1 if "Skip" in kind else drawn.int(-2, -1)
    scale, bias = (drawn.floats(*x.shape[axis:]) for _ in range(2))
    over = tuple(range(axis, 0))
    is_simple, skips = (
        kind != "LayerNormalization" and kind != "SkipLayerNormalization",
        "Skip" in kind,
    )

    def formula(parts: list[Part]) -> list[Outputs]:
        slices = [p.args[0] + p.args[1] if skips else p.args[0] for p in parts]
        centred, square = normalised(slices, over, parts)
        if is_simple:
            centred = [s / np.sqrt(square + 1e-5) for s in slices]
        at = 1 + skips
        return [
            [c * p.args[at] + (0 if is_simple else p.args[at + 1])]
            for c, p in zip(centred, parts, strict=True)
        ]

    def run(args, keywords) -> Outputs:
        return formula([Part(None, "", 0, 1, 0, 1, args, keywords, {}, {}, [], {})])[0]

    args = [x, *([drawn.floats(*x.shape)] if skips else []), scale, *([] if is_simple else [bias])]
    run = run if skips or is_simple else run_of(kind)
    return call(kind, *args, keywords={"axis": axis}, run=run, together={"feature": formula})


def channel_norm(drawn: Drawn, kind: str) -> Case:
    channels = 2 * drawn.int(1, 2)
    x = drawn.floats(drawn.int(1, 3), channels, drawn.int(2, 4), drawn.int(2, 4))
    scale, bias, mean, variance = (drawn.floats(channels) for _ in range(4))
    if kind == "BatchNormalization":
        return call(kind, x, scale, bias, mean, variance, keywords={"training_mode": 0})
    if kind.startswith("BatchNorm"):
        return trained_norm(drawn, kind, x)
    groups = channels if kind == "InstanceNormalization" else 2

    def grouped(part: Part):
        x = part.args[0]
        of = groups * x.shape[1] // channels
        return x.reshape(len(x), of, -1, *x.shape[2:])

    def formula(parts: list[Part]) -> list[Outputs]:
        made, _ = normalised([grouped(p) for p in parts], (2, 3, 4), parts)
        wide = [each[:, None, None] for each in parts[0].args[1:3]]
        return [
            [m.reshape(p.args[0].shape) * wide[0] + wide[1]]
            for m, p in zip(made, parts, strict=True)
        ]

    def run(args, keywords) -> Outputs:
        return formula([Part(None, "", 0, 1, 0, 1, args, keywords, {}, {}, [], {})])[0]

    keywords = {"num_groups": 2} if groups == 2 and kind == "GroupNormalization" else {}
    return call(kind, x, scale, bias, keywords=keywords, run=run, together={"spatial": formula})


def trained_norm(drawn: Drawn, kind: str, x) -> Case:
    """ONNX Runtime's batch norm of a training step, or its gradient."""
    over, channels = (0, 2, 3), x.shape[1]

    def wide(values):
        return values[:, None, None]

    def forward(parts: list[Part]) -> list[Outputs]:
        made, square = normalised([p.args[0] for p in parts], over, parts)
        scale, bias, *running = parts[0].args[1:]
        count = sum(p.args[0].size for p in parts) / len(scale)
        mean = sum(p.args[0].sum(over) for p in parts) / count
        variance = square.ravel() - mean**2
        kept = [0.9 * old + 0.1 * new for old, new in zip(running, (mean, variance), strict=True)]
        kept += [mean, 1 / np.sqrt(variance + 1e-5)]
        return [[each * wide(scale) + wide(bias), *kept] for each in made]

    def backward(parts: list[Part]) -> list[Outputs]:
        scale, mean, inverse = map(wide, parts[0].args[2:])
        pairs = [(p.args[0], (p.args[1] - mean) * inverse) for p in parts]
        count = sum(g.size for g, _ in pairs) / len(scale)
        of_bias = sum(g.sum(over) for g, _ in pairs)
        of_scale = sum((g * seen).sum(over) for g, seen in pairs)
        terms = [(g, (wide(of_bias) + seen * wide(of_scale)) / count) for g, seen in pairs]
        return [[(g - term) * scale * inverse, of_scale, of_bias] for g, term in terms]

    formula = backward if kind.endswith("Grad") else forward

    def run(args, keywords) -> Outputs:
        return formula([Part(None, "", 0, 1, 0, 1, args, keywords, {}, {}, [], {})])[0]

    tensors = [drawn.floats(*x.shape)] if kind.endswith("Grad") else []
    vectors = [drawn.floats(channels) for _ in range(4 - len(tensors))]
    together = dict.fromkeys(("batch", "spatial"), formula)
    keywords = {} if tensors else {"training_mode": 1}
    return call(kind, *tensors, x, *vectors, keywords=keywords, run=run, together=together)


def along(drawn: Drawn, kind: str) -> Case:
    x = drawn.floats(*drawn.sizes(1, 3))
    axis = drawn.int(-x.ndim, x.ndim - 1)
    keywords = {"axis": axis}
    if "Softmax" in kind:
        keywords = {"axis": -1}

        def formula(parts: list[Part]) -> list[Outputs]:
            slices = [p.args[0] for p in parts]
            sums = sum(np.exp(s).sum(-1, keepdims=True) for s in slices)
            return [[s - np.log(sums) if "Log" in kind else np.exp(s) / sums] for s in slices]

        return call(kind, x, keywords=keywords, together={"softmax": formula})
    if kind == "LRN":
        return call(kind, drawn.floats(2, 3, drawn.int(1, 3), 2), run=across_channels)
    if kind == "Trilu":
        return call(kind, drawn.floats(*drawn.sizes(2, 3)))
    if kind == "CumSum":
        return call(kind, x, np.array(axis), keywords=keywords)
    if kind == "TopK":
        return call(kind, x, np.array([1]), keywords=keywords, outputs=2)
    index = drawn.ints(x.shape[axis], *x.shape)
    if kind == "GatherElements":
        return call(kind, x, index, keywords=keywords)
    order = np.argsort(drawn.floats(*x.shape), axis)
    return call(kind, x, order, drawn.floats(*x.shape), keywords=keywords)


def across_channels(args, keywords) -> Outputs:
    """Values over a power of the sum of squares in the channels beside."""
    squares = np.pad(args[0] ** 2, ((0, 0), (1, 1), (0, 0), (0, 0)))
    return [args[0] / (1 + squares[:, :-2] + squares[:, 1:-1] + squares[:, 2:]) ** 0.75]


COMBINED = {"ReduceMax": np.max, "ReduceMin": np.min, "ReduceProd": np.prod}


def reduction(drawn: Drawn, kind: str) -> Case:
    x = drawn.floats(*drawn.sizes(1, 3))
    keep = drawn.int(0, 1)
    if kind.startswith("Arg"):
        axis = drawn.int(0, x.ndim - 1)

        def best(parts: list[Part]) -> list[Outputs]:
            of = np.argmax if kind == "ArgMax" else np.argmin
            whole = np.concatenate([p.args[0] for p in parts], axis)
            made = of(whole, axis)
            return [[np.expand_dims(made, axis) if keep else made]] * len(parts)

        keywords = {"axis": axis, "keepdims": keep}
        return call(kind, x, keywords=keywords, together={"axis": best})
    axes = sorted(drawn.data.draw(st.sets(st.integers(0, x.ndim - 1), min_size=1)))

    def exchange(parts: list[Part]) -> list[Outputs]:
        made = np.array([p.run()[0] for p in parts])
        if kind in COMBINED:
            found = COMBINED[kind](made, axis=0)
        elif kind == "ReduceL2":
            found = np.sqrt((made**2).sum(0))
        else:
            found = np.log(np.exp(made).sum(0))
        return [[found]] * len(parts)

    keywords = {"keepdims": keep, "axes": axes}
    return call(kind, x, np.array(axes), keywords=keywords, together={"axis": exchange})


def gather(drawn: Drawn, kind: str) -> Case:
    x = drawn.floats(*drawn.sizes(1, 3))
    axis = drawn.int(0, x.ndim - 1)

    def own(part: Part) -> Outputs:
        """A part looks up what is in its own places, and has zeros for the rest."""
        index = part.args[1]
        mine = (index >= part.begin) & (index < part.end)
        part.args[1] = np.where(mine, index - part.begin, 0)
        return [part.run()[0] * mine.reshape(mine.shape + (1,) * (x.ndim - axis - 1))]

    index = drawn.ints(x.shape[axis], *drawn.sizes(0, 2))
    return call(kind, x, index, keywords={"axis": axis}, alone={"entry": own})


def reshape(drawn: Drawn, kind: str) -> Case:
    x = drawn.floats(*drawn.sizes(1, 3))
    if kind == "Flatten":
        return call(kind, x, keywords={"axis": 1})
    if kind == "Reshape":
        return call(kind, x, np.array([-1]), keywords={"shape": [-1]})
    if kind == "Squeeze":
        return call(kind, x[:, None], np.array([1]), keywords={"axes": [1]})
    return call(kind, x, np.array([0]), keywords={"axes": [0]})


def permute(drawn: Drawn, kind: str) -> Case:
    x = drawn.floats(*drawn.sizes(1, 4))
    perm = drawn.one(None, list(drawn.data.draw(st.permutations(range(x.ndim)))))
    return call(kind, x, keywords={} if perm is None else {"perm": perm})


def expand(drawn: Drawn, kind: str) -> Case:
    sizes = drawn.sizes(1, 3)
    fit = numbers(1, lambda part: list(part.outputs[0]), "shape")
    x = drawn.floats(*drawn.broadcast(sizes))
    return call(kind, x, np.array(sizes), keywords={"shape": list(sizes)}, fit=fit)


def slices(drawn: Drawn, kind: str) -> Case:
    periods = [drawn.int(1, 3) for _ in range(drawn.int(1, 3))]
    counts = [drawn.int(1, 3) for _ in periods]
    x = drawn.floats(*(p * c for p, c in zip(periods, counts, strict=True)))
    begins = [drawn.int(0, c - 1) * p for p, c in zip(periods, counts, strict=True)]
    ends = [begin + p for begin, p in zip(begins, periods, strict=True)]
    if drawn.int(0, 2) == 0:
        begins, ends = [0] * x.ndim, [drawn.int(1, size) for size in x.shape]

    def fit(part: Part) -> None:
        """Where the axis is cut within periods, begin and end are those of shorter periods."""
        axis = int(part.word.removeprefix("axis"))
        begin, end = (part.args[i].copy() for i in (1, 2))
        length, each = ends[axis] - begins[axis], part.end - part.begin
        begin[axis] = begins[axis] // length * each
        end[axis] = begin[axis] + each
        part.args[1:3] = [begin, end]

    axes = list(range(x.ndim))
    keywords = {"axes": axes, "starts": begins, "ends": ends, "steps": [1] * x.ndim}
    args = [np.array(each) for each in (begins, ends, axes)]
    return call(kind, x, *args, keywords=keywords, fit=fit)


def split(drawn: Drawn, kind: str) -> Case:
    sizes = list(drawn.sizes(1, 3))
    axis = drawn.int(0, len(sizes) - 1)
    size = sizes[axis]
    parts = drawn.one([size, size], [size, size + 1])
    sizes[axis] = sum(parts)

    def fit(part: Part) -> None:
        if part.word == f"axis{axis}":
            part.args[1] = np.array([part.end - part.begin] * 2)

    keywords = {"axis": axis, "split": parts}
    return call(kind, drawn.floats(*sizes), np.array(parts), keywords=keywords, outputs=2, fit=fit)


def concat(drawn: Drawn, kind: str) -> Case:
    sizes = list(drawn.sizes(1, 3))
    axis = drawn.int(-len(sizes), len(sizes) - 1)
    tensors = []
    for _ in range(drawn.int(1, 3)):
        sizes[axis] += drawn.one(0, 0, 1)
        tensors.append(drawn.floats(*sizes))
    return call(kind, *tensors, keywords={"axis": axis})


def pad(drawn: Drawn, kind: str) -> Case:
    x = drawn.floats(*drawn.sizes(1, 3))
    pads = [drawn.one(0, 0, 1) for _ in range(2 * x.ndim)]
    value = np.array(drawn.one(0.0, 0.5))
    keywords = {"mode": "constant", "pads": pads, "constant_value": float(value)}
    return call(kind, x, np.array(pads), value, keywords=keywords)


def tile(drawn: Drawn, kind: str) -> Case:
    x = drawn.floats(*drawn.sizes(1, 3))
    times = [drawn.int(1, 3) for _ in range(x.ndim)]

    def of(part: Part) -> list[int]:
        return [a // b for a, b in zip(part.outputs[0], part.args[0].shape, strict=True)]

    return call(
        kind, x, np.array(times), keywords={"repeats": times}, fit=numbers(1, of, "repeats")
    )


FAMILIES = {
    "along": along,
    "batch-norm": channel_norm,
    "convolution": convolution,
    "einsum": einsum,
    "elementwise": elementwise,
    "group-norm": channel_norm,
    "index-select": gather,
    "joined": concat,
    "layer-norm": layer_norm,
    "padded": pad,
    "permute": permute,
    "piece": split,
    "pieces": slices,
    "pool": pool,
    "product": products,
    "reduction": reduction,
    "repeat": tile,
    "reshape": reshape,
    "resize": resize,
    "same": expand,
}


@pytest.mark.parametrize("kind", sorted(KINDS))
@settings(max_examples=8)
@given(st.data())
def test_parts_joined_are_the_whole(kind, data):
    drawn = Drawn(data)
    check(FAMILIES[rules()[kind].family](drawn, kind), drawn.int(2, 3))
