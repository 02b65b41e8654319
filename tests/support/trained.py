"""Linear layers that are trained, as a graph, and what its ops compute: numpy, a few lines."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

import loadmaster as lm
from loadmaster.transforms import Program

RATE, MOMENTUM = 0.1, 0.5


def linears(widths: Sequence[int], batch: int, *, train: bool = True, **meta) -> lm.OpGraph:
    """Products of ``batch`` rows with weights [widths[i], widths[i + 1]], float32.

    In training the loss is half the sum of squares, and SGD has momentum: each update writes its
    parameter and its slot in place.
    """
    ops: list[dict] = []
    edges: list[tuple] = []

    def op(name, kind, shape, reads=(), flops=0, **columns):
        size = 4 * int(np.prod(shape))
        stays = kind in ("parameter", "buffer")
        read = sum(4 * int(np.prod(ops[r]["shape"])) for r in reads)
        runs = {} if stays or kind == "input" else {"flops": flops, "bytes_accessed": size + read}
        own = {"output_bytes": 0 if stays else size, "param_bytes": size if stays else 0}
        ops.append({"name": name, "kind": kind, "shape": shape} | own | runs | columns)
        at = len(ops) - 1
        edges.extend((r, at, r, 4 * int(np.prod(ops[r]["shape"]))) for r in reads)
        return at

    n = len(widths) - 1
    y = [op("x", "input", (batch, widths[0]))]
    shapes = [(widths[i], widths[i + 1]) for i in range(n)]
    w = [op(f"w{i}", "parameter", s, colocation=f"w{i}" * train) for i, s in enumerate(shapes)]
    slots = [op(f"m{i}", "buffer", s, colocation=f"w{i}") for i, s in enumerate(shapes) if train]
    for i, (a, b) in enumerate(shapes):
        y.append(op(f"y{i}", "aten.mm", (batch, b), (y[-1], w[i]), 2 * batch * a * b))
    if train:
        dy, dw = op("loss", "aten.mul", (batch, widths[-1]), (y[-1],), phase="b"), {}
        for i in reversed(range(n)):
            work = 2 * batch * shapes[i][0] * shapes[i][1]
            dw[i] = op(f"dw{i}", "aten.mm", shapes[i], (y[i], dy), work, phase="b")
            if i:
                dy = op(f"dy{i}", "aten.mm", (batch, widths[i]), (dy, w[i]), work, phase="b")
        for i in range(n):
            reads = (w[i], slots[i], dw[i])
            columns = {"alias_of": w[i], "colocation": f"w{i}", "phase": "o", "output_bytes": 0}
            op(f"update{i}", "aten.addcmul_", shapes[i], reads, 3, **columns)
    texts = {
        column: [one.get(column, "f" if column == "phase" else "") for one in ops]
        for column in ("name", "kind", "phase", "colocation")
    }
    numbers = {
        column: [one.get(column, -1 if column == "alias_of" else 0) for one in ops]
        for column in ("flops", "bytes_accessed", "output_bytes", "param_bytes", "alias_of")
    }
    output = [f"f32[{','.join(map(str, one['shape']))}]" for one in ops]
    columns = zip(*edges, strict=True)
    return lm.OpGraph(
        texts | numbers | {"output": output},
        dict(zip(("src", "dst", "tensor", "bytes"), map(list, columns), strict=True)),
        name="linears",
        meta={"batch": batch} | meta,
    )


def step(
    program: Program, x: Sequence[np.ndarray], weights: Sequence[np.ndarray]
) -> dict[tuple[str, int], np.ndarray]:
    """A step of a program of :func:`linears`: weights by name and copy.

    Copy ``replica * m + micro`` works on the part of ``x`` with this number.

    Collectives sum, or hand out, whole tensors; which tensor an edge carries is told by its bytes.
    """
    graph = program.graph
    replica = _copies(program)
    data = graph.tensor >= 0
    into = [np.flatnonzero((graph.dst == op) & data).tolist() for op in range(graph.n_ops)]
    carried: dict[int, np.ndarray] = {}  # By tensor.
    state: dict[tuple[str, int], np.ndarray] = {}
    done: set[int] = set()
    while len(done) < graph.n_ops:
        before = len(done)
        for op in set(range(graph.n_ops)) - done:
            label = graph.collectives[op]
            members = [i for i in range(graph.n_ops) if label and graph.collectives[i] == label]
            reads = [e for i in members or [op] for e in into[i]]
            if any(int(graph.src[e]) not in done for e in reads):
                continue
            if members:
                _together(graph, label, members, into, carried, replica, state)
                done.update(members)
                continue
            given = [carried.get(int(graph.tensor[e])) for e in reads]
            _alone(program, (op, replica[op]), given, x, weights, state)
            for e in np.flatnonzero((graph.src == op) & data).tolist():
                key = program.source.names[program.serves[op]], replica[op]
                carried[int(graph.tensor[e])] = state[key]
            done.add(op)
        assert len(done) > before, "the graph waits for itself"
    return {key: value for key, value in state.items() if key[0].startswith("w")}


def _copies(program: Program) -> list[int]:
    """The number of each op's copy."""
    m = int(program.micro.max()) + 1 or 1
    return (np.maximum(program.replica, 0) * m + np.maximum(program.micro, 0)).tolist()


def _alone(program, at, reads, x, weights, state) -> None:
    op, r = at
    name = program.source.names[program.serves[op]]
    number = int("".join(filter(str.isdigit, name)) or 0)
    if program.graph.kinds[op] == "aggregate":
        found = reads[0] + reads[1]
    elif name == "x":
        found = x[r]
    elif name[0] in "wm" and name[1:].isdigit():
        found = weights[number].copy() * (name[0] == "w")
    elif name == "loss":
        found = reads[0]
    elif name.startswith("dw"):
        found = reads[0].T @ reads[1]
    elif name.startswith("dy"):
        found = reads[0] @ reads[1].T
    elif name.startswith("update"):
        weight, slot, gradient = reads
        found = weight - RATE * (MOMENTUM * slot + gradient)
        state[f"w{number}", r] = found
    else:
        found = reads[0] @ reads[1]
    state[name, r] = found


def _together(graph, label, members, into, carried, replica, state) -> None:
    """The members of a collective: sums by bytes, or parameters handed to every replica."""
    if label.startswith("all_gather"):
        for e in (e for i in members for e in into[i]):
            name = f"w{graph.names[graph.src[e]].partition('@')[0].removeprefix('update')}"
            for r in {replica[i] for i in members}:
                state[name, r] = carried[int(graph.tensor[e])]
        return
    sums: dict[int, np.ndarray] = {}
    for e in (e for i in members for e in into[i]):
        size = int(graph.bytes[e])
        sums[size] = sums.get(size, 0) + carried[int(graph.tensor[e])]
    for e in np.flatnonzero(np.isin(graph.src, members) & (graph.tensor >= 0)).tolist():
        carried[int(graph.tensor[e])] = sums[int(graph.bytes[e])]
