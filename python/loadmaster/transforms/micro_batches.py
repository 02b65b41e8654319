"""Micro-batches: the step's batch in parts, one after another, with one update at the end.

Every op that depends on the batch has a copy per micro-batch, which does that part of it. Weights
and the optimizer are there once, and gradients are accumulated where they are made
(:mod:`.accumulation`). The batch is what it was, and so are the gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

import loadmaster.fast as fast
from loadmaster.base import checks
from loadmaster.base.errors import InputError
from loadmaster.base.units import counted
from loadmaster.model.graph import INPUT, OpGraph, Texts
from loadmaster.model.program import JOIN, Program, user_roles
from loadmaster.model.shapes import parse_output
from loadmaster.transforms.accumulation import Accumulation
from loadmaster.transforms.base import AGGREGATE, build, elements
from loadmaster.transforms.batch_norm import is_batch_norm
from loadmaster.transforms.copy_texts import CopyTexts, dtypes
from loadmaster.transforms.data_parallel import share_out
from loadmaster.transforms.samples import check_samples_apart
from loadmaster.transforms.shares import amounts, batch_size, only_gradients, own_weights
from loadmaster.transforms.ways import WHOLE, ReadEdges, SharingWays, homes_of_copies


def micro_batches(graph: OpGraph | Program, m: int, rows: Sequence[int] | None = None) -> Program:
    """The graph with its batch in ``m`` micro-batches. O(m (V + E)), and sorting.

    Parameters
    ----------
    graph : OpGraph or Program
        For training or inference; a program of replicas, shards or recomputation, too.
    m : int
        Micro-batches, at least 1. With 1 the graph comes back as it is.
    rows : sequence of int, optional
        Samples of each micro-batch, at least 1; they add up to the batch. Absent: as even as whole
        samples allow.

    Returns
    -------
    Program
        Its ``micro`` is the micro-batch of each op, -1: there is one for all. The copies of
        ``name`` are ``name@m0``, ``name@m1``, ...; what adds the gradient of micro-batch j to those
        before it is of kind "aggregate" and serves the op that makes the gradient.

    Raises
    ------
    InputError
        A batch that is unknown, or has fewer samples than there are micro-batches; rows that do not
        add up to it.

    Notes
    -----
    A gradient is added in place, to that of the first micro-batch, where nothing else reads that.
    One addition of b bytes accesses 3 b, and does one FLOP per element. What is accumulated is
    weighted by the micro-batch's share where the loss is a mean over the batch; a runtime does that
    as it adds, so it costs nothing here.

    Batch norms in training have the statistics of the micro-batch, as in every pipeline. Running
    statistics get the mean of those.

    Examples
    --------
    >>> import loadmaster as lm
    >>> graph = lm.read("example:lenet")
    >>> program = micro_batches(graph, 4)
    >>> program.graph.index("convolution@m3") > 0
    True
    >>> bool(program.graph.param_bytes.sum() == graph.param_bytes.sum())
    True
    """
    checks.integer("m", m)
    before = Program.of(graph) if isinstance(graph, OpGraph) else graph
    samples = _rows(before, int(m), rows)
    if m == 1:
        return before
    check_samples_apart(before.source)
    program = _MicroBatches(before, samples).build()
    return program if before.is_plain else before.then(program)


def _rows(before: Program, m: int, rows: Sequence[int] | None) -> NDArray[np.int64]:
    """Samples of each micro-batch in each replica, and in the last row in all of them: [r + 1, m].

    A program that does not cut whole samples among replicas counts as one replica.
    """
    batch = batch_size(before.source)
    if batch is None:
        raise InputError(
            "nobody says how many samples the batch has: no input of the graph has a shape, and "
            'its meta has no "batch"'
        )
    if rows is not None:
        _check(rows, m, batch)
    replicas = samples_of_replicas(before, batch)
    least = min(replicas)
    if least < m:
        samples = counted(least, "sample")
        where = f"a batch of {samples}" if len(replicas) == 1 else f"a replica with {samples}"
        raise InputError(
            f"{m} micro-batches of {where}{_shape(before.source)}: each needs one. Use at most "
            f"{least}, or a larger batch"
        )
    if rows is None:
        parts = np.array([share_out(n, np.zeros(m), np.ones(m)) for n in replicas])
    else:
        parts, rest = np.divmod(np.outer(replicas, rows), batch)
        if rest.any():
            raise InputError(
                f"rows {list(rows)} would cut samples: replicas have {replicas} of {batch}. Leave "
                "rows out, or give some that replicas share in whole samples"
            )
    return np.vstack([parts, parts.sum(axis=0)])


def _check(rows: Sequence[int], m: int, batch: int) -> None:
    if len(rows) != m:
        raise InputError(f"rows has {counted(len(rows), 'value')} for {m} micro-batches")
    for j, samples in enumerate(rows):
        checks.integer(f"rows[{j}]", samples)
    if sum(rows) != batch:
        raise InputError(f"rows add up to {sum(rows)}, and the batch is {batch}")


def samples_of_replicas(before: Program, batch: int) -> list[int]:
    """The part of the batch of each replica; all of it, where that is not known to be whole."""
    source = before.source
    of_batch = (source.roles.many | (source.stands_for == INPUT))[before.serves] & ~before.own
    at = np.flatnonzero(of_batch & (before.replica >= 0) & (before.parts == 1) & (before.share > 0))
    share = np.ones(int(before.replica.max(initial=0)) + 1)
    np.minimum.at(share, before.replica[at], before.share[at])
    samples = np.rint(batch * share).astype(np.int64)
    is_whole = np.allclose(samples, batch * share) and samples.sum() == batch
    return samples.tolist() if is_whole else [batch]


def _shape(graph: OpGraph) -> str:
    """The input that says so, if one does."""
    inputs = np.flatnonzero(graph.stands_for == INPUT).tolist()
    named = (f" (input {graph.names[op]!r}, {graph.outputs[op]})" for op in inputs)
    return next(named, "")


class _MicroBatches:
    """The ops and edges that are copied and added.

    Additions are numbered by sum, then by micro-batch, from the second on.
    """

    def __init__(self, before: Program, rows: NDArray[np.int64]) -> None:
        self.before, self.graph, self.rows, self.m = before, before.graph, rows, rows.shape[1]
        #: Per op, which of the rows it has.
        self.replica = np.where(before.replica < len(rows) - 1, before.replica, -1)
        source = before.source
        modules = [source.modules[op] for op in before.serves.tolist()]
        self.sums = Accumulation.of(self.graph, modules)
        self.many = self.sums.roles.many
        self.maker = self.graph.src[self.sums.edge]
        self.bytes = self.graph.bytes[self.sums.edge]
        self.n = len(self.maker)
        #: Ops with weights of their own, not parameters: their copies are where the weights are.
        self.is_tied = self.many & (own_weights(self.graph) > 0)

    def build(self) -> Program:
        graph, m = self.graph, self.m
        texts = _MicroBatchTexts(self)
        columns = texts.columns()
        core, serves, micro, added = fast.expand(
            graph._core, columns["name"], m, self._copies(), self._added(), self._links()
        )
        texts.fill(serves, micro, np.where(added >= 0, added // max(m - 1, 1), -1))
        share = np.ones(len(serves))
        is_whole = only_gradients(graph, self.sums.roles) | self.sums.gathers
        parted = (added < 0) & (self.many & ~is_whole)[serves]
        part = self.rows / self.rows.sum(axis=1, keepdims=True)
        share[parted] = part[self.replica[serves[parted]], micro[parted]]
        role = user_roles(graph)[serves]
        role[added >= 0] = JOIN
        return build(
            graph,
            core,
            columns,
            serves=serves,
            share=share,
            micro=micro,
            role=role,
            notes=self._notes(),
        )

    def _notes(self) -> tuple[str, ...]:
        graph, source = self.graph, self.before.source
        notes: list[str] = []
        if "b" not in source.phases and not graph.updates.any():
            return ()
        if not self.n:
            notes.append(
                "nothing reads the gradients, so those of micro-batches are not accumulated: trace "
                "the step with its optimizer"
            )
        if (is_batch_norm(source)[self.before.serves] & self.many).any():
            sizes = "/".join(map(str, sorted({*self.rows[:-1].ravel().tolist()})))
            notes.append(
                f"batch norms have the statistics of a micro-batch, of {sizes} samples: gradients "
                "are not quite those of the whole batch"
            )
        return tuple(notes)

    # -- columns ---------------------------------------------------------------------------------

    def _copies(self) -> fast._Copies:
        """Columns of :func:`loadmaster.fast.expand` per op and edge."""
        graph, many, roles, m = self.graph, self.many, self.sums.roles, self.m
        ways = SharingWays(m)
        by_rows = np.array([ways.of_rows(row) for row in self.rows.tolist()])[self.replica]
        first = ways.of_bounds(1, [0] + [1] * (m - 1), [1] * m)
        of_op = np.where(many, by_rows, WHOLE)
        stays = np.ones(graph.n_edges, dtype=bool)
        stays[self.sums.reads] = stays[self.sums.waiting] = False
        shared = amounts(graph, roles, of_op)
        shared["resident"] = np.where(self.is_tied, first, of_op)
        sets = graph._core.column("colocation")
        alone = int(sets.max(initial=-1)) + 1 + np.arange(graph.n_ops)
        return {
            **ways.columns(),
            **homes_of_copies(np.where(many, -1, -2), m),
            **shared,
            "stays": stays,
            "edge": np.where(many[graph.src] & ~roles.gradient, by_rows[graph.src], WHOLE),
            "together": np.where(self.is_tied & (sets < 0), alone, sets),
        }

    def _added(self) -> fast._Added:
        """Columns of additions."""
        m, n = self.m, self.n
        of = np.repeat(np.arange(n), m - 1)
        is_first = np.tile(np.arange(m - 1) == 0, n)
        makers = self.maker[of]
        texts = [self.before.source.outputs[op] for op in self.before.serves[self.maker].tolist()]
        known = {text: parse_output(text)[0][0] for text in set(texts)}
        dtypes = [known[text] for text in texts]
        flops = [elements(b, d) for b, d in zip(self.bytes.tolist(), dtypes, strict=True)]
        in_place = self.sums.is_in_place[of]
        makes = is_first & ~in_place
        shown = self.graph.alias_of[self.maker]
        owner = np.where(self.graph.view[self.maker] & (shown >= 0), shown, self.maker)
        onto = np.where(in_place, owner[of] * m, self._end(of, 1))
        nowhere = np.full(len(of), -1)
        return {
            "place": makers,
            "is_before": np.zeros(len(of), dtype=bool),
            "serves": makers,
            "device": np.tile(np.arange(1, m), n),
            "collective": nowhere,
            "kind": np.zeros(len(of), dtype=np.int64),
            "flops": np.array(flops, dtype=np.uint64)[of],
            "accessed": np.uint64(3) * self.bytes[of],
            "output": np.where(makes, self.bytes[of], np.uint64(0)),
            "alias": np.where(makes, nowhere, onto),
        }

    def _end(self, of: NDArray[np.intp], j: int) -> NDArray[np.int64]:
        """The ends of links at the additions of micro-batch ``j``."""
        ends: NDArray[np.int64] = self.graph.n_ops * self.m + of * (self.m - 1) + j - 1
        return ends

    def _links(self) -> fast._Links:
        """Edges of sums, and those by which an op waits for every micro-batch."""
        graph, sums, m, n = self.graph, self.sums, self.m, self.n
        tensor, each = sums.roles.tensor, np.arange(n)
        # Ids of micro-batch j are the graph's plus j strides; those of the additions come after.
        stride = int(tensor.max(initial=-1)) + 1
        tensors = tensor[sums.edge]
        so_far, ids = self.maker * m, tensors
        links = ReadEdges()
        for j in range(1, m):
            here = self._end(each, j)
            links.add(sums.edge, so_far, here, ids, self.bytes)
            links.add(sums.edge, self.maker * m + j, here, tensors + j * stride, self.bytes)
            so_far, ids = here, m * stride + (j - 1) * n + each
        read, of = sums.reads, sums.sum_of
        is_sum = self.many[graph.src[read]]
        from_ = np.where(is_sum, so_far[of], graph.src[read] * m)
        links.add(read, from_, graph.dst[read] * m, ids[of], graph.bytes[read])
        wait = sums.waiting
        for j in range(m):
            if j == 1:
                # What micro-batches read waits for the first of them alone: others read it before
                # the last of them is there.
                wait = wait[~self._is_read(wait)]
            ends = graph.src[wait] * m + j, graph.dst[wait] * m
            links.add(wait, *ends, tensor[wait], np.zeros(len(wait), dtype=np.uint64))
        return links.columns(m * stride)

    def _is_read(self, edges: NDArray[np.intp]) -> NDArray[np.bool_]:
        """True for edges to ops that micro-batches read, or that are made of them once."""
        graph, tensor = self.graph, self.sums.roles.tensor
        once = np.flatnonzero((tensor >= 0) & ~self.many[graph.src])
        src, dst = graph.src[once], graph.dst[once]
        read, n = self.many.copy(), -1
        while len(edges) and (now := int(read.sum())) != n:
            read[src[read[dst]]], n = True, now
        return np.asarray(read[graph.dst[edges]])


class _MicroBatchTexts(CopyTexts):
    """Texts of copies and additions. An addition is where the op is that it serves.

    What there is once has its own texts, and a colocation set is one for all micro-batches.
    """

    def __init__(self, expansion: _MicroBatches) -> None:
        super().__init__(expansion.graph, [AGGREGATE] * expansion.n, "m")
        self._maker, self._is_tied = expansion.maker, expansion.is_tied

    def columns(self) -> dict[str, Texts]:
        """Each column."""
        graph = self._graph
        own = {"module": graph.modules, "device_types": graph.device_types}
        here = {name: Texts(partial(self._served, texts)) for name, texts in own.items()}
        return super().columns() | here | {"output": Texts(self._outputs)}

    def _names(self) -> list[str]:
        # Several sums of one op are numbered.
        order = np.argsort(self._maker, kind="stable")
        makers, number = self._maker[order], np.empty(len(order), dtype=np.int64)
        number[order] = np.arange(len(order)) - np.searchsorted(makers, makers)
        rows = zip(self._maker.tolist(), number.tolist(), strict=True)
        self._stems = [f"{self._graph.names[of]}@{AGGREGATE}{i or ''}" for of, i in rows]
        return super()._names()

    def _outputs(self) -> list[str]:
        once, texts = self._graph.outputs, self._served(dtypes(self._graph.outputs))
        rows = zip(texts, self._serves.tolist(), self._device.tolist(), strict=True)
        return [once[op] if j < 0 else text for text, op, j in rows]

    def _collectives(self) -> list[str]:
        labels = self._each(self._graph.collectives, [""] * len(self._stems))
        marked = zip(labels, self._device.tolist(), strict=True)
        return [f"{label}@m{j}" if label and j >= 0 else label for label, j in marked]

    def _sets(self) -> list[str]:
        graph = self._graph
        rows = zip(graph.colocation, graph.names, self._is_tied.tolist(), strict=True)
        sets = [label or (name if is_tied else "") for label, name, is_tied in rows]
        return self._each(sets, [""] * len(self._stems))
