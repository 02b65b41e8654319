"""Ops that have bodies: If, Loop, Scan, and kinds of other domains. One op stands for all of it.

Its work, launches and memory are those of the ops in its bodies, by these rules:

* An If takes the branch that its condition says. Where that is known only at run time, it takes
  the branch of more FLOPs; of equal FLOPs, that of more bytes.
* A Loop runs its body as often as its limit says, or less often where its condition can be computed
  (:mod:`~loadmaster.readers.onnx.trips`). A Scan runs it as often as its inputs are long.
* A body counts once where nobody knows how often it runs.

What was assumed is noted.
"""

from __future__ import annotations

from collections import ChainMap, Counter
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from loadmaster.base.errors import InputError
from loadmaster.readers.onnx.costs import is_view
from loadmaster.readers.onnx.nodes import (
    bodies,
    data_of,
    declared_dims,
    from_initializer,
    from_type,
    in_order,
    initializer_name,
    initializers,
    lookup,
    node_name,
    of_any_content,
    values_read,
)
from loadmaster.readers.onnx.trips import trips_of
from loadmaster.readers.shared.formulas import Cost
from loadmaster.readers.shared.ops import Op, Tensor


@dataclass(frozen=True, slots=True)
class BodyRun:
    """Runs of bodies.

    Attributes
    ----------
    cost : Cost
    outs : list of Tensor
        What the op hands out.
    workspace : int
        Bytes of values inside, at the most at one time.
    """

    cost: Cost
    outs: list[Tensor]
    workspace: int = 0


@dataclass(frozen=True, slots=True)
class CostedNode:
    """A node as costed: its op with output tensors known as far as they can be, its cost, and the
    bytes that it needs while it runs.
    """

    op: Op
    cost: Cost
    workspace: int = 0


class Walk(Protocol):
    """The walk through nodes that bodies are part of."""

    onnx: Any

    @property
    def opsets(self) -> Mapping[str, int]:
        """Versions of the opsets by domain."""

    def declare(self, graph: Any) -> None:
        """Remembers the shapes that the file gives for the values of a graph."""

    def visit(self, node: Any, known: MutableMapping[str, Tensor], name: str) -> CostedNode:
        """Costs a node, and puts its outputs among the known values."""


class ControlFlow:
    """Runs of the bodies of ops, as a walk meets them, and how often each rule was used."""

    def __init__(self, walk: Walk) -> None:
        self._walk = walk
        #: How often each assumption was made, in words.
        self.assumed: Counter[str] = Counter()

    def rule(self, kind: str) -> Callable[[Op, Mapping[str, Tensor]], BodyRun] | None:
        """The rule of a kind of control flow; None for other kinds."""
        # Before opset 9 a Scan had a batch dimension: rare enough to count its body once.
        scan = self._scan if self._walk.opsets[""] >= 9 else None
        return {"If": self._if, "Loop": self._loop, "Scan": scan}.get(kind)

    def once(self, node: Any, known: Mapping[str, Tensor]) -> BodyRun:
        """One run of each body of a node of another kind."""
        total, workspace = Cost(), 0
        for graph in bodies(node):
            self.assumed[f"{node.op_type}, its body once"] += 1
            run, _ = self._body(graph, known, [None] * len(graph.input))
            total, workspace = total + run.cost, max(workspace, run.workspace)
        return BodyRun(total, [], workspace)

    def _body(
        self, graph: Any, known: Mapping[str, Tensor], inputs: Sequence[Tensor | None]
    ) -> tuple[BodyRun, Mapping[str, Tensor]]:
        """One run of a body, and its values."""
        scope: MutableMapping[str, Tensor] = ChainMap({}, known)  # type: ignore[arg-type]
        self._walk.declare(graph)
        scope.update(
            (initializer_name(i), from_initializer(self._walk.onnx, i)) for i in initializers(graph)
        )
        for declared, tensor in zip(graph.input, inputs, strict=False):
            fallback = from_type(declared.type, declared_dims(declared.type))
            scope[declared.name] = fallback if tensor is None else tensor
        nodes = in_order(graph)
        ran = [self._walk.visit(node, scope, node_name(node, i)) for i, node in enumerate(nodes)]
        outs = []
        for output in graph.output:
            tensor = lookup(output.name, scope, graph.name)
            if tensor is None:
                raise InputError(f"the graph {graph.name!r} inside a node has an unnamed output")
            outs.append(tensor)
        cost = sum((one.cost for one in ran), Cost())
        return BodyRun(cost, outs, _peak(nodes, ran, {o.name for o in graph.output})), scope

    def _if(self, op: Op, known: Mapping[str, Tensor]) -> BodyRun:
        condition = data_of(op.ins, 0)
        branches = [op.attrs["then_branch"], op.attrs["else_branch"]]
        if condition is not None:
            return self._body(branches[0 if condition.all() else 1], known, ())[0]
        self.assumed["If, its larger branch"] += 1
        runs, refused = [], []
        for graph in branches:
            try:
                runs.append(self._body(graph, known, ())[0])
            except InputError as error:  # never taken with these shapes, or it could not run
                refused.append(error)
        if not runs:
            raise refused[0]
        larger = max(runs, key=lambda run: (run.cost.flops, run.cost.bytes))
        return replace(larger, outs=of_any_content(larger.outs))

    def _loop(self, op: Op, known: Mapping[str, Tensor]) -> BodyRun:
        body = op.attrs["body"]
        carried = of_any_content(op.ins[2:])
        index, condition = Tensor("i64", ()), Tensor("b8", ())
        run, values = self._body(body, known, [index, condition, *carried])
        trips = trips_of(self._walk.onnx, self._walk.opsets, op, values)
        self.assumed[f"Loop, its body {'once' if trips is None else f'{trips} times'}"] += 1
        after = [_agree(a, b) for a, b in zip(carried, run.outs[1:], strict=False)]
        stacked = [_stack(t, trips, 0) for t in run.outs[1 + len(carried) :]]
        return BodyRun(_times(run.cost, trips), after + stacked, run.workspace)

    def _scan(self, op: Op, known: Mapping[str, Tensor]) -> BodyRun:
        n_scanned = int(op.attrs["num_scan_inputs"])
        n_states = len(op.ins) - n_scanned
        ins = of_any_content(op.ins)
        states, scanned = ins[:n_states], ins[n_states:]
        axes = op.attrs.get("scan_input_axes") or [0] * n_scanned
        pairs = list(zip(scanned, axes, strict=False))
        trips = next((t.shape[a] for t, a in pairs if t.shape and t.shape[a] is not None), None)
        if trips is None:
            self.assumed["Scan, its body once"] += 1
        slices = [_without(t, axis) for t, axis in pairs]
        run, _ = self._body(op.attrs["body"], known, [*states, *slices])
        out_axes = op.attrs.get("scan_output_axes") or [0] * (len(run.outs) - n_states)
        pairs = list(zip(run.outs[n_states:], out_axes, strict=False))
        outs = of_any_content(run.outs[:n_states]) + [_stack(t, trips, a) for t, a in pairs]
        return BodyRun(_times(run.cost, trips), outs, run.workspace)


def _times(cost: Cost, trips: int | None) -> Cost:
    return cost if trips is None else cost.times(trips)


def _peak(nodes: Sequence[Any], ran: Sequence[CostedNode], handed_out: set[str]) -> int:
    """Bytes that the values of a body and the workspaces of its ops hold, at the most at one time.

    A value holds its bytes from the op that makes it to the last that reads it or a view of it.
    Constants and what the body hands out count elsewhere.
    """
    size: dict[str, int] = {}
    owner: dict[str, str] = {}
    last: dict[str, int] = {}
    for at, (node, one) in enumerate(zip(nodes, ran, strict=True)):
        for value in values_read(node):
            if value in owner:
                last[owner[value]] = at
        if one.op.kind == "Constant":
            continue
        view = is_view(one.op) and bool(node.input) and owner.get(node.input[0])
        for value, tensor in zip(node.output, one.op.outs, strict=True):
            if tensor is not None:
                owner[value] = view or value
                size.setdefault(owner[value], tensor.nbytes or 0)
                last.setdefault(owner[value], at)
    for value in handed_out & owner.keys():
        size[owner[value]] = 0
    ends: dict[int, int] = Counter()
    for value, at in last.items():
        ends[at] += size[value]
    peak = alive = 0
    for at, (node, one) in enumerate(zip(nodes, ran, strict=True)):
        alive += sum(size[value] for value in node.output if owner.get(value) == value)
        peak = max(peak, alive + one.workspace)
        alive -= ends[at]
    return peak


def _agree(a: Tensor, b: Tensor) -> Tensor:
    """A value a loop carries: dimensions that change from run to run are unknown."""
    if a.shape is None or b.shape is None or len(a.shape) != len(b.shape):
        return Tensor(b.dtype or a.dtype, other=b.other)
    pairs = zip(a.shape, b.shape, strict=True)
    return Tensor(b.dtype or a.dtype, tuple(x if x == y else None for x, y in pairs))


def _stack(tensor: Tensor, count: int | None, axis: int) -> Tensor:
    """``count`` copies of a value along a new axis."""
    if tensor.shape is None:
        return Tensor(tensor.dtype)
    at = axis if axis >= 0 else axis + len(tensor.shape) + 1
    return Tensor(tensor.dtype, (*tensor.shape[:at], count, *tensor.shape[at:]))


def _without(tensor: Tensor, axis: int) -> Tensor:
    """One slice of a value along an axis, which goes."""
    if tensor.shape is None:
        return Tensor(tensor.dtype)
    at = axis if axis >= 0 else axis + len(tensor.shape)
    return Tensor(tensor.dtype, (*tensor.shape[:at], *tensor.shape[at + 1 :]))
