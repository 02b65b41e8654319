"""Data parallelism as labels of the batch: every op that depends on it is cut along it.

The labels follow from the sizes of tensors alone (:mod:`loadmaster.dimensions.of_batch`), so a
graph needs no arguments of calls for them. What devices then do is the lowering of any layout.

Every device has all that the graph has, and does its share of what depends on the batch. Gradients
are summed in *buckets* (Li et al., VLDB 2020: PyTorch's DistributedDataParallel): a bucket has the
gradients that are made one after another, up to so many bytes, and is summed as soon as its last
gradient is there, while the backward pass goes on.

With a sharded optimizer (ZeRO-1: Rajbhandari et al., SC 2020) a device gets the sums of its shard
only, updates that, and gathers what the others have updated. An optimizer is sharded *flat*, every
tensor into equal parts, or by whole *parameters*: then a parameter's update runs on one device.
A bucket that some op of no one parameter reads, such as the norm of all gradients, is summed whole.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from loadmaster.base.units import counted
from loadmaster.dimensions.form import FLAT, OWNER
from loadmaster.model.graph import OpGraph
from loadmaster.model.program import Program
from loadmaster.model.recipe import DeviceMesh, MeshAxis
from loadmaster.transforms.batch_dimensions import batch_dimensions
from loadmaster.transforms.gradients import Buckets, Fill, Reducer, filled
from loadmaster.transforms.layout import Layout
from loadmaster.transforms.lowering import Lowering
from loadmaster.transforms.shards import CopyColumns, Expansion
from loadmaster.transforms.shares import amounts, only_gradients

#: Ways to share out an optimizer: not at all, by equal parts of every tensor, or by parameters.
Optimizer = Literal["whole", "flat", "parameters"]


@dataclass(frozen=True)
class Replication:
    """A way to share the batch.

    Attributes
    ----------
    rows : tuple of int
        Samples of the batch per device, or numbers that shares go by where the batch is unknown.
    optimizer : "whole", "flat" or "parameters"
    bucket_bytes : int
    is_synchronised : bool
        Whether batch norms have the statistics of the whole batch.
    is_summed_whole : bool
        Whether every device gets whole sums, even where it updates only some of the parameters
        (PyTorch's ZeroRedundancyOptimizer).
    fill : callable
        The rule by which gradients are put into buckets.
    """

    rows: tuple[int, ...]
    optimizer: Optimizer
    bucket_bytes: int
    is_synchronised: bool
    is_summed_whole: bool = False
    fill: Fill = filled

    @property
    def k(self) -> int:
        """Number of devices."""
        return len(self.rows)


def replicated(graph: OpGraph, how: Replication) -> Program:
    """The program of replicas: copies of ops are named by their replica. O(k (V + E)), and sorting.

    Ops keep their order. A bucket's collective comes after the last op that makes a gradient of it,
    a batch norm's before it.
    The sizes in ``output`` are left out, dtypes stay.

    Raises
    ------
    InputError
        A name that a collective needs; a batch norm to synchronise that does not say its channels.
    """
    layout, roles = batch_layout(graph, how), graph.roles
    # Labels of views count for nothing: a view of a tensor with a batch shows the rows of its part.
    of_rows = layout.ways.ways.of_rows(how.rows)
    way = np.where(roles.many & graph.view, of_rows, layout.work_way)
    # An op that only adds up gradients does as much in each replica as in the whole graph.
    adds = only_gradients(graph, roles) & (layout.labels[0] >= 0)
    share = np.where(adds[:, None], 1.0, layout.ways.fractions[way])
    columns = CopyColumns("r", amounts(graph, roles, way), share)
    program = Expansion.of(Lowering(layout), columns).program
    anywhere = np.broadcast_to(np.int32(-1), program.graph.n_ops)
    return replace(program, rank=anywhere, notes=_notes(layout, how))


def batch_layout(graph: OpGraph, how: Replication) -> Layout:
    """The layout of a graph on one axis, along which every op is cut by the batch that can be."""
    dimensions = batch_dimensions(graph, sum(how.rows), is_synchronised=how.is_synchronised)
    labels = np.where(graph.roles.many & ~graph.view, 1, 0).astype(np.int32)
    layout = Layout(
        dimensions,
        DeviceMesh((MeshAxis("batch", how.k, how.rows),)),
        labels[None],
        "synchronised" if how.is_synchronised else "local",
        how.bucket_bytes,
    )
    buckets = Buckets.of(graph, graph.roles, how.bucket_bytes, how.fill)
    sharded = (layout.updates.of_op >= 0) & ~graph.view
    if how.optimizer != "whole" and buckets.n:
        labels = np.where(sharded, FLAT if how.optimizer == "flat" else OWNER, labels)
    is_sharded = labels[graph.dst[buckets.edges]] < 0
    whole = np.full(buckets.n, how.is_summed_whole)
    whole[buckets.bucket[buckets.gradient[~is_sharded]]] = True
    bucket = buckets.bucket[buckets.gradient]
    reducer = Reducer(buckets.edges, bucket, buckets.last_source[bucket], whole)
    return replace(layout, labels=labels[None], reducer=reducer)


def _notes(layout: Layout, how: Replication) -> tuple[str, ...]:
    graph, is_sharded = layout.graph, layout.labels[0] < 0
    notes = []
    if (
        how.optimizer != "whole"
        and layout.reducer is not None
        and len(layout.reducer.is_whole)
        and not is_sharded.any()
    ):
        notes.append(
            "the optimizer is not sharded: no colocation set says which of its ops belong to "
            "which parameter"
        )
    alone = graph.updates & ~is_sharded & ~graph.view & ~graph.placeholder
    if is_sharded.any() and alone.any():
        notes.append(
            f"{counted(int(alone.sum()), 'op')} of the optimizer belong to no single "
            "parameter: every replica does them"
        )
    if how.is_synchronised and not layout.exchanged.any():
        notes.append("no batch norm to synchronise: no op in training is of a kind known as one")
    return tuple(notes)
