"""What PyTorch's DistributedDataParallel makes of buckets (Li et al., VLDB 2020, section 4).

Its reducer has the buckets for good, and gradients are views of them (``gradient_as_bucket_view``):
their bytes stay for the whole step, and sums take no others. ``backward`` returns once every
bucket is summed, so the optimizer begins after the last of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from loadmaster.model.program import Program

#: How the name of the collective of a bucket begins.
_BUCKET = "all_reduce/gradients"


def with_reducer(program: Program, meta: Mapping[str, Any]) -> Program:
    """Replicas whose gradients are summed whole, as the reducer has it. O(k (V + E)).

    Parameters
    ----------
    program : Program
        Of :func:`loadmaster.transforms.replicas.replicated`.
    meta : mapping
        What is remembered of it, in ``meta`` of its graph.

    Returns
    -------
    Program
        Members of buckets hold their bucket for the whole step and make nothing; updates wait for
        the last bucket of their replica.
    """
    graph = program.graph
    is_bucket = np.array([label.startswith(_BUCKET) for label in graph.collectives], dtype=bool)
    tensor = graph.src if graph.tensor is None else graph.tensor
    enters = is_bucket[graph.dst] & (tensor >= 0)
    held = np.bincount(
        graph.dst[enters], graph.bytes[enters].astype(np.float64), graph.n_ops
    ).astype(np.uint64)
    leaves = is_bucket[graph.src] & (tensor >= 0)
    # An update that comes before the last bucket is of another step in the same graph.
    last = np.full(int(program.replica.max(initial=0)) + 1, -1)
    members = np.flatnonzero(is_bucket)
    np.maximum.at(last, program.replica[members], members)
    reader = np.unique(graph.dst[leaves])
    before = last[program.replica[reader]]
    reader, before = reader[before < reader], before[before < reader]
    ops = {
        "param_bytes": np.where(is_bucket, held, graph.param_bytes),
        "output_bytes": np.where(is_bucket, np.uint64(0), graph.output_bytes),
    }
    nothing = np.zeros(len(reader), dtype=np.uint64)
    edges = {
        "src": np.concatenate([graph.src, before]),
        "dst": np.concatenate([graph.dst, reader]),
        "tensor": np.concatenate([tensor, np.full(len(reader), -1)]),
        "bytes": np.concatenate([np.where(leaves, np.uint64(0), graph.bytes), nothing]),
    }
    return program.with_graph(program.source, graph.with_columns(ops, edges, meta))
