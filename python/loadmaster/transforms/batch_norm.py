"""Batch norms whose statistics are those of the whole batch: small sums over the replicas.

A batch norm of a replica sees the replica's samples only. PyTorch's DistributedDataParallel leaves
it so. Its SyncBatchNorm sums, per channel, two numbers over the replicas: forward the values and
their squares, backward the gradients and their products with the values.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from loadmaster.base.errors import InputError
from loadmaster.model.graph import OpGraph
from loadmaster.model.shapes import parse_output

#: Kinds of batch norms in training and of their gradients: PyTorch's, without the overload's name,
#: and ONNX's, with those that ONNX Runtime trains with. The first output is as large as the input.
_TEXT = """
aten._batch_norm_impl_index aten._batch_norm_impl_index_backward aten._batch_norm_with_update
aten._batch_norm_with_update_functional aten._native_batch_norm_legit
aten._native_batch_norm_legit_functional aten.batch_norm aten.batch_norm_backward
aten.cudnn_batch_norm aten.cudnn_batch_norm_backward aten.miopen_batch_norm
aten.miopen_batch_norm_backward aten.native_batch_norm aten.native_batch_norm_backward
BatchNormalization BatchNormalizationGrad BatchNormInternal
"""
KINDS = frozenset(_TEXT.split())

#: Before kinds of ONNX Runtime.
_RUNTIME = "com.microsoft."

#: The axis of the channels.
_AXIS = 1

#: Bytes per channel: two sums of 4 bytes each.
_BYTES = 8


def is_batch_norm(graph: OpGraph) -> NDArray[np.bool_]:
    """True for batch norms in training, and for their gradients: bool [n_ops]."""
    return _are(graph, filter(_is_known, set(graph.kinds)))


def sums_gradients(graph: OpGraph) -> NDArray[np.bool_]:
    """True for gradients of batch norms: bool [n_ops].

    With statistics of a part of the batch, the gradients of weights that they make, all outputs but
    the first, are of that part, and others are to be added.
    """
    known = filter(_is_known, set(graph.kinds))
    return _are(graph, (kind for kind in known if kind.endswith("Grad") or "ackward" in kind))


def _is_known(kind: str) -> bool:
    return ".".join(kind.removeprefix(_RUNTIME).split(".")[:2]) in KINDS


def _are(graph: OpGraph, kinds: Iterable[str]) -> NDArray[np.bool_]:
    """True for ops of some kinds."""
    wanted = set(kinds)
    if not wanted:
        return np.zeros(graph.n_ops, dtype=bool)
    return np.fromiter(map(wanted.__contains__, graph.kinds), bool, graph.n_ops)


def statistics(
    graph: OpGraph, many: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    """The batch norms among replicated ops, and the bytes that each sums over the replicas.

    None in a graph that is not trained: inference reads statistics. O(V).

    Raises
    ------
    InputError
        A batch norm whose ``output`` does not say how many channels it has.
    """
    ops: list[int] = []
    if "b" in graph.phases or graph.updates.any():
        ops = np.flatnonzero(is_batch_norm(graph) & many).tolist()
    sizes = []
    for i in ops:
        shape = parse_output(graph.outputs[i])[0][1]
        if shape is None or len(shape) <= _AXIS:
            raise InputError(
                f"op {graph.names[i]!r}: its output, {graph.outputs[i]!r}, does not say how many "
                "channels its statistics have; batch_norm='local' needs no such number"
            )
        sizes.append(_BYTES * shape[_AXIS])
    return np.array(ops, dtype=np.int64), np.array(sizes, dtype=np.uint64)
