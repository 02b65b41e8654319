"""Constraints on arrays where XLA's partitioner would not follow a plan by itself.

Ops follow the arrays that they read: the label is taken that wants these as they lie. Sums over
devices are done where they are made. Where labels want arrays of different axes, or a plan has
another label, what the op makes is to be constrained. So is what a product reads that lies in
another way: else the partitioner chooses whether it moves that, or what the product makes.

JAX transposes the constraints that stand in a model, so those of the forward pass are enough there.
In a program that was traced with its backward pass, that has its own.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from loadmaster.dimensions.form import ANY, FLAT, PARTIAL, REPLICATE
from loadmaster.strategies.sharding.structure import Structure

Ints = NDArray[np.int64]

#: Kinds of products, without their dialects.
_PRODUCTS = ("convolution", "dot_general")


def columns_of(structure: Structure, labels: NDArray[np.int32]) -> Ints:
    """The label of each node, int64 [n_axes, n_nodes], from labels per axis and op."""
    ways = structure.ways
    known = np.arange(ways.label.shape[1]) < ways.n_labels[structure.way][:, None]
    same = ways.label[structure.way] == labels[:, structure.op, None]
    return np.asarray((same & known).argmax(axis=2), dtype=np.int64)


def constrained(
    structure: Structure, labels: NDArray[np.int32], *, backward: bool = False
) -> list[int]:
    """The nodes whose outputs are to be constrained, ascending. O(V + E).

    Parameters
    ----------
    structure : Structure
    labels : int32 [n_axes, n_ops]
        Of a plan.
    backward : bool
        Whether those of the backward pass are among them.
    """
    nodes: set[int] = set()
    for column in columns_of(structure, labels):
        nodes |= _AxisWalk(structure, column, backward=backward).strays()
    return sorted(nodes)


def operands(structure: Structure, labels: NDArray[np.int32]) -> list[tuple[int, int]]:
    """Operands that products read in another way than they lie: nodes, and numbers of operands,
    ascending. O(V + E).

    Where a product sums over the devices, and one operand is moved, the others are to stay as they
    lie: else the partitioner moves these, too, as what is made of the sum is cut.

    Of a kernel that a convolution reads reversed, XLA would gather the parts a second time, after
    they are reversed: it is to be whole before.
    """
    a, rows = structure.arguments, set[tuple[int, int]]()
    kinds = [structure.graph.kinds[op].rpartition(".")[2] for op in structure.op.tolist()]
    wanting = np.flatnonzero(np.isin(np.array(kinds)[a.reader], (*_PRODUCTS, "reverse")))
    for column in columns_of(structure, labels):
        have = structure.ways.outputs[structure.made, column[a.root]]
        want = structure.specs_wanted[structure.wanted, column[a.reader]]
        first = structure.ways.outputs[structure.ways.first_output[structure.way], column]
        of_axis = set[int]()
        for row in wanting.tolist():
            is_whole = have[row] == FLAT and kinds[a.reader[row]] == "reverse"
            is_moved = have[row] >= 0 and want[row] not in (have[row], ANY)
            if is_whole or (is_moved and kinds[a.reader[row]] in _PRODUCTS):
                of_axis.add(row)
        sums = {reader for reader in a.reader[[*of_axis]].tolist() if first[reader] == PARTIAL}
        of_axis |= {row for row in wanting.tolist() if a.reader[row] in sums and want[row] >= 0}
        rows |= {(int(a.reader[row]), int(a.position[row])) for row in of_axis}
    return sorted(rows)


class _AxisWalk:
    """The ops of a model along one axis of the mesh."""

    def __init__(self, structure: Structure, column: Ints, *, backward: bool) -> None:
        self.structure, self.column = structure, column
        a = structure.arguments
        self.order = np.argsort(a.reader, kind="stable")
        self.first = np.searchsorted(a.reader[self.order], np.arange(structure.n + 1)).tolist()
        phases = structure.graph.phases
        of_phases = ("", "f", "b") if backward else ("", "f")
        is_of_these = [phases[op] in of_phases for op in structure.op.tolist()]
        self.runs = np.array(is_of_these) & ~structure.in_update & (structure.stands_for < 0)

    def strays(self) -> set[int]:
        """The nodes whose label is another than what they read would have."""
        strays = set()
        for node, (begin, end) in enumerate(pairwise(self.first)):
            if self.runs[node] and not self._follows(node, self.order[begin:end]):
                strays.add(node)
        return strays

    def _follows(self, node: int, rows: Ints) -> bool:
        structure, a = self.structure, self.structure.arguments
        n = int(structure.ways.n_labels[structure.way[node]])
        agrees = np.zeros(n)
        wants, have = [], []
        for row in rows.tolist():
            spec = self._made(int(a.root[row]), int(a.output[row]))
            if spec == REPLICATE:
                continue
            want = structure.specs_wanted[structure.wanted[row], :n]
            if (want == ANY).all():
                continue
            wants.append(want)
            have.append(spec)
            agrees += (want == spec) * float(
                structure.graph.output_bytes[structure.op[a.root[row]]]
            )
        planned = int(self.column[node])
        best = int(agrees.argmax()) if agrees.any() else 0
        if agrees[planned] == agrees[best]:
            best = planned if agrees.any() else 0
        is_torn = any(want[best] not in (spec, ANY) for want, spec in zip(wants, have, strict=True))
        specs = self._outputs(node, planned)
        is_cut = any(spec != REPLICATE for spec in specs)
        return specs == self._outputs(node, best) and not (is_torn and is_cut)

    def _made(self, root: int, output: int) -> int:
        """The spec of an array where it is read: parts of sums are summed by then."""
        structure = self.structure
        row = structure.ways.first_output[structure.way[root]] + output
        spec = int(structure.ways.outputs[row, self.column[root]])
        return spec if spec >= 0 or spec == FLAT else REPLICATE

    def _outputs(self, node: int, column: int) -> list[int]:
        structure = self.structure
        form = structure.dimensions.forms[structure.dimensions.form_of[structure.op[node]]]
        row = int(structure.ways.first_output[structure.way[node]])
        specs = structure.ways.outputs[row : row + len(form.outputs), column].tolist()
        return [spec if spec >= 0 else REPLICATE for spec in specs]
