"""Every rule for XLA and TensorFlow: the parts of a call, executed by numpy and joined.

An op on elements that has no linear arguments stands for any other: its kind is not told apart.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from drawn import Drawn
from hypothesis import given, settings
from hypothesis import strategies as st
from parted import Case, Outputs, Part, check

from loadmaster.dimensions.rules import TENSORFLOW, rules

TF = {kind for kind in rules() if kind.startswith(TENSORFLOW)}
XLA = {
    kind
    for kind in rules()
    if not kind.startswith(("aten.", "bitsandbytes.")) and kind[0].islower()
}
XLA -= TF


def call(kind: str, of: Callable[..., object], *args, keywords=None, **options) -> Case:
    """A call that a function of its positional arguments, and of its keywords, executes."""
    given = keywords or {}
    if kind in TF:
        given = {"T": "DT_FLOAT", **given}

    def run(args, keywords) -> Outputs:
        made = of(args, keywords)
        several = made if isinstance(made, tuple) else (made,)
        return [np.asarray(each) for each in several]

    return Case(kind.removeprefix(TENSORFLOW), list(args), run, keywords=given, **options)


LINEAR = {
    "add": lambda a, b: a + b,
    "addv2": lambda a, b: a + b,
    "addn": lambda *a: sum(a),
    "sub": lambda a, b: a - b,
    "subtract": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "multiply": lambda a, b: a * b,
    "divide": lambda a, b: a / b,
    "realdiv": lambda a, b: a / b,
    "select": lambda a, b, c: np.where(a > 0.5, b, c),
    "selectv2": lambda a, b, c: np.where(a > 0.5, b, c),
    "rsqrtgrad": lambda y, g: -0.5 * g * y**3,
    "sigmoidgrad": lambda y, g: g * y * (1 - y),
    "sqrtgrad": lambda y, g: g / (2 * y),
    "tanhgrad": lambda y, g: g * (1 - y**2),
    "relugrad": lambda g, x: g * (x > 0.5),
    "relu6grad": lambda g, x: g * (x > 0.5),
    "negate": lambda x: -x,
    "neg": lambda x: -x,
}


def elementwise(drawn: Drawn, kind: str) -> Case:
    rule, name = rules()[kind], kind.split(":")[-1].split(".")[-1].lower()
    sizes = drawn.sizes(0, 3)
    of = LINEAR.get(
        name, (lambda x: x) if "linear" in rule.options else (lambda a, b: np.tanh(a * b) + b)
    )
    count = drawn.int(1, 10) if name == "addn" else of.__code__.co_argcount
    broadcasts = kind not in TF or "Grad" not in kind
    args = [
        drawn.floats(*(drawn.broadcast(sizes) if i and broadcasts else sizes)) for i in range(count)
    ]
    return call(kind, lambda args, _: of(*args), *args)


def made(drawn: Drawn, kind: str) -> Case:
    sizes = list(drawn.sizes(0, 3))

    def fit(part: Part) -> None:
        part.keywords["sizes"] = list(part.outputs[0])

    return call(kind, lambda _, given: np.ones(given["sizes"]), keywords={"sizes": sizes}, fit=fit)


def contraction(drawn: Drawn, kind: str) -> Case:
    b, m, k, n = (drawn.int(1, 4) for _ in range(4))
    pairs = drawn.one(
        ("bmk", "bkn", "bmn"),
        ("mk", "nk", "mn"),
        ("kbm", "nkb", "bmn"),
        ("k", "k", ""),
        ("m", "n", "mn"),
    )
    sizes = dict(zip("bmkn", (b, m, k, n), strict=True))
    left, right, out = pairs
    args = [drawn.floats(*(sizes[c] for c in term)) for term in (left, right)]
    dims = {
        name: [
            [term.index(c) for c in letters if c in left and c in right] for term in (left, right)
        ]
        for name, letters in (("batching_dims", "b"), ("contracting_dims", "k"))
    }
    keywords = dims
    if kind == "dot":
        keywords = {
            f"{side}_{name.replace('ing', '') if name.startswith('batch') else name}": dims[name][i]
            for name in dims
            for i, side in enumerate(("lhs", "rhs"))
        }
    return call(
        kind, lambda x, _: np.einsum(f"{left},{right}->{out}", *x), *args, keywords=keywords
    )


def labelled(drawn: Drawn, kind: str) -> Case:
    b, i, o = (drawn.int(1, 4) for _ in range(3))
    x, weight = drawn.floats(b, 4, i), drawn.floats(2, i, o)
    one = "b0f_0io->b0f" if kind == "convolution" else "[b, 0, f]x[0, i, o]->[b, 0, f]"
    name = "dim_labels" if kind == "convolution" else "dim_numbers"
    if drawn.int(0, 1):  # The gradient of a kernel in groups: samples are summed.
        x, made = drawn.floats(b, 4, o), drawn.floats(b, 3, o)
        one = one.replace("b0f", "f0b", 1).replace("[b, 0, f]", "[f, 0, b]", 1)
        one = one.replace("0io->b0f", "i0o->0bf").replace(
            "[0, i, o]->[b, 0, f]", "[i, 0, o]->[0, b, f]"
        )
        return call(kind, of_kernel, x, made, keywords={name: one, "batch_group_count": o})
    return call(kind, convolved, x, weight, keywords={name: one, "feature_group_count": 1})


def of_kernel(args, _):
    """The gradient of a window of two, of each channel by itself."""
    x, made = args
    return np.stack([(x[:, k : k + 3] * made).sum((0, 1))[None] for k in range(2)])


def convolved(args, _):
    """A convolution of [batch, place, channel] by a window of two."""
    x, weight = args
    return x[:, :-1] @ weight[0] + x[:, 1:] @ weight[1]


def product(drawn: Drawn, kind: str) -> Case:
    b, m, k, n = (drawn.int(1, 4) for _ in range(4))
    f, name = drawn.floats, kind.removeprefix(TENSORFLOW)
    nhwc = {"data_format": "NHWC"}
    plane, grown = f(b, 2, 3, k), f(b, 2, 3, n)
    table = {
        "BiasAdd": lambda: call(kind, lambda a, _: a[0] + a[1], f(b, m, n), f(n), keywords=nhwc),
        "BiasAddGrad": lambda: call(kind, lambda a, _: a[0].sum((0, 1)), f(b, m, n), keywords=nhwc),
        "Conv2D": lambda: call(
            kind, lambda a, _: a[0] @ a[1][0, 0], plane, f(1, 1, k, n), keywords=nhwc
        ),
        "Conv2DBackpropInput": lambda: call(
            kind, lambda a, _: a[2] @ a[1][0, 0].T, np.ones(4), f(1, 1, k, n), grown, keywords=nhwc
        ),
        "Conv2DBackpropFilter": lambda: call(
            kind,
            lambda a, _: np.einsum("bhwi,bhwo->io", a[0], a[2])[None, None],
            plane, np.ones(4), grown, keywords=nhwc,
        ),
        "DepthwiseConv2dNative": lambda: call(
            kind,
            lambda a, _: (a[0][..., None] * a[1][0, 0]).reshape(*a[0].shape[:3], -1),
            plane, f(1, 1, k, 2), keywords=nhwc,
        ),
        "AvgPool": lambda: call(kind, lambda a, _: a[0][:, ::2, ::2], plane, keywords=nhwc),
        "MaxPool": lambda: call(kind, lambda a, _: a[0][:, ::2, ::2], plane, keywords=nhwc),
        "AvgPoolGrad": lambda: call(
            kind, lambda a, _: a[1].repeat(2, 1) / 2, np.ones(4), plane, keywords=nhwc
        ),
        "MaxPoolGrad": lambda: call(
            kind, lambda a, _: (a[0] == a[1]) * a[2],
            plane, plane.copy(), f(*plane.shape), keywords=nhwc,
        ),
    }  # fmt: skip
    if name in table:
        return table[name]()
    if "CrossEntropy" in name:
        return cross_entropy(drawn, kind)
    first, second = ("transpose_a", "transpose_b") if name == "MatMul" else ("adj_x", "adj_y")
    flags = {first: drawn.one(True, False), second: drawn.one(True, False)}
    rows = () if name == "MatMul" else drawn.sizes(0, 2)
    x = f(*rows, *((k, m) if flags[first] else (m, k)))
    y = f(*rows, *((n, k) if flags[second] else (k, n)))

    def multiplied(args, given):
        x, y = (
            a.swapaxes(-1, -2) if given[name] else a for a, name in zip(args, flags, strict=True)
        )
        return x @ y

    return call(kind, multiplied, x, y, keywords=flags)


def cross_entropy(drawn: Drawn, kind: str) -> Case:
    batch, classes = drawn.int(1, 5), drawn.int(1, 5)
    sparse = "Sparse" in kind
    labels = drawn.ints(classes, batch) if sparse else drawn.floats(batch, classes)

    def of(args, _):
        x, labels = args
        labels = np.eye(x.shape[1])[labels] if sparse else labels
        scores = x - np.log(np.exp(x).sum(1, keepdims=True))
        return -(labels * scores).sum(1), np.exp(scores) - labels

    return call(kind, of, drawn.floats(batch, classes), labels)


def batch_norm(drawn: Drawn, kind: str) -> Case:
    x = drawn.floats(drawn.int(2, 4), 2, 3, drawn.int(1, 4))
    scale, offset, mean, variance = (drawn.floats(x.shape[3]) for _ in range(4))
    count, over, backward = x.size // x.shape[3], (0, 1, 2), "Grad" in kind

    def forward(parts: list[Part]) -> list[Outputs]:
        mean = sum(p.args[0].sum(over) for p in parts) / count
        variance = sum((p.args[0] ** 2).sum(over) for p in parts) / count - mean**2
        rstd = 1 / np.sqrt(variance + 1e-5)
        return [[(p.args[0] - mean) * rstd * p.args[1] + p.args[2], mean, variance] for p in parts]

    def gradients(parts: list[Part]) -> list[Outputs]:
        seen = [(p.args[1] - p.args[3]) * p.args[4] for p in parts]
        a = sum(p.args[0].sum(over) for p in parts)
        b = sum((p.args[0] * s).sum(over) for p, s in zip(parts, seen, strict=True))
        return [
            [(p.args[0] - a / count - s * b / count) * p.args[4] * p.args[2], b, a]
            for p, s in zip(parts, seen, strict=True)
        ]

    of = gradients if backward else forward

    def alone(args, keywords):
        return tuple(of([Part(None, "", 0, 1, 0, 1, args, keywords, {}, {}, [], {})])[0])

    def fit(part: Part) -> None:
        if backward and part.word == "channel":
            part.args[3:] = [each[part.begin : part.end] for each in part.args[3:]]

    keywords = {"is_training": True, "data_format": "NHWC"}
    args = [x, scale, offset, mean, variance]
    if backward:
        args = [drawn.floats(*x.shape), x, scale, mean, variance]
    together = dict.fromkeys(("batch", "spatial"), of)
    return call(kind, alone, *args, keywords=keywords, together=together, fit=fit)


def along(drawn: Drawn, kind: str) -> Case:
    sizes = drawn.sizes(1, 3)
    x, name = drawn.floats(*sizes), kind.split(":")[-1].split(".")[-1].replace("-", "_")
    if "oftmax" in name:

        def formula(parts: list[Part]) -> list[Outputs]:
            total = sum(np.exp(p.args[0]).sum(-1, keepdims=True) for p in parts)
            return [[np.exp(p.args[0]) / total] for p in parts]

        of = lambda a, _: np.exp(a[0]) / np.exp(a[0]).sum(-1, keepdims=True)  # noqa: E731
        return call(kind, of, x, together={"softmax": formula})
    if name == "Cumsum":
        axis = drawn.int(0, x.ndim - 1)
        of = lambda a, given: a[0].cumsum(given["axis"])  # noqa: E731
        return call(kind, of, x, keywords={"axis": axis})
    axis = drawn.int(0, x.ndim - 1)
    if name == "reverse":
        return call(kind, lambda a, _: np.flip(a[0], axis), x, keywords={"dims": [axis]})
    if name == "sort":
        return call(kind, lambda a, _: np.sort(a[0], axis), x, keywords={"dimension": axis})
    if name == "top_k":
        return call(kind, lambda a, _: (np.sort(a[0]), a[0].argsort(-1)), x)
    smaller = [drawn.int(1, size) for size in sizes]

    def dynamic(args, given):
        """A slice of some size at the beginning, or an update of it there."""
        if "update" in name:
            out = args[0].copy()
            out[tuple(map(slice, args[1].shape))] = args[1]
            return out
        return args[0][tuple(map(slice, given["sizes"]))]

    def fit(part: Part) -> None:
        part.keywords["sizes"] = list(part.outputs[0])

    update = [drawn.floats(*smaller)] if "update" in name else []
    return call(kind, dynamic, x, *update, *[0] * x.ndim, keywords={"sizes": smaller}, fit=fit)


def moved(drawn: Drawn, kind: str) -> Case:
    """Zeros around a tensor; the sums of a window with as many places as positions."""
    sizes = drawn.sizes(1, 3)
    x, numbers = drawn.floats(*sizes), [drawn.int(0, 1) for _ in sizes]

    def summed(args, _):
        total = args[0]
        for axis, number in enumerate(numbers):
            total = total + number * np.roll(total, 1, axis)
        return total

    if kind == "stablehlo.pad":
        keywords = {"low": numbers, "high": [0] * x.ndim, "interior": [0] * x.ndim}
        of = lambda a, _: np.pad(a[0], [(number, 0) for number in numbers])  # noqa: E731
        return call(kind, of, x, 0.0, keywords=keywords)
    sources = [drawn.floats(*sizes)] if "scatter" in kind else []
    window = {"window_dimensions": [number + 1 for number in numbers]}
    return call(kind, summed, x, *sources, 0.0, keywords=window)


def reduction(drawn: Drawn, kind: str) -> Case:
    x, name = drawn.floats(*drawn.sizes(1, 3)), kind.split(":")[-1].split(".")[-1]
    axes = sorted(drawn.data.draw(st.sets(st.integers(0, x.ndim - 1), min_size=1)))
    of = {
        "Sum": np.sum, "Mean": np.mean, "Min": np.min, "Prod": np.prod, "All": np.min,
    }.get(name, np.max)  # fmt: skip
    if name == "L2Loss":
        return call(kind, lambda a, _: (a[0] ** 2).sum() / 2, x)
    if name.startswith("Arg"):
        best = {"ArgMax": np.argmax, "ArgMin": np.argmin}[name]

        def exchanged(parts: list[Part]) -> list[Outputs]:
            return [[best(np.concatenate([p.args[0] for p in parts], axes[0]), axes[0])]] * len(
                parts
            )

        return call(
            kind, lambda a, given: best(a[0], given["dimension"]), x,
            keywords={"dimension": axes[0]}, together={"axis": exchanged},
        )  # fmt: skip
    keep = kind in TF and drawn.one(True, False)

    def exchange(parts: list[Part]) -> list[Outputs]:
        return [[of(np.array([p.run()[0] for p in parts]), axis=0)]] * len(parts)

    keywords = {"axis": axes, "keep_dims": keep} if kind in TF else {"dimensions": axes}
    return call(
        kind, lambda a, _: of(a[0], axis=tuple(axes), keepdims=keep), x,
        *([] if kind in TF else [0.0]), keywords=keywords, together={"axis": exchange},
    )  # fmt: skip


def broadcast(drawn: Drawn, kind: str) -> Case:
    out = drawn.sizes(1, 4)
    dims = sorted(drawn.data.draw(st.sets(st.integers(0, len(out) - 1))))
    x = drawn.floats(*(drawn.one(1, out[i]) for i in dims))

    def of(args, given):
        shape = [1] * len(out)
        for i, size in zip(dims, args[0].shape, strict=True):
            shape[i] = size
        return np.broadcast_to(args[0].reshape(shape), given["sizes"]).copy()

    def fit(part: Part) -> None:
        part.keywords["sizes"] = list(part.outputs[0])

    name = "dimensions" if kind == "broadcast" else "dims"
    return call(kind, of, x, keywords={name: dims, "sizes": list(out)}, fit=fit)


def permute(drawn: Drawn, kind: str) -> Case:
    x = drawn.floats(*drawn.sizes(1, 4))
    order = list(drawn.data.draw(st.permutations(range(x.ndim))))
    name = "perm" if kind in TF else "dims" if "." in kind else "dimensions"
    return call(kind, lambda a, _: a[0].transpose(order), x, keywords={name: order})


def reshape(drawn: Drawn, kind: str) -> Case:
    return call(kind, lambda a, _: a[0].ravel(), drawn.floats(*drawn.sizes(1, 3)))


def joined(drawn: Drawn, kind: str) -> Case:
    sizes = list(drawn.sizes(1, 3))
    axis, tensors = drawn.int(0, len(sizes) - 1), []
    for _ in range(drawn.int(1, 3)):
        sizes[axis] += drawn.one(0, 0, 1)
        tensors.append(drawn.floats(*sizes))
    name = "axis" if kind in TF else "dim" if "." in kind else "dimensions"
    of = lambda a, _: np.concatenate(a, axis)  # noqa: E731
    return call(kind, of, *tensors, keywords={name: axis if kind in TF or "." in kind else [axis]})


def pieces(drawn: Drawn, kind: str) -> Case:
    periods = [drawn.int(1, 3) for _ in range(drawn.int(1, 3))]
    counts = [drawn.int(1, 3) for _ in periods]
    begins = [drawn.int(0, c - 1) * p for p, c in zip(periods, counts, strict=True)]
    x = drawn.floats(*(p * c for p, c in zip(periods, counts, strict=True)))
    told = kind not in TF or drawn.one(True, False)
    ranges = [[b, b + p] for b, p in zip(begins, periods, strict=True)]

    def fit(part: Part) -> None:
        axis, each = int(part.word.removeprefix("axis")), part.end - part.begin
        first = begins[axis] // periods[axis] * each
        changed = [*ranges]
        changed[axis] = [first, first + each]
        part.keywords["where"] = changed

    keywords = {"slice": ranges} if kind not in TF else {"begin": begins} if told else {}
    of = lambda a, given: a[0][tuple(slice(*each) for each in given["where"])]  # noqa: E731
    return call(kind, of, x, keywords={**keywords, "where": ranges}, fit=fit)


def gather(drawn: Drawn, kind: str) -> Case:
    """Rows of a table; or one place per row of a batch."""
    rows, width = drawn.int(1, 6), drawn.int(1, 4)
    if drawn.one(True, False):
        index = drawn.ints(width, rows, 1)
        keywords = {
            "offset_dims": [], "collapsed_slice_dims": [1], "start_index_map": [1],
            "operand_batching_dims": [0], "start_indices_batching_dims": [0],
            "index_vector_dim": 1, "slice_sizes": [1, 1],
        }  # fmt: skip
        of = lambda a, _: np.take_along_axis(a[0], a[1], 1)[:, 0]  # noqa: E731
        x = drawn.floats(rows, width)
    else:
        index = drawn.ints(rows, *drawn.sizes(1, 2), 1)
        keywords = {
            "offset_dims": [index.ndim - 1], "collapsed_slice_dims": [0], "start_index_map": [0],
            "index_vector_dim": index.ndim - 1, "slice_sizes": [1, width],
        }  # fmt: skip
        of = lambda a, _: a[0][a[1][..., 0]]  # noqa: E731
        x = drawn.floats(rows, width)

    def own(part: Part) -> Outputs:
        index = part.args[1]
        mine = (index >= part.begin) & (index < part.end)
        part.args[1] = np.where(mine, index - part.begin, 0)
        made = part.run()[0]
        return [made * (mine[..., 0] if made.ndim < mine.ndim else mine)]

    return call(kind, of, x, index, keywords=keywords, alone={"entry": own})


def scatter(drawn: Drawn, kind: str) -> Case:
    rows, width, many = drawn.int(1, 6), drawn.int(1, 4), drawn.int(1, 5)
    x, index, updates = (
        drawn.floats(rows, width),
        drawn.ints(rows, many, 1),
        drawn.floats(many, width),
    )

    def of(args, _):
        out = args[0].copy()
        np.add.at(out, args[1][:, 0], args[2])
        return out

    def own(part: Part) -> Outputs:
        """Updates of other parts' places go nowhere."""
        index = part.args[1]
        mine = (index >= part.begin) & (index < part.end)
        part.args[1], part.args[2] = np.where(mine, index - part.begin, 0), part.args[2] * mine
        return part.run()

    keywords = {
        "update_window_dims": [1], "inserted_window_dims": [0], "index_vector_dim": 1,
        "scatter_dims_to_operand_dims": [0],
    }  # fmt: skip
    return call(kind, of, x, index, updates, keywords=keywords, alone={"entry": own})


def index_select(drawn: Drawn, kind: str) -> Case:
    x = drawn.floats(*drawn.sizes(1, 3))
    axis = drawn.int(0, x.ndim - 1)

    def own(part: Part) -> Outputs:
        index = part.args[1]
        mine = (index >= part.begin) & (index < part.end)
        part.args[1] = np.where(mine, index - part.begin, 0)
        return [part.run()[0] * mine.reshape(mine.shape + (1,) * (x.ndim - axis - 1))]

    index = drawn.ints(x.shape[axis], *drawn.sizes(1, 2))
    of = lambda a, _: np.take(a[0], a[1], axis)  # noqa: E731
    return call(kind, of, x, index, keywords={"axis": axis, "batch_dims": 0}, alone={"entry": own})


def split(drawn: Drawn, kind: str) -> Case:
    sizes = list(drawn.sizes(1, 3))
    axis, count = drawn.int(0, len(sizes) - 1), drawn.int(1, 3)
    sizes[axis] *= count
    first = [np.array(axis)] if kind.endswith("Split") else []
    of = lambda a, _: tuple(np.split(a[-1], count, axis))  # noqa: E731
    return call(kind, of, *first, drawn.floats(*sizes), keywords={"axis": axis})


def rows_of(drawn: Drawn, kind: str) -> Case:
    """Kinds of one form each: BroadcastTo, Pack, Unpack and Tile."""
    sizes = drawn.sizes(1, 3)
    x, axis = drawn.floats(*sizes), drawn.int(0, len(sizes) - 1)
    name = kind.removeprefix(TENSORFLOW)
    if name.endswith("permute"):  # of what each device has, nothing moves inside
        return call(kind, lambda a, _: a[0], x, keywords={"sends": [0, 1]})
    if name == "Pack":
        of = lambda a, _: np.stack(a, axis)  # noqa: E731
        return call(kind, of, *[drawn.floats(*sizes) for _ in range(2)], keywords={"axis": axis})
    if name == "Unpack":
        of = lambda a, _: tuple(np.moveaxis(a[0], axis, 0))  # noqa: E731
        return call(kind, of, x, keywords={"axis": axis})
    if name == "Tile":
        times = [drawn.int(1, 3) for _ in sizes]

        def copies(part: Part) -> None:
            pairs = zip(part.outputs[0], part.args[0].shape, strict=True)
            part.keywords["times"] = [made // size for made, size in pairs]

        of = lambda a, given: np.tile(a[0], given["times"])  # noqa: E731
        return call(kind, of, x, keywords={"times": times}, fit=copies)
    narrow = drawn.floats(*drawn.broadcast(sizes))

    def fit(part: Part) -> None:
        part.keywords["sizes"] = list(part.outputs[0])

    of = lambda a, given: np.broadcast_to(a[0], given["sizes"]).copy()  # noqa: E731
    return call(kind, of, narrow, keywords={"sizes": list(sizes)}, fit=fit)


FAMILIES = {
    "along": along,
    "batch-norm": batch_norm,
    "broadcast": broadcast,
    "contraction": contraction,
    "element": rows_of,
    "elementwise": elementwise,
    "gather": gather,
    "index-select": index_select,
    "joined": joined,
    "labelled": labelled,
    "made": made,
    "moved": moved,
    "permute": permute,
    "piece": split,
    "pieces": pieces,
    "product": product,
    "reduction": reduction,
    "repeat": rows_of,
    "reshape": reshape,
    "same": rows_of,
    "scatter": scatter,
    "stacked": rows_of,
}


@pytest.mark.parametrize("kind", sorted(XLA | TF))
@settings(max_examples=4)
@given(st.data())
def test_parts_joined_are_the_whole(kind, data):
    drawn = Drawn(data)
    check(FAMILIES[rules()[kind].family](drawn, kind), drawn.int(2, 3))
