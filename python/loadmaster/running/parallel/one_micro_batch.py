"""One micro-batch of a program: what ran before the batch was cut, and where its ops are now.

A program of micro-batches is made of another one: of the whole batch, of replicas, of shards, of
recomputation. That one is found in it again: the ops of a micro-batch, with those that there are
once, and an op that reads a sum reads what the first micro-batch adds to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from loadmaster.model.graph import INPUT, OpGraph
from loadmaster.model.program import COLUMNS, JOIN, Program
from loadmaster.transforms.base import AGGREGATE
from loadmaster.transforms.micro_batches import samples_of_replicas

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class MicroBatches:
    """The micro-batches of a program.

    Attributes
    ----------
    program : Program
        Without micro-batches, of the whole batch. Its graph has no sizes.
    at : int64 [m, n_ops of the program]
        Where each op of a micro-batch is in the graph that runs.
    is_once : bool [n_ops of the program]
        What there is once, for all micro-batches.
    sums : tuple of (int, tuple of int)
        Ops of which something is added up, and the ops of the graph that runs which add what each
        micro-batch makes to those before it, from the second on.
    part : float64 [n_replicas + 1, m]
        Which part of a replica's samples each micro-batch has; in the last row, of all samples.
    sizes : tuple of int
        Samples of each replica.
    """

    program: Program
    at: Ints
    is_once: NDArray[np.bool_]
    sums: tuple[tuple[int, tuple[int, ...]], ...]
    part: NDArray[np.float64]
    sizes: tuple[int, ...]

    @classmethod
    def of(cls, program: Program, batch: int) -> MicroBatches:
        """Those of a program that has some, and so large a batch. O(m (V + E))."""
        kinds = np.array([kind == AGGREGATE for kind in program.graph.kinds], dtype=bool)
        adds = (program.role == JOIN) & (program.micro > 0) & kinds
        once = np.flatnonzero(program.micro < 0)
        # Those of a micro-batch are in the order of the program before.
        own = [np.flatnonzero((program.micro == j) & ~adds) for j in range(program.micro.max() + 1)]
        at = np.stack([np.concatenate([once, ops]) for ops in own])
        at = at[:, np.argsort(at[0])]
        sums = _sums(program, adds)
        before = _before(program, at, sums)
        sizes = samples_of_replicas(before, batch)
        is_input = (before.source.stands_for[before.serves] == INPUT) & (program.micro[at[0]] >= 0)
        parts = []
        for r in range(len(sizes)):
            mine = is_input & ((before.replica == r) | (len(sizes) == 1))
            shares = program.share[at[:, mine.argmax()]]
            parts.append(shares / shares.sum())
        whole = np.array(sizes) / sum(sizes) @ np.array(parts)
        number = {op: i for i, op in enumerate(at[0].tolist())}
        chains = tuple((number[first], tuple(chain)) for first, chain in sums)
        return cls(
            before, at, program.micro[at[0]] < 0, chains, np.vstack([*parts, whole]), tuple(sizes)
        )

    @property
    def m(self) -> int:
        """The number of them."""
        return len(self.at)

    def samples(self, j: int) -> Ints:
        """The samples of a micro-batch: of each replica, those of its own that come next."""
        slices, first = [], 0
        for size, part in zip(self.sizes, self.part, strict=False):
            ends = first + np.rint(size * np.cumsum(np.append(0.0, part))).astype(np.int64)
            slices.append(np.arange(ends[j], ends[j + 1]))
            first += size
        return np.concatenate(slices)

    def of_micro_batch(self, j: int) -> Program:
        """The program of the samples of one micro-batch."""
        part = self.part[self._row(self.program.replica), j] / self.part[-1, j]
        return replace(self.program, share=self.program.share * part)

    def weight(self, op: int, j: int) -> float:
        """The weight of a gradient that an op makes of a micro-batch."""
        is_shard = self.program.rank[op] >= 0
        row = -1 if is_shard else int(self._row(self.program.replica[op]))
        return float(self.part[row, j])

    def _row(self, replica: NDArray[np.int32]) -> NDArray[np.int32]:
        """The row of parts that replicas have."""
        return np.where(replica < len(self.sizes), replica, -1)


def _sums(program: Program, adds: NDArray[np.bool_]) -> list[tuple[int, list[int]]]:
    """The first micro-batch's part of each sum, and the ops that add the others' to it."""
    graph, micro = program.graph, program.micro
    into = np.flatnonzero(adds[graph.dst] & (graph.roles.tensor >= 0))
    into = into[micro[graph.src[into]] < micro[graph.dst[into]]]
    before = dict(zip(graph.dst[into].tolist(), graph.src[into].tolist(), strict=True))
    chains: dict[int, tuple[int, list[int]]] = {}  # by the last op
    for op in sorted(before, key=lambda op: int(micro[op])):
        first, chain = chains.pop(before[op], (before[op], []))
        chains[op] = first, [*chain, op]
    return sorted(chains.values())


def _before(program: Program, at: Ints, sums: Sequence[tuple[int, Sequence[int]]]) -> Program:
    """The program of which micro-batches were made, by the ops of the first one."""
    graph, ops = program.graph, at[0]
    src, dst, tensor = graph.src, graph.dst, graph.roles.tensor
    number = np.full(graph.n_ops + 1, -1, dtype=np.int64)
    number[ops] = np.arange(len(ops))
    #: By op that adds, the tensor that the first one adds to: the sum is that one.
    added = np.full(graph.n_ops, -1, dtype=np.int64)
    starts = np.isin(dst, [chain[0] for _, chain in sums]) & (tensor >= 0)
    ends = zip(src[starts].tolist(), dst[starts].tolist(), strict=True)
    onto = dict(zip(ends, tensor[starts].tolist(), strict=True))
    for first, chain in sums:
        number[chain], added[chain] = number[first], onto[first, chain[0]]
    same = np.arange(int(tensor.max(initial=-1)) + 2)
    of_sums = (added[src] >= 0) & (tensor >= 0)
    same[tensor[of_sums]] = added[src[of_sums]]
    kept = (number[src] >= 0) & (number[dst] >= 0) & (added[dst] < 0)
    names = graph.names
    before = OpGraph(
        {
            "name": [names[op].removesuffix("@m0") for op in ops.tolist()],
            "kind": [graph.kinds[op] for op in ops.tolist()],
            "phase": [graph.phases[op] for op in ops.tolist()],
            "collective": [graph.collectives[op] for op in ops.tolist()],
            "view": graph.view[ops],
            "alias_of": number[graph.alias_of[ops]],
        },
        {
            "src": number[src[kept]],
            "dst": number[dst[kept]],
            "tensor": np.where(tensor[kept] >= 0, same[tensor[kept]], -1),
            "bytes": graph.bytes[kept],
        },
        name=graph.name,
    )
    share = program.share[at].sum(axis=0)
    share = np.where((share > 1 + 1e-9) | (at[0] == at[-1]), program.share[ops], share)
    columns = {name: getattr(program, name)[ops] for name in COLUMNS}
    columns |= {"share": share, "micro": np.full(len(ops), -1, dtype=np.int32)}
    return replace(program, graph=before, **columns)
