"""Sums of gradients as PyTorch runs them (Li et al., VLDB 2020; Zhao et al., VLDB 2023).

``backward`` returns once all gradients are summed, so the optimizer begins after the last sum. The
reducer of DistributedDataParallel has its buckets for good, and gradients are views of them
(``gradient_as_bucket_view``): their bytes stay for the whole step, and sums take no others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadmaster.model.program import Program
from loadmaster.transforms.control_edges import with_control

#: Beginning of the names of collectives that sum gradients.
_SUMS = ("all_reduce/gradients", "reduce_scatter/gradients")

#: Beginning of the names of collectives that gather updated parameters.
_UPDATED = ("all_gather/updated",)


def updated_last(
    program: Program,
    meta: Mapping[str, Any] | None = None,
    device: NDArray[np.integer] | None = None,
) -> Program:
    """A program in which updates wait for the last sum of gradients on their device. O(V + E).

    Parameters
    ----------
    program : Program
        Replicas or shards.
    meta : mapping, optional
        What is remembered of it, in ``meta`` of its graph.
    device : int [n_ops], optional
        Of each op, -1: none. Absent: its rank, or its replica.
    """
    graph = program.graph
    is_sum, tensor = _sums(program), _tensors(program)
    if device is None:
        device = np.where(program.rank >= 0, program.rank, program.replica)
    members = np.flatnonzero(is_sum)
    last = np.full(int(device.max(initial=0)) + 2, -1)
    np.maximum.at(last, device[members], members)
    reader = np.unique(graph.dst[is_sum[graph.src] & (tensor >= 0) & graph.updates[graph.dst]])
    before = last[device[reader]]
    # An update that comes before the last sum is of another step in the same graph.
    return _waiting(program, np.where(before < reader, before, -1), reader, meta)


def gathered_last(program: Program) -> Program:
    """A program in which what was updated is gathered after the last update. O(V + E).

    Only of a graph of one step, in which every update comes after all else of the user's.
    """
    graph = program.graph
    device = np.where(program.rank >= 0, program.rank, program.replica)
    updates = np.flatnonzero(graph.updates & ~program.own)
    others = np.flatnonzero(~graph.updates & ~program.own & ~graph.placeholder)
    members = np.flatnonzero(_begin(program, _UPDATED))
    if not len(members) or not len(updates) or updates.min() < others.max(initial=-1):
        return program
    last = np.full(int(device.max(initial=0)) + 2, -1)
    np.maximum.at(last, device[updates], updates)
    return _waiting(program, last[device[members]], members)


def _waiting(
    program: Program,
    before: NDArray[np.int64],
    after: NDArray[np.int64],
    meta: Mapping[str, Any] | None = None,
) -> Program:
    """The program with ops that wait for others; -1: for none."""
    is_one = before >= 0
    return with_control(program, before[is_one], after[is_one], meta)


def with_standing_buckets(program: Program, are_views: bool = True) -> Program:
    """Replicas whose buckets of gradients are there for the whole step; gradients are views of
    them, or lie beside them. O(V + E).
    """
    graph = program.graph
    is_sum, tensor = _sums(program), _tensors(program)
    enters = is_sum[graph.dst] & (tensor >= 0)
    size = graph.bytes[enters].astype(np.float64)
    held = np.bincount(graph.dst[enters], size, graph.n_ops).astype(np.uint64)
    ops = {"param_bytes": np.where(is_sum, held, graph.param_bytes)}
    edges = {}
    if are_views:
        ops["output_bytes"] = np.where(is_sum, np.uint64(0), graph.output_bytes)
        leaves = is_sum[graph.src] & (tensor >= 0)
        edges["bytes"] = np.where(leaves, np.uint64(0), graph.bytes)
    return program.with_graph(program.source, graph.with_columns(ops, edges))


def _sums(program: Program) -> NDArray[np.bool_]:
    """Mask of the members of sums of gradients."""
    return _begin(program, _SUMS)


def _begin(program: Program, stems: tuple[str, ...]) -> NDArray[np.bool_]:
    """Mask of the members of collectives whose names begin so."""
    labels, mask = program.graph.collectives, program.graph.is_member.copy()
    members = np.flatnonzero(mask)
    mask[members] = [labels[op].startswith(stems) for op in members.tolist()]
    return mask


def _tensors(program: Program) -> NDArray[np.int64]:
    graph = program.graph
    return graph.src if graph.tensor is None else graph.tensor
