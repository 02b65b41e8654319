"""A split rule fitted to an op: the axes along which the op's inputs and outputs are cut.

Shapes come from the ``output`` column. Where a rule does not fit an op, the reason is a text.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loadmaster.base.units import counted
from loadmaster.model.graph import OpGraph
from loadmaster.model.shapes import Shape, format_output, parse_output
from loadmaster.transforms import rules
from loadmaster.transforms.rules import Rule


@dataclass(frozen=True)
class Output:
    """An output of an op: its ``tensor`` id (-1: nothing reads it), ``bytes`` and ``shape``."""

    tensor: int
    bytes: int
    shape: Shape


@dataclass(frozen=True)
class Tensors:
    """The edges of an op, the tensors that it reads and those that it makes.

    Attributes
    ----------
    ids : int64 [n_edges]
        Tensor id per edge of the graph.
    entering, leaving : int64 columns
        Edges into and out of the op.
    reads : list of int
        Edges that carry data to the op, in the order of its arguments.
    shapes : list of Shape
        Of the tensors that these edges carry.
    makes : tuple of Output, or str
        The op's outputs, or the reason why they are unknown.
    """

    ids: NDArray[np.int64]
    entering: NDArray[np.intp]
    leaving: NDArray[np.intp]
    reads: list[int]
    shapes: list[Shape]
    makes: tuple[Output, ...] | str

    @classmethod
    def of(cls, graph: OpGraph, at: int) -> Tensors:
        ids = graph.src if graph.tensor is None else graph.tensor
        entering = np.flatnonzero(graph.dst == at)
        leaving = np.flatnonzero(graph.src == at)
        reads = [int(e) for e in entering if ids[e] >= 0]
        shapes = [_shape_on(graph, ids, e) for e in reads]
        return cls(ids, entering, leaving, reads, shapes, _outputs(graph, ids, at, leaving))


def _shape_on(graph: OpGraph, ids: NDArray[np.int64], edge: int) -> Shape:
    """The shape of what an edge carries."""
    source = int(graph.src[edge])
    if ";" not in graph.outputs[source]:
        return parse_output(graph.outputs[source])[0]
    made = _outputs(graph, ids, source, np.flatnonzero(graph.src == source))
    if not isinstance(made, str):
        for output in made:
            if output.tensor == ids[edge]:
                return output.shape
    return "", None


def _outputs(
    graph: OpGraph, ids: NDArray[np.int64], at: int, leaving: NDArray[np.intp]
) -> tuple[Output, ...] | str:
    """An op's outputs: shapes from its ``output`` column, paired with the tensors it sends."""
    shapes = parse_output(graph.outputs[at])
    data = leaving[ids[leaving] >= 0]
    tensors, first = np.unique(ids[data], return_index=True)
    sizes = graph.bytes[data[first]].tolist()
    if not len(tensors) and len(shapes) == 1:
        return (Output(-1, int(graph.output_bytes[at]), shapes[0]),)
    if len(tensors) != len(shapes):
        has = counted(len(shapes), "output")
        return f"it has {has} in {graph.outputs[at]!r} and sends {len(tensors)}"
    return tuple(
        Output(int(t), size, shape) for t, size, shape in zip(tensors, sizes, shapes, strict=True)
    )


@dataclass(frozen=True)
class Cut:
    """A rule that fits an op.

    Attributes
    ----------
    op : Tensors
    makes : tuple of Output
    size : int
        Length of the dimension.
    inputs : list of int or None
        The axis along which each input is sliced; None: every part reads the whole input.
    outputs : list of int or None
        The axis along which the parts of each output are concatenated; None: they are summed.
    """

    op: Tensors
    makes: tuple[Output, ...]
    size: int
    inputs: list[int | None]
    outputs: list[int | None]

    @property
    def joined(self) -> list[int]:
        """Outputs whose parts are joined; one without data is left out if others have data."""
        some = any(output.bytes for output in self.makes)
        return [j for j, output in enumerate(self.makes) if output.bytes or not some]


def bind(op: Tensors, rule: Rule) -> Cut | str:
    """Axes and size of a rule's dimension for an op, or why it does not fit."""
    if isinstance(op.makes, str):
        return op.makes
    if len(op.makes) > len(rule.outputs):
        return f"it has {counted(len(op.makes), 'output')}, the rule knows {len(rule.outputs)}"
    first = op.makes[0].shape[1]
    if rule.min_rank and (first is None or len(first) < rule.min_rank):
        return f"its output is {format_output([op.makes[0].shape]) or 'of unknown shape'}"
    for (a, i), (b, j) in rule.equal:
        if max(a, b) < len(op.shapes) and _size(op.shapes[a], i) != _size(op.shapes[b], j):
            return "its inputs do not agree in size, so it is grouped or of another kind"
    some = any(output.bytes for output in op.makes)
    outputs = [
        None if how == rules.SUM or (some and not output.bytes) else int(how)
        for how, output in zip(rule.outputs, op.makes, strict=False)
    ]
    size = _first_size(op, rule, outputs)
    if size is None:
        return "the shape of its output is unknown"
    for axis, output in zip(outputs, op.makes, strict=True):
        if axis is not None and _size(output.shape, axis) != size:
            return f"its output {format_output([output.shape])!r} is not {size} long on axis {axis}"
    inputs: list[int | None] = []
    for position, shape in enumerate(op.shapes):
        how = rule.input(position)
        found = _axis(how, shape, size, outputs[0], first)
        if isinstance(found, str):
            return f"input {position} is {format_output([shape]) or 'of unknown shape'}, {found}"
        inputs.append(found)
    if all(axis is None for axis in inputs):
        return "none of its inputs has that dimension"
    return Cut(op, op.makes, size, inputs, outputs)


def _first_size(op: Tensors, rule: Rule, outputs: list[int | None]) -> int | None:
    assert not isinstance(op.makes, str)
    for axis, output in zip(outputs, op.makes, strict=True):
        if axis is not None:
            return _size(output.shape, axis)
    for how, shape in zip(rule.inputs, op.shapes, strict=False):
        if isinstance(how, int):
            return _size(shape, how)
    return None


def _size(shape: Shape, axis: int) -> int | None:
    sizes = shape[1]
    return None if sizes is None or not -len(sizes) <= axis < len(sizes) else sizes[axis]


def _axis(
    how: rules.How, shape: Shape, size: int, output_axis: int | None, output: tuple[int, ...] | None
) -> int | str | None:
    """The axis an input is sliced along, None if whole, or what is wrong with it."""
    if how == rules.WHOLE:
        return None
    sizes = shape[1]
    if sizes is None:
        return "which does not say how to slice it"
    if how == rules.MATCH:
        return sizes.index(size) if size in sizes else f"with no axis {size} long"
    if how == rules.ALIGNED:
        assert output_axis is not None
        assert output is not None
        from_back = output_axis - len(output) if output_axis >= 0 else output_axis
        if -from_back > len(sizes) or sizes[from_back] == 1:
            return None
        how = from_back
    axis = int(how)
    return axis if _size(shape, axis) == size else f"not {size} long on axis {axis}"
