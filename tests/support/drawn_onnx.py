"""ONNX models that are drawn: ops of opsets 7 to 21 in the form that each opset has, stored inputs,
sizes that are computed from sizes, control flow, and quantized ops of ONNX Runtime.

Every model can run. What an op makes is known as it is drawn, so that what reads it fits.
"""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, ValueInfoProto, helper, numpy_helper

Shape = tuple[int, ...]
_TYPES = {"f32": TensorProto.FLOAT, "i64": TensorProto.INT64, "b8": TensorProto.BOOL,
          "u8": TensorProto.UINT8}  # fmt: skip
_ARRAYS = {"f32": np.float32, "i64": np.int64, "b8": np.bool_, "u8": np.uint8}
#: Elements that a value has at most.
_MOST = 4000
_UNARY = "Relu Neg Abs Exp Sigmoid Tanh Sqrt Floor Identity Softplus LeakyRelu Elu".split()  # noqa: SIM905
_REDUCE = "ReduceMean ReduceMax ReduceMin ReduceProd ReduceL2 ReduceSumSquare ReduceSum".split()  # noqa: SIM905


class DrawnModel:
    """A model as it grows.

    Attributes
    ----------
    random : Random
    opset : int
    values : dict of str to (str, tuple of int or None)
        Element type and sizes of what ops may read; None: sizes that depend on what is fed.
    """

    def __init__(self, random: Random, opset: int) -> None:
        self.random, self.opset = random, opset
        self.nodes: list[Any] = []
        self.stored: list[Any] = []
        self.inputs: list[ValueInfoProto] = []
        self.values: dict[str, tuple[str, Shape | None]] = {}
        self._count = 0

    # -- parts ----------------------------------------------------------------------------------

    def name(self) -> str:
        self._count += 1
        return f"v{self._count}"

    def input(self, dtype: str, shape: Shape) -> str:
        name = self.name()
        self.inputs.append(helper.make_tensor_value_info(name, _TYPES[dtype], shape))
        self.values[name] = dtype, shape
        return name

    def const(self, array: Any, dtype: str = "i64") -> str:
        """A stored value: an initializer or a Constant, which nothing else reads."""
        name, data = self.name(), numpy_helper.from_array(np.array(array, _ARRAYS[dtype]))
        if self.random.random() < 0.5:
            data.name = name
            self.stored.append(data)
        else:
            self.nodes.append(helper.make_node("Constant", [], [name], name, value=data))
        return name

    def weight(self, *shape: int) -> str:
        seed = self.random.randrange(999)
        return self.const(np.random.default_rng(seed).uniform(-1, 1, shape), "f32")

    def add(
        self, kind: str, ins: list[str], *outs: Any, domain: str = "", **attributes: Any
    ) -> str:
        """A node; ``outs`` are its values, as ``values`` has them. The name of the first."""
        names = [self.name() for _ in outs]
        self.nodes.append(helper.make_node(kind, ins, names, names[0], domain=domain, **attributes))
        self.values.update(zip(names, outs, strict=True))
        return names[0]

    def pick(self, dtype: str = "f32", ranks: Any = range(1, 6)) -> tuple[str, Shape]:
        """A value that there is and holds something, of one of these ranks, or a new input."""
        fits = [(n, s) for n, (t, s) in self.values.items() if t == dtype and s is not None
                and len(s) in ranks and 0 not in s]  # fmt: skip
        if fits and self.random.random() < 0.95:
            return self.random.choice(fits[-6:])
        shape = tuple(self.random.randint(1, 5) for _ in range(self.random.choice(list(ranks))))
        return self.input(dtype, shape), shape

    # -- ops ------------------------------------------------------------------------------------

    def unary(self) -> None:
        x, shape = self.pick()
        self.add(self.random.choice(_UNARY), [x], ("f32", shape))

    def binary(self) -> None:
        x, shape = self.pick()
        other = tuple(1 if self.random.random() < 0.3 else d for d in shape)
        other = other[self.random.randint(0, len(shape)) :]
        kind = self.random.choice(("Add", "Mul", "Sub", "Div", "Pow"))
        pair = [x, self.weight(*other)]
        self.random.shuffle(pair)
        self.add(kind, pair, ("f32", shape))

    def many(self) -> None:
        """Few ops that read many stored inputs."""
        x, shape = self.pick()
        n = self.random.randint(0, 7)
        kind = self.random.choice(("Sum", "Max", "Min", "Mean"))
        self.add(kind, [x, *(self.weight(*shape) for _ in range(n))], ("f32", shape))

    def compare(self) -> None:
        x, shape = self.pick()
        mask = self.add("Greater", [x, self.weight(*shape)], ("b8", shape))
        if self.opset >= 9:
            self.add("Where", [mask, x, self.weight(1)], ("f32", shape))

    def matmul(self) -> None:
        x, shape = self.pick(ranks=(1, 2, 3, 4))
        n = self.random.randint(1, 5)
        self.add("MatMul", [x, self.weight(shape[-1], n)], ("f32", (*shape[:-1], n)))

    def gemm(self) -> None:
        x, shape = self.pick(ranks=(2,))
        n, transposed = self.random.randint(1, 5), self.random.random() < 0.5
        w = self.weight(n, shape[1]) if transposed else self.weight(shape[1], n)
        ins = [x, w, self.weight(n)] if self.opset < 11 or self.random.random() < 0.5 else [x, w]
        self.add("Gemm", ins, ("f32", (shape[0], n)), transB=int(transposed))

    def conv(self) -> None:
        x, shape = self.pick(ranks=(3, 4))
        out, space = self.random.randint(1, 4), shape[2:]
        kernel = [self.random.randint(1, 3) for _ in space]
        stride = [self.random.randint(1, 2) for _ in space]
        ins = [x, self.weight(out, shape[1], *kernel)]
        if self.random.random() < 0.5:
            ins.append(self.weight(out))
        made = [(d + 2 - k) // s + 1 for d, k, s in zip(space, kernel, stride, strict=True)]
        attributes = {"strides": stride, "pads": [1] * 2 * len(space)}
        self.add("Conv", ins, ("f32", (shape[0], out, *made)), **attributes)

    def pool(self) -> None:
        x, shape = self.pick(ranks=(3, 4))
        kind = self.random.choice(("MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"))
        if kind.startswith("Global"):
            self.add(kind, [x], ("f32", (*shape[:2], *(1 for _ in shape[2:]))))
            return
        made = [(d + 2 - 2) // 2 + 1 for d in shape[2:]]
        n = len(made)
        attributes = {"kernel_shape": [2] * n, "strides": [2] * n, "pads": [1] * 2 * n}
        self.add(kind, [x], ("f32", (*shape[:2], *made)), **attributes)

    def norm(self) -> None:
        x, shape = self.pick(ranks=(2, 3, 4))
        if self.opset >= 17 and self.random.random() < 0.5:
            self.add("LayerNormalization", [x, self.weight(shape[-1])], ("f32", shape))
            return
        four = [self.const(np.ones(shape[1]), "f32") for _ in range(4)]
        self.add("BatchNormalization", [x, *four], ("f32", shape))

    def recurrent(self) -> None:
        x, (steps, batch, width) = self.pick(ranks=(3,))
        kind, hidden = self.random.choice(("LSTM", "GRU", "RNN")), self.random.randint(1, 4)
        gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[kind] * hidden
        state = ("f32", (1, batch, hidden))
        outs = [("f32", (steps, 1, batch, hidden)), *[state] * (2 if kind == "LSTM" else 1)]
        ins = [x, self.weight(1, gates, width), self.weight(1, gates, hidden)]
        self.add(kind, ins, *outs, hidden_size=hidden)

    def reduce(self) -> None:
        x, shape = self.pick()
        kind, keep = self.random.choice(_REDUCE), self.random.random() < 0.5
        axes = sorted(self.random.sample(range(len(shape)), self.random.randint(1, len(shape))))
        made = [1 if i in axes else d for i, d in enumerate(shape) if keep or i not in axes]
        said = [
            a - len(shape) if self.opset >= 11 and self.random.random() < 0.5 else a for a in axes
        ]
        at, attributes = self.axes(said, 13 if kind == "ReduceSum" else 18)
        self.add(kind, [x, *at], ("f32", tuple(made)), keepdims=int(keep), **attributes)

    def axes(self, axes: list[int], since: int) -> tuple[list[str], dict[str, Any]]:
        """Axes as an input from an opset on, before it as an attribute."""
        return ([self.const(axes)], {}) if self.opset >= since else ([], {"axes": axes})

    def arg(self) -> None:
        x, shape = self.pick()
        axis = self.random.randrange(len(shape))
        made = tuple(d for i, d in enumerate(shape) if i != axis)
        self.add("ArgMax", [x], ("i64", made), axis=axis, keepdims=0)

    def transpose(self) -> None:
        x, shape = self.pick()
        perm = self.random.sample(range(len(shape)), len(shape))
        self.add("Transpose", [x], ("f32", tuple(shape[i] for i in perm)), perm=perm)

    def squeeze(self) -> None:
        x, shape = self.pick(ranks=range(1, 5))
        at = self.random.randint(0, len(shape))
        ins, attributes = self.axes([at], 13)
        longer = (*shape[:at], 1, *shape[at:])
        y = self.add("Unsqueeze", [x, *ins], ("f32", longer), **attributes)
        if self.random.random() < 0.5:
            ins, attributes = self.axes([at], 13)
            self.add("Squeeze", [y, *ins], ("f32", shape), **attributes)

    def concat(self) -> None:
        x, shape = self.pick()
        axis = self.random.randrange(len(shape))
        more = [self.random.randint(1, 4) for _ in range(self.random.randint(0, 3))]
        parts = [self.weight(*shape[:axis], n, *shape[axis + 1 :]) for n in more]
        made = (*shape[:axis], shape[axis] + sum(more), *shape[axis + 1 :])
        self.add("Concat", [x, *parts], ("f32", made), axis=axis)

    def split(self) -> None:
        x, shape = self.pick()
        axis = max(range(len(shape)), key=shape.__getitem__)
        first = self.random.randint(0, shape[axis])
        sizes = [first, shape[axis] - first]
        if 0 in sizes:
            return
        outs = [("f32", (*shape[:axis], n, *shape[axis + 1 :])) for n in sizes]
        said = {} if self.opset >= 13 else {"split": sizes}
        ins = [self.const(sizes)] if self.opset >= 13 else []
        self.add("Split", [x, *ins], *outs, axis=axis, **said)

    def slice(self) -> None:
        x, shape = self.pick()
        axis = self.random.randrange(len(shape))
        start = self.random.randrange(shape[axis])
        end = self.random.choice((shape[axis], 2**31, self.random.randint(start + 1, shape[axis])))
        made = (*shape[:axis], min(end, shape[axis]) - start, *shape[axis + 1 :])
        if self.opset < 10:
            said = {"starts": [start], "ends": [end], "axes": [axis]}
            self.add("Slice", [x], ("f32", made), **said)
        else:
            ins = [self.const([n]) for n in (start, end, axis)]
            self.add("Slice", [x, *ins], ("f32", made))

    def pad(self) -> None:
        x, shape = self.pick()
        pads = [self.random.randint(0, 2) for _ in range(2 * len(shape))]
        made = tuple(d + pads[i] + pads[i + len(shape)] for i, d in enumerate(shape))
        if self.opset < 11:
            self.add("Pad", [x], ("f32", made), pads=pads)
        else:
            self.add("Pad", [x, self.const(pads)], ("f32", made))

    def clip(self) -> None:
        x, shape = self.pick()
        if self.opset < 11:
            self.add("Clip", [x], ("f32", shape), min=0.0, max=1.0)
        else:
            self.add("Clip", [x, self.const(0.0, "f32")], ("f32", shape))

    def softmax(self) -> None:
        x, shape = self.pick()
        axis = self.random.randrange(len(shape))
        self.add(self.random.choice(("Softmax", "LogSoftmax")), [x], ("f32", shape), axis=axis)

    def gather(self) -> None:
        x, shape = self.pick()
        axis = self.random.randrange(len(shape))
        picked = tuple(self.random.randint(1, 3) for _ in range(self.random.randint(0, 2)))
        index = self.const(np.zeros(picked, np.int64))
        self.add(
            "Gather", [x, index], ("f32", (*shape[:axis], *picked, *shape[axis + 1 :])), axis=axis
        )

    def embed(self) -> None:
        """Numbers that are fed look rows up."""
        shape = tuple(self.random.randint(1, 4) for _ in range(self.random.randint(1, 2)))
        width = self.random.randint(1, 6)
        self.add(
            "Gather", [self.weight(9, width), self.input("i64", shape)], ("f32", (*shape, width))
        )

    def tile(self) -> None:
        x, shape = self.pick(ranks=range(1, 4))
        times = [self.random.randint(1, 2) for _ in shape]
        made = tuple(a * b for a, b in zip(shape, times, strict=True))
        self.add("Tile", [x, self.const(times)], ("f32", made))

    def top(self) -> None:
        x, shape = self.pick()
        k = self.random.randint(1, shape[-1])
        outs = [(t, (*shape[:-1], k)) for t in ("f32", "i64")]
        if self.opset < 10:
            self.add("TopK", [x], *outs, k=k)
        else:
            self.add("TopK", [x, self.const([k])], *outs)

    def flatten(self) -> None:
        x, shape = self.pick()
        axis = self.random.randint(0, len(shape))
        made = (int(np.prod(shape[:axis])), int(np.prod(shape[axis:])))
        self.add("Flatten", [x], ("f32", made), axis=axis)

    def resize(self) -> None:
        x, shape = self.pick(ranks=(4,))
        made, scales = (*shape[:2], 2 * shape[2], 2 * shape[3]), [1.0, 1.0, 2.0, 2.0]
        if self.opset < 9:
            self.add("Upsample", [x], ("f32", made), scales=scales)
        elif self.opset == 9:
            self.add("Upsample", [x, self.const(scales, "f32")], ("f32", made))
        elif self.opset == 10:
            self.add("Resize", [x, self.const(scales, "f32")], ("f32", made))
        else:
            roi = self.const(np.zeros(0), "f32")
            self.add("Resize", [x, roi, self.const(scales, "f32")], ("f32", made))

    def dropout(self) -> None:
        x, shape = self.pick()
        self.add("Dropout", [x], ("f32", shape))

    # -- sizes of sizes -------------------------------------------------------------------------

    def size(self, x: str, shape: Shape, axis: int) -> str:
        """One of the sizes of a value, as a list of one number, as exporters write it."""
        at = self.add("Shape", [x], ("i64", None))
        if self.random.random() < 0.3:
            said = {"starts": [axis], "ends": [axis + 1], "axes": [0]}
            if self.opset < 10:
                return self.add("Slice", [at], ("i64", None), **said)
            ins = [self.const([n]) for n in (axis, axis + 1, 0)]
            return self.add("Slice", [at, *ins], ("i64", None))
        if self.opset >= 15 and self.random.random() < 0.3:
            return self.add("Shape", [x], ("i64", None), start=axis, end=axis + 1)
        one = self.add("Gather", [at, self.const(axis)], ("i64", None), axis=0)
        if self.random.random() < 0.4:
            kind, number = self.random.choice((("Mul", 1), ("Add", 0), ("Sub", 0), ("Div", 1)))
            one = self.add(kind, [one, self.const(number)], ("i64", None))
        if self.random.random() < 0.3:
            wide = self.add("Cast", [one], ("f32", None), to=TensorProto.FLOAT)
            down = self.add("Floor", [wide], ("f32", None))
            one = self.add("Cast", [down], ("i64", None), to=TensorProto.INT64)
        ins, attributes = self.axes([0], 13)
        return self.add("Unsqueeze", [one, *ins], ("i64", None), **attributes)

    def sizes(self, x: str, shape: Shape) -> str:
        """All sizes of a value, some of them computed."""
        parts = [
            self.size(x, shape, axis) if self.random.random() < 0.6 else self.const([d])
            for axis, d in enumerate(shape)
        ]
        return self.add("Concat", parts, ("i64", None), axis=0)

    def reshape(self) -> None:
        x, shape = self.pick()
        keep = self.random.randint(0, len(shape) - 1)
        first = [self.size(x, shape, axis) for axis in range(keep)]
        target = self.add("Concat", [*first, self.const([-1])], ("i64", None), axis=0)
        made = (*shape[:keep], int(np.prod(shape[keep:])))
        self.add("Reshape", [x, target], ("f32", made))

    def expand(self) -> None:
        x, shape = self.pick(ranks=range(1, 4))
        target = self.sizes(x, shape)
        if self.opset >= 9 and self.random.random() < 0.5:
            self.add("ConstantOfShape", [target], ("f32", shape))
        elif self.opset >= 8:
            self.add("Expand", [self.weight(*(1 for _ in shape)), target], ("f32", shape))

    def count(self) -> None:
        """Positions, as long as an axis is."""
        if self.opset < 11:
            return
        x, shape = self.pick()
        axis = self.random.randrange(len(shape))
        at = self.add("Shape", [x], ("i64", None))
        length = self.add("Gather", [at, self.const(axis)], ("i64", None), axis=0)
        made = ("i64", (shape[axis],))
        self.add("Range", [self.const(0), length, self.const(1)], made)

    def some(self) -> None:
        """What depends on what is fed, and ops behind it."""
        if self.opset < 9:
            return
        x, _ = self.pick()
        at = self.add("NonZero", [x], ("i64", None))
        self.add("Transpose", [at], ("i64", None))

    # -- control flow ---------------------------------------------------------------------------

    def branch(self) -> None:
        """Branches that read what is around them, and have weights of their own."""
        x, shape = self.pick()
        if self.random.random() < 0.3:
            condition = self.const(self.random.random() < 0.5, "b8")
        else:
            ins, attributes = self.axes(list(range(len(shape))), 13)
            total = self.add("ReduceSum", [x, *ins], ("f32", ()), keepdims=0, **attributes)
            condition = self.add("Greater", [total, self.const(0.0, "f32")], ("b8", ()))
        then, other = (self.body(x, shape, [], kind) for kind in ("Add", "Mul"))
        self.add("If", [condition], ("f32", shape), then_branch=then, else_branch=other)

    def body(self, x: str, shape: Shape, inputs: list[Any], kind: str, *first: str) -> Any:
        """A subgraph: an op on a value and a weight; ``first`` are outputs before its own."""
        w, out = self.name(), self.name()
        stored = numpy_helper.from_array(np.ones(shape, np.float32), w)
        nodes = [helper.make_node(kind, [x, w], [out], out)]
        outputs = [helper.make_tensor_value_info(out, TensorProto.FLOAT, shape)]
        for name in first:
            result = self.name()
            nodes.append(helper.make_node("Identity", [name], [result], result))
            outputs.insert(len(outputs) - 1, helper.make_empty_tensor_value_info(result))
        return helper.make_graph(nodes, "body", inputs, outputs, [stored])

    def loop(self) -> None:
        """A value that is carried, and one that is kept of each trip."""
        x, shape = self.pick(ranks=range(1, 4))
        trips, info = self.random.randint(0, 3), helper.make_tensor_value_info
        index, going, state = self.name(), self.name(), self.name()
        inputs = [info(index, TensorProto.INT64, ()), info(going, TensorProto.BOOL, ()),
                  info(state, TensorProto.FLOAT, shape)]  # fmt: skip
        body = self.body(state, shape, inputs, "Add", going, state)
        ins = [self.const(trips), self.const(True, "b8"), x]
        self.add("Loop", ins, ("f32", shape), ("f32", (trips, *shape)), body=body)

    def scan(self) -> None:
        if self.opset < 9:
            return
        x, shape = self.pick(ranks=range(2, 4))
        state, part = self.name(), self.name()
        inputs = [
            helper.make_tensor_value_info(n, TensorProto.FLOAT, shape[1:]) for n in (state, part)
        ]
        body = self.body(part, shape[1:], inputs, "Add", state)
        outs = ("f32", shape[1:]), ("f32", shape)
        self.add("Scan", [self.weight(*shape[1:]), x], *outs, body=body, num_scan_inputs=1)

    # -- quantized ------------------------------------------------------------------------------

    def quantized(self) -> None:
        """A convolution, a concatenation and a sum of bytes."""
        if self.opset < 10:
            return
        x, shape = self.pick(ranks=(4,))
        s = [self.const(0.1, "f32"), self.const(2, "u8")]
        q = self.add("QuantizeLinear", [x, *s], ("u8", shape))
        w = self.const(np.ones((3, shape[1], 1, 1)), "u8")
        made = (shape[0], 3, *shape[2:])
        q = self.add("QLinearConv", [q, *s, w, *s, *s], ("u8", made))
        both = (made[0], 6, *made[2:])
        q = self.add(
            "QLinearConcat", [*s, q, *s, q, *s], ("u8", both), domain="com.microsoft", axis=1
        )
        q = self.add("QLinearAdd", [q, *s, q, *s, *s], ("u8", both), domain="com.microsoft")
        self.add("DequantizeLinear", [q, *s], ("f32", both))

    # -- the model ------------------------------------------------------------------------------

    def model(self) -> ModelProto:
        """The model; all values of known sizes are outputs."""
        outputs = [
            name for node in self.nodes for name in node.output if node.op_type != "Constant"
        ]
        graph = helper.make_graph(
            self.nodes,
            "drawn",
            self.inputs,
            [helper.make_empty_tensor_value_info(name) for name in outputs],
            self.stored,
        )
        opsets = [helper.make_opsetid("", self.opset), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(
            graph, opset_imports=opsets, ir_version=8 if self.opset < 19 else 9
        )


_OPS = [
    DrawnModel.unary, DrawnModel.binary, DrawnModel.many, DrawnModel.compare, DrawnModel.matmul,
    DrawnModel.gemm, DrawnModel.conv, DrawnModel.pool, DrawnModel.norm, DrawnModel.recurrent,
    DrawnModel.reduce, DrawnModel.arg, DrawnModel.transpose, DrawnModel.squeeze, DrawnModel.concat,
    DrawnModel.split, DrawnModel.slice, DrawnModel.pad, DrawnModel.clip, DrawnModel.softmax,
    DrawnModel.gather, DrawnModel.embed, DrawnModel.tile, DrawnModel.top, DrawnModel.flatten,
    DrawnModel.resize, DrawnModel.dropout, DrawnModel.reshape, DrawnModel.reshape,
    DrawnModel.expand, DrawnModel.expand, DrawnModel.count, DrawnModel.some, DrawnModel.branch,
    DrawnModel.loop, DrawnModel.scan, DrawnModel.quantized,
]  # fmt: skip


def drawn_model(random: Random) -> DrawnModel:
    """Up to ten ops, or what goes with them."""
    drawn = DrawnModel(random, random.randint(7, 21))
    drawn.input("f32", tuple(random.randint(1, 6) for _ in range(random.randint(1, 4))))
    for _ in range(random.randint(1, 10)):
        random.choice(_OPS)(drawn)
        # Sizes double; a value that has grown is read no more.
        for name, (dtype, shape) in drawn.values.items():
            if shape is not None and (np.prod(shape, dtype=np.int64) > _MOST or len(shape) > 5):
                drawn.values[name] = dtype, None
    if not drawn.nodes:
        drawn.unary()
    return drawn
