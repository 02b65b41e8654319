"""Graphs of calls that are written down by hand: ops with their arguments and shapes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import loadmaster as lm


class Calls:
    """Ops as they are added; each outputs one float32 tensor."""

    def __init__(self) -> None:
        self.ops: list[dict[str, Any]] = []
        self.edges: list[tuple[int, int]] = []

    def placeholder(self, name: str, kind: str, *shape: int, colocation: str = "") -> int:
        held = 0 if kind == "input" else 4 * int(np.prod(shape))
        made = 4 * int(np.prod(shape)) if kind == "input" else 0
        return self._add(
            name, kind, shape, None, param_bytes=held, output_bytes=made, colocation=colocation
        )

    def call(
        self, name: str, kind: str, args: Sequence[Any], shape: Sequence[int], **columns: Any
    ) -> int:
        """An op; a tensor among its arguments is a tuple of the op that makes it."""
        reads = [arg[0] for arg in args if isinstance(arg, tuple)]
        size = 4 * int(np.prod(shape))
        told = [{"op": arg[0]} if isinstance(arg, tuple) else arg for arg in args]
        moved = size + sum(4 * int(np.prod(self.ops[r]["shape"])) for r in dict.fromkeys(reads))
        usual = {"output_bytes": size, "bytes_accessed": moved, "flops": moved}
        usual = usual if not columns.get("view") else {}
        at = self._add(name, f"aten.{kind}", shape, [told], **(usual | columns))
        self.edges += [(r, at) for r in dict.fromkeys(reads)]
        return at

    def product(self, name: str, a: int, b: int, **columns: Any) -> int:
        """A product of matrices."""
        (n, k), m = self.ops[a]["shape"], self.ops[b]["shape"][1]
        return self.call(name, "mm.default", [(a,), (b,)], (n, m), flops=2 * n * k * m, **columns)

    def transposed(self, a: int, **columns: Any) -> int:
        """A view of a matrix."""
        name = f"t{len(self.ops)}"
        return self.call(
            name, "t.default", [(a,)], self.ops[a]["shape"][::-1], view=1, alias_of=a, **columns
        )

    def update(self, parameter: int, gradient: int) -> int:
        """What writes a parameter."""
        one = self.ops[parameter]
        return self.call(
            f"update.{one['name']}",
            "add_.Tensor",
            [(parameter,), (gradient,)],
            one["shape"],
            alias_of=parameter,
            output_bytes=0,
            phase="o",
            colocation=one["colocation"],
        )

    def _add(self, name: str, kind: str, shape: Sequence[int], args: Any, **columns: Any) -> int:
        self.ops.append({"name": name, "kind": kind, "shape": tuple(shape), "args": args} | columns)
        return len(self.ops) - 1

    def graph(self, **meta: Any) -> lm.OpGraph:
        """The graph."""
        usual = {"phase": "f", "colocation": "", "alias_of": -1}
        names = ("name", "kind", "args", "phase", "colocation", "alias_of", "view")
        names += ("flops", "bytes_accessed", "output_bytes", "param_bytes")
        columns = {name: [one.get(name, usual.get(name, 0)) for one in self.ops] for name in names}
        output = [f"f32[{','.join(map(str, one['shape']))}]" for one in self.ops]
        src, dst = map(list, zip(*self.edges, strict=True))
        size = [4 * int(np.prod(self.ops[op]["shape"])) for op in src]
        edges = {"src": src, "dst": dst, "tensor": src, "bytes": size}
        return lm.OpGraph(columns | {"output": output}, edges, name="called", meta=meta)


def mlp(rows: int = 64, width: int = 128, inner: int = 512) -> lm.OpGraph:
    """Two products with a GELU between them, backwards too, between elementwise ops."""
    c = Calls()
    w1 = c.placeholder("w1", "parameter", width, inner, colocation="w1")
    w2 = c.placeholder("w2", "parameter", inner, width, colocation="w2")
    given = c.placeholder("x", "input", rows, width)
    x = c.call("before", "tanh.default", [(given,)], (rows, width))
    u = c.product("up", x, w1)
    h = c.call("gelu", "gelu.default", [(u,)], (rows, inner))
    y = c.product("down", h, w2)
    dy = c.call("after", "tanh.default", [(y,)], (rows, width), phase="b")
    dh = c.product("dh", dy, c.transposed(w2, phase="b"), phase="b")
    dw2 = c.product("dw2", c.transposed(h, phase="b"), dy, phase="b")
    du = c.call("du", "gelu_backward.default", [(dh,), (u,)], (rows, inner), phase="b")
    dx = c.product("dx", du, c.transposed(w1, phase="b"), phase="b")
    dw1 = c.product("dw1", c.transposed(x, phase="b"), du, phase="b")
    c.call("end", "tanh.default", [(dx,)], (rows, width), phase="b")
    c.update(w1, dw1)
    c.update(w2, dw2)
    return c.graph(batch=rows)


def chain(layers: int = 6, rows: int = 64, width: int = 64) -> lm.OpGraph:
    """Products one after another, backwards too, with an update for each weight."""
    c = Calls()
    w = [
        c.placeholder(f"w{i}", "parameter", width, width, colocation=f"w{i}") for i in range(layers)
    ]
    y = [c.placeholder("x", "input", rows, width)]
    for i in range(layers):
        y.append(c.product(f"y{i}", y[-1], w[i]))
    dy, dw = c.call("loss", "tanh.default", [(y[-1],)], (rows, width), phase="b"), {}
    for i in reversed(range(layers)):
        dw[i] = c.product(f"dw{i}", c.transposed(y[i], phase="b"), dy, phase="b")
        if i:
            dy = c.product(f"dy{i}", dy, c.transposed(w[i], phase="b"), phase="b")
    for i in range(layers):
        c.update(w[i], dw[i])
    return c.graph(batch=rows)
