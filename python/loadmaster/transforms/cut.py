"""The dimensions of an op along which it can be split: the axes of its inputs and outputs.

Shapes come from the ``output`` column. Where an op has no dimensions, the reason is a text.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loadmaster.base.units import counted
from loadmaster.dimensions.calls import TENSORFLOW
from loadmaster.dimensions.whole_axes import NOTHING, axis_cuts
from loadmaster.model.arguments import Call, renumbered, tensors
from loadmaster.model.graph import OpGraph
from loadmaster.model.shapes import Shape, parse_output


@dataclass(frozen=True)
class OpOutput:
    """An output of an op: its ``tensor`` id (-1: nothing reads it), ``bytes`` and ``shape``."""

    tensor: int
    bytes: int
    shape: Shape


@dataclass(frozen=True)
class OpTensors:
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
    makes : tuple of OpOutput, or str
        The op's outputs, or the reason why they are unknown.
    """

    ids: NDArray[np.int64]
    entering: NDArray[np.intp]
    leaving: NDArray[np.intp]
    reads: list[int]
    shapes: list[Shape]
    makes: tuple[OpOutput, ...] | str

    @classmethod
    def of(cls, graph: OpGraph, at: int) -> OpTensors:
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
    outputs = _outputs(graph, ids, source, np.flatnonzero(graph.src == source))
    if not isinstance(outputs, str):
        for output in outputs:
            if output.tensor == ids[edge]:
                return output.shape
    return "", None


def _outputs(
    graph: OpGraph, ids: NDArray[np.int64], at: int, leaving: NDArray[np.intp]
) -> tuple[OpOutput, ...] | str:
    """An op's outputs: shapes from its ``output`` column, paired with the tensors it sends."""
    shapes = parse_output(graph.outputs[at])
    data = leaving[ids[leaving] >= 0]
    tensors, first = np.unique(ids[data], return_index=True)
    sizes = graph.bytes[data[first]].tolist()
    if not len(tensors) and len(shapes) == 1:
        return (OpOutput(-1, int(graph.output_bytes[at]), shapes[0]),)
    if len(tensors) != len(shapes):
        has = counted(len(shapes), "output")
        return f"it has {has} in {graph.outputs[at]!r} and sends {len(tensors)}"
    return tuple(
        OpOutput(int(t), size, shape) for t, size, shape in zip(tensors, sizes, shapes, strict=True)
    )


@dataclass(frozen=True)
class OpCut:
    """A dimension of an op, along which it can be split.

    Attributes
    ----------
    op : OpTensors
    makes : tuple of OpOutput
    size : int
        Length of the dimension.
    inputs : list of int or None
        The axis along which each input is sliced; None: every part reads the whole input.
    outputs : list of int or None
        The axis along which the parts of each output are concatenated; None: they are summed.
    """

    op: OpTensors
    makes: tuple[OpOutput, ...]
    size: int
    inputs: list[int | None]
    outputs: list[int | None]

    @property
    def joined(self) -> list[int]:
        """Outputs whose parts are joined; one without data is left out if others have data."""
        some = any(output.bytes for output in self.makes)
        return [j for j, output in enumerate(self.makes) if output.bytes or not some]

    @property
    def sort(self) -> tuple[tuple[bool, ...], tuple[bool, ...]]:
        """The inputs that are sliced and the outputs that are concatenated: splits of one sort into
        as many parts move the same bytes.
        """
        return (
            tuple(axis is not None for axis in self.inputs),
            tuple(axis is not None for axis in self.outputs),
        )


def cuts(graph: OpGraph, at: int) -> dict[str, OpCut] | str:
    """The dimensions along which an op can be split, by name, or the reason why there are none.

    They are those of :mod:`loadmaster.dimensions`, of this op alone. O(E).
    """
    op = OpTensors.of(graph, at)
    if isinstance(op.makes, str):
        return op.makes
    for position, shape in enumerate(op.shapes):
        if shape[1] is None:
            return f"input {position} is of unknown shape"
    shapes = [output.shape for output in op.makes]
    if any(sizes is None and dtype != NOTHING for dtype, sizes in shapes):
        return "the shape of its output is unknown"
    before = TENSORFLOW if str(graph.meta.get("framework")).startswith("tensorflow") else ""
    by_name = axis_cuts(before + graph.kinds[at], _call(graph, at, op), op.shapes, shapes)
    some = any(output.bytes for output in op.makes)
    return {
        cut.name: OpCut(
            op,
            op.makes,
            cut.size,
            list(cut.inputs),
            [
                None if some and not output.bytes else axis
                for output, axis in zip(op.makes, cut.outputs, strict=True)
            ],
        )
        for cut in by_name
    }


def _call(graph: OpGraph, at: int, op: OpTensors) -> Call | None:
    """The arguments of an op's call, its tensors numbered as it reads them; None: nobody says."""
    said = None if graph.args is None else graph.args[at]
    if said is None:
        return None
    places: dict[int, list[int]] = {}
    for i, e in enumerate(op.reads):
        places.setdefault(int(graph.src[e]), []).append(i)
    if not places.keys() >= set(tensors(said)):
        return None

    def number(source: int) -> int:
        """Tensors of one op, in the order of its edges; the last one may be taken again."""
        some = places[source]
        return some.pop(0) if len(some) > 1 else some[0]

    return renumbered(said, number)
