"""Calls on elements, calls that make tensors, and views: see ``torch_calls``."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import strategies as st
from parted import Case, Part
from torch_calls import call, run_of

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
    inplace = getattr(torch.ops.aten, f"{base}_", None)
    if not own and inplace and overload in inplace.overloads() and drawn.int(0, 1):
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


def _resize(at):
    """The argument at a position is the size of the output."""

    def fit(part: Part) -> None:
        part.args[at] = list(part.outputs[0])

    return fit


def _put(at):
    """Arguments from a position on are the sizes of the output."""

    def fit(part: Part) -> None:
        part.args[at : at + len(part.outputs[0])] = part.outputs[0]

    return fit


def numbers(drawn, kind, sizes):
    """Calls that make tensors by other arguments than a size, by kind."""
    count, strided = drawn.int(1, 9), [[3, 4], [4, 1]]
    table = {
        "aten.arange": lambda: call(kind, count, random=True, fit=_put(0)),
        "aten.linspace": lambda: call(kind, 0, 1, count, random=True, fit=_put(2)),
        "aten.eye": lambda: call(kind, 4, 6, overload="m", random=True, fit=_put(0)),
        "aten.empty_strided": lambda: call(kind, *strided, random=True, fit=_resize(0)),
        "aten.new_empty_strided": lambda: call(
            kind, drawn.floats(2), *strided, random=True, fit=_resize(1)
        ),
        "aten.scalar_tensor": lambda: call(kind, 0.5),
        "aten.empty": lambda: call(
            kind, list(sizes), overload="memory_format", random=True, fit=_resize(0)
        ),
        "aten.full": lambda: call(kind, list(sizes), 0.5, fit=_resize(0)),
        "aten.full_like": lambda: call(kind, drawn.floats(*sizes), 0.5),
        "aten.new_full": lambda: call(kind, drawn.floats(2), list(sizes), 0.5, fit=_resize(1)),
        "aten.randint": lambda: call(kind, 9, list(sizes), random=True, fit=_resize(1)),
        "aten.randint_like": lambda: call(kind, drawn.floats(*sizes), 9, random=True),
    }
    return table[kind]() if kind in table else None


def made(drawn, kind):
    sizes = drawn.sizes(0, 3)
    name, random = kind.removeprefix("aten."), "empty" in kind or "rand" in kind
    if case := numbers(drawn, kind, sizes):
        pass
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
    "aten.squeeze": lambda _, x: call("aten.squeeze", x[:, None], 1, overload="dim"),
    "aten.flatten": lambda _, x: call("aten.flatten", x, overload="using_ints"),
    "aten.unflatten": lambda _, x: call(
        "aten.unflatten", np.repeat(x, 2, 0), 0, [2, len(x)], overload="int"
    ),
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


def strided(drawn, kind):
    x = drawn.floats(*drawn.sizes(1, 3))
    strides = [stride // x.itemsize for stride in x.strides]

    def fit(part: Part) -> None:
        sizes = part.outputs[0]
        part.args[1:3] = list(sizes), [int(np.prod(sizes[at + 1 :])) for at in range(len(sizes))]

    return call(kind, x, list(x.shape), strides, fit=fit)


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
