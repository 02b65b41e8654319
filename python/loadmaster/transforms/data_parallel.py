"""Data parallelism: a replica of the model on every device, each on its share of the batch.

How the replicas' gradients are added up is the ``aggregation``. What runs today is "all-reduce" and
"reduce-scatter" (:mod:`loadmaster.transforms.batch_labels`). The papers of 2018 to 2020 mean
"parameter-server" (:mod:`loadmaster.transforms.parameter_server`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from loadmaster.base import checks
from loadmaster.base.errors import InputError
from loadmaster.base.units import counted
from loadmaster.model.graph import OpGraph
from loadmaster.model.program import Program
from loadmaster.model.recipe import BUCKET_BYTES
from loadmaster.transforms.batch_labels import Replication, replicated
from loadmaster.transforms.parameter_server import with_parameter_server
from loadmaster.transforms.samples import check_samples_apart
from loadmaster.transforms.shares import batch_size

#: Ways to add up gradients.
Aggregation = Literal["all-reduce", "reduce-scatter", "parameter-server"]

#: Ways to cut a sharded optimizer.
Shards = Literal["flat", "parameters"]

#: Whose statistics a batch norm has.
BatchNorm = Literal["local", "synchronised"]


def data_parallel(graph: OpGraph, k: int) -> OpGraph:
    """The graph of :func:`replicate`, without what its ops serve.

    Examples
    --------
    >>> import loadmaster as lm
    >>> g = lm.read("example:lenet")
    >>> twice = lm.transforms.data_parallel(g, 2)
    >>> twice.index("convolution@r1") > 0
    True
    """
    return replicate(graph, k).graph


def replicate(
    graph: OpGraph,
    k: int,
    *,
    rows: Sequence[int] | None = None,
    aggregation: Aggregation = "all-reduce",
    shards: Shards = "flat",
    bucket_bytes: int = BUCKET_BYTES,
    batch_norm: BatchNorm = "local",
) -> Program:
    """The graph replicated ``k`` times over the batch.

    Parameters
    ----------
    graph : OpGraph
        For training or inference; inference replicas have nothing to add up.
    k : int
        Replicas, at least 1. With 1 the graph comes back as it is.
    rows : sequence of int, optional
        Samples of the batch per replica, at least 1 each; they add up to the batch. Absent: as even
        as whole samples allow. Where a graph does not say its batch, shares are equal.
    aggregation : "all-reduce" (default), "reduce-scatter" or "parameter-server"
        "all-reduce": every replica has all weights and the optimizer; gradients are summed in
        buckets. "reduce-scatter" (ZeRO-1: Rajbhandari et al. 2020): the optimizer is sharded, each
        replica gets its part of the sums, and what it updates is gathered. "parameter-server"
        (FastT): each parameter is on one device, which sums whole gradients and from which the
        others read it in every step.
    shards : "flat" (default) or "parameters"
        How "reduce-scatter" shards the optimizer: every tensor into ``k`` equal parts, or whole
        parameters, each updated by one replica.
    bucket_bytes : int
        The most bytes of gradients that one collective sums, 25 MB by default (as PyTorch's
        DistributedDataParallel). A gradient larger than that has a bucket of its own.
    batch_norm : "local" (default) or "synchronised"
        Whether a batch norm in training has the statistics of its replica's samples (as
        DistributedDataParallel) or of the whole batch (as SyncBatchNorm): two numbers of 4 bytes
        per channel are all-reduced before it, forward and backward. Not with parameter servers.

    Returns
    -------
    Program
        Replicas of ``name`` are ``name@r0``, ``name@r1``, ...

    Raises
    ------
    InputError
        ``k`` or ``rows`` out of range: more replicas than samples, rows that do not add up to the
        batch; a batch whose samples an op joins, as a contrastive loss does; an unknown
        aggregation, ``shards`` or ``batch_norm``; a graph that has collectives already; names that
        are taken.

    Examples
    --------
    >>> import loadmaster as lm
    >>> g = lm.read("example:lenet")
    >>> program = lm.transforms.replicate(g, 2)
    >>> int(program.graph.param_bytes.sum()) == 2 * int(g.param_bytes.sum())
    True
    >>> [label for label in program.graph.collectives if label]
    ['all_reduce/gradients0', 'all_reduce/gradients0']
    """
    checks.integer("k", k)
    checks.integer("bucket_bytes", bucket_bytes)
    checks.one_of("aggregation", aggregation, get_args(Aggregation))
    checks.one_of("shards", shards, get_args(Shards))
    checks.one_of("batch_norm", batch_norm, get_args(BatchNorm))
    if k == 1:
        return Program.of(graph)
    if graph.is_member.any():
        together = int(graph.is_member.argmax())
        raise InputError(
            f"op {graph.names[together]!r} is a member of collective "
            f"{graph.collectives[together]!r}: a graph of several devices is not replicated"
        )
    check_samples_apart(graph)
    if rows is None:
        samples = share_out(batch_size(graph) or int(k), np.zeros(k), np.ones(k))
    else:
        samples = _checked(graph, int(k), rows)
    is_synchronised = batch_norm == "synchronised"
    if aggregation == "parameter-server":
        if is_synchronised:
            raise InputError("batch_norm='synchronised' needs collectives, not parameter servers")
        program = with_parameter_server(graph, int(k), samples)
    else:
        optimizer = shards if aggregation == "reduce-scatter" else "whole"
        how = Replication(samples, optimizer, int(bucket_bytes), is_synchronised)
        program = replicated(graph, how)
    return replace(program, notes=(*_weighting(graph, samples), *program.notes))


def share_out(
    batch: int,
    fixed: ArrayLike,
    per_sample: ArrayLike,
    most: ArrayLike | None = None,
) -> tuple[int, ...]:
    """Samples of a batch per replica, so that the slowest replica ends as early as can be.

    Replica r takes ``fixed[r] + per_sample[r] * samples`` seconds. Samples are whole, one at least
    and ``most[r]`` at most, if that is given. First come the samples that each replica has done by
    the time at which all would be done if samples could be cut, then the rest one by one.
    O(k (batch + k)) at worst.

    Raises
    ------
    InputError
        Fewer samples than replicas, or fewer places than samples.

    Examples
    --------
    >>> share_out(256, [0, 0, 0], [1, 1, 1]), share_out(256, [0, 0], [1, 3])
    ((86, 85, 85), (192, 64))
    >>> share_out(256, [0, 64], [1, 1]), share_out(8, [0, 0], [1, 1], [8, 2])
    ((160, 96), (6, 2))
    """
    a, b = np.asarray(fixed, dtype=np.float64), np.asarray(per_sample, dtype=np.float64)
    k = len(a)
    limit = np.full(k, batch) if most is None else np.asarray(most)
    if not k <= batch <= limit.sum():
        has = f"{counted(k, 'replica')} of a batch of {counted(batch, 'sample')}"
        places = int(limit.sum())
        why = "each needs one" if batch < k else f"there are places for {places}"
        raise InputError(f"{has}: {why}")
    # All would end together at this time; a replica that takes longer for none gets one sample.
    end = (batch + (a / b).sum()) / (1 / b).sum()
    rows = np.clip(np.floor((end - a) / b), 1, limit).astype(np.int64)
    while rows.sum() > batch:
        last = np.where(rows > 1, a + b * rows, -np.inf)
        rows[len(rows) - 1 - int(np.argmax(last[::-1]))] -= 1
    while rows.sum() < batch:
        rows[int(np.argmin(np.where(rows < limit, a + b * (rows + 1), np.inf)))] += 1
    return tuple(rows.tolist())


def _weighting(graph: OpGraph, rows: Sequence[int]) -> tuple[str, ...]:
    """A note on the weights of gradients of unequal shares, where a graph is trained."""
    if len(set(rows)) == 1 or not graph.updates.any():
        return ()
    counts = ", ".join(map(str, rows))
    return (
        f"replicas have {counts} samples: weight each one's loss by its share of the batch, so "
        "that the sum of gradients is that of the whole batch",
    )


def _checked(graph: OpGraph, k: int, rows: Sequence[int]) -> tuple[int, ...]:
    """Samples per replica as they were given."""
    if len(rows) != k:
        raise InputError(f"rows has {counted(len(rows), 'value')} for {counted(k, 'replica')}")
    for r, samples in enumerate(rows):
        checks.integer(f"rows[{r}]", samples)
    batch = batch_size(graph)
    if batch is not None and sum(rows) != batch:
        raise InputError(f"rows add up to {sum(rows)}, and the batch is {batch}")
    return tuple(int(samples) for samples in rows)
