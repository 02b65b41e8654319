"""Normalisations, reductions, losses and indices: see ``torch_calls``."""

from __future__ import annotations

from math import prod

import numpy as np
import torch
from hypothesis import strategies as st
from parted import Outputs, Part
from torch_calls import call, run_of, sums_of


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
    args = [x, axis, False] if "._" in kind and "safe" not in kind else [x, axis]
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


COMBINED = {
    "amax": np.max,
    "max": np.max,
    "amin": np.min,
    "min": np.min,
    "prod": np.prod,
    "all": np.all,
    "any": np.any,
}


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
        _, target, weight = part.args[:3]
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


def recurrent_layer(drawn, kind):
    """A layer of an LSTM; its backward pass has what its own forward pass keeps."""
    steps, batch, width, hidden = (drawn.int(1, 4) for _ in range(4))
    x, state, cell = (
        drawn.floats(*size) for size in ((steps, batch, width), *[(batch, hidden)] * 2)
    )
    sizes = (4 * hidden, width), (4 * hidden, hidden), (4 * hidden,), (4 * hidden,)
    first = [x, *(drawn.floats(*size) for size in sizes), state, cell]
    mode = 2  # An LSTM.
    if kind == "aten.mkldnn_rnn_layer":
        rest = [False, [], mode, hidden, 1, True, False, False, True]
        return call(kind, *first, *rest, run=_layer)
    sequence = (steps, batch, hidden)
    made = [drawn.floats(*size) for size in (sequence, state.shape, cell.shape)]
    gradients = [drawn.floats(*one.shape) for one in made]
    rest = [False, mode, hidden, 1, True, True, False, [], False, np.zeros(1, np.int64)]
    return call(kind, *first, *made, *gradients, *rest, run=_layer_backward)


def _layer(args, keywords) -> Outputs:
    _, made = _run_layer(args)
    return [*(one.detach().numpy() for one in made), None]


def _layer_backward(args, keywords) -> Outputs:
    own, made = _run_layer(args)
    gradients = [torch.from_numpy(one) for one in args[10:13]]
    return [one.numpy() for one in torch.autograd.grad(made, own, gradients)]


def _run_layer(args):
    """The layer's formula in 64 bits, which its own kernel does not have: arguments and outputs."""
    own = [torch.from_numpy(one).requires_grad_() for one in args[:7]]
    x, *weights, state, cell = own
    made = torch.lstm(x, (state[None], cell[None]), weights, True, 1, 0.0, False, False, False)
    return own, (made[0], made[1][0], made[2][0])
