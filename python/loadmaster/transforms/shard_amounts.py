"""Amounts of copies: what each copy of an op has of the op's bytes, as an expansion takes them."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

import loadmaster.fast as fast
from loadmaster.dimensions.form import ANY, OWNER
from loadmaster.transforms.layout import Layout
from loadmaster.transforms.lowering import Lowering
from loadmaster.transforms.shares import Amounts, own_weights
from loadmaster.transforms.ways import WHOLE

Ints = NDArray[np.int64]

#: Amounts of ops, sorted by op: where those of each op begin; the way and the bytes of each.
_Terms: TypeAlias = tuple[Ints, Ints, NDArray[np.uint64]]


def amounts_of_copies(lowering: Lowering, amounts: Amounts) -> fast._Copies:
    """The columns of :func:`loadmaster.fast.expand` per op and edge."""
    layout = lowering.layout
    graph, d = layout.graph, layout.dimensions
    edge_way = layout.made_way[np.minimum(layout.first_output[graph.src], len(layout.maker) - 1)]
    is_made = np.diff(layout.first_output)[graph.src] > 0
    edge_way = np.where(is_made, edge_way, WHOLE)
    known = (d.edge >= 0) & (d.root >= 0) & (d.form_of[d.root] >= 0)
    edge_way[d.edge[known]] = layout.made_way[layout.tensor[known]]
    homes, home = layout.homes
    # A tensor that one device owns is not sent to readers of its shape alone.
    owned = (layout.made[:, layout.tensor] == OWNER).any(axis=0)
    unread = layout.is_read & owned & (layout.wanted == ANY).all(axis=0)
    unread &= (homes[home[d.root]] != homes[home[d.reader]]).any(axis=1)
    converted = (lowering.conversions.of_argument >= 0) | unread
    reads = np.bincount(d.edge[d.edge >= 0], minlength=graph.n_edges)
    gone = np.bincount(d.edge[converted], minlength=graph.n_edges)
    return {
        **layout.ways.ways.columns(),
        "homes": homes.ravel(),
        "home": home,
        "together": np.full(graph.n_ops, -1),
        **amounts,
        "stays": (gone == 0) | (gone < reads),
        "edge": edge_way,
    }


def amounts_by_arguments(layout: Layout) -> Amounts:
    """Work and bytes of copies, told by the specs of the arguments and outputs of their ops."""
    graph = layout.graph
    placeholder = np.where(np.diff(layout.first_output) > 0, layout.first_output[:-1], -1)
    has_way = graph.placeholder & (placeholder >= 0)
    accessed, output = _accessed(layout), _outputs(layout)
    return {
        "work": layout.work_way,
        "resident": np.where(has_way, layout.made_way[placeholder], WHOLE),
        "accessed_first": accessed[0],
        "accessed_way": accessed[1],
        "accessed_bytes": accessed[2],
        "output_first": output[0],
        "output_way": output[1],
        "output_bytes": output[2],
    }


def _accessed(layout: Layout) -> _Terms:
    """Bytes that copies of ops access, in terms of their arguments and outputs.

    An op that accesses less than its tensors are, such as a look-up, goes by what it writes.
    """
    graph, d = layout.graph, layout.dimensions
    n, own = graph.n_ops, own_weights(graph)
    read = layout.argument_bytes.astype(np.float64)
    outputs = layout.tensor_bytes.astype(np.float64)
    all_read = np.bincount(d.reader, read, n) + own
    all_made = np.bincount(layout.maker, outputs, n)
    accessed = graph.bytes_accessed.astype(np.float64)
    is_all = (accessed >= all_read + all_made) & (all_read + all_made > 0)
    by_output = ~is_all & (all_made > 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        scale = np.where(is_all, accessed / (all_read + all_made), accessed / all_made)
    rest = ~is_all & ~by_output
    some = np.flatnonzero(is_all[d.reader] & (read > 0))
    # Weights are read as often as they were, whoever has more tokens.
    is_state = graph.placeholder[d.root[some]]
    read_way = layout.loaded(layout.wanted_way[some], d.reader[some].astype(np.int64))
    read_way = np.where(is_state, layout.wanted_way[some], read_way)
    made_way = layout.loaded(layout.made_way, layout.maker)
    kept = np.flatnonzero((is_all | by_output)[layout.maker] & (outputs > 0))
    held = np.flatnonzero(is_all & (own > 0))
    alone = np.flatnonzero(rest)
    return _terms(
        n,
        (d.reader[some], read_way, read[some] * scale[d.reader[some]]),
        (layout.maker[kept], made_way[kept], outputs[kept] * scale[layout.maker[kept]]),
        (held, np.full(len(held), WHOLE), own[held].astype(np.float64) * scale[held]),
        (alone, layout.work_way[alone], accessed[alone]),
    )


def _outputs(layout: Layout) -> _Terms:
    """Bytes that copies of ops output. New storage is shared as the tensors are that lie in it."""
    graph = layout.graph
    n, outputs = graph.n_ops, layout.tensor_bytes.astype(np.float64)
    all_made = np.bincount(layout.maker, outputs, n)
    total = graph.output_bytes.astype(np.float64)
    some = np.flatnonzero((outputs > 0) & (total[layout.maker] > 0))
    of = layout.maker[some]
    alone = np.flatnonzero((total > 0) & (all_made == 0))
    return _terms(
        n,
        (of, layout.made_way[some], outputs[some] * (total[of] / all_made[of])),
        (alone, np.full(len(alone), WHOLE), total[alone]),
    )


def _terms(n: int, *rows: tuple[NDArray[Any], NDArray[Any], NDArray[np.float64]]) -> _Terms:
    op, way, size = map(np.concatenate, zip(*rows, strict=True))
    order = np.argsort(op, kind="stable")
    first = np.concatenate([[0], np.cumsum(np.bincount(op.astype(np.int64), minlength=n))])
    return first, way[order], np.rint(size[order]).astype(np.uint64)
