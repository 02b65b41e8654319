"""Kernels that torch.compile makes of ops, by Inductor's rules (Ansel et al., ASPLOS 2024).

A pointwise op, a reduction or a norm joins the kernel of an op that it reads, where both walk
through as many elements, or where it works on what a reduction leaves. Kernels that one op reads
are one, where neither waits for the other. Products, attention, convolutions, gathers and scatters
are kernels by themselves: as Inductor runs them unless asked to tune, they take no epilogue. The
optimizer is not compiled.
"""

from __future__ import annotations

import math
import re

import numpy as np
from numpy.typing import NDArray

from loadmaster.costs.runtimes.one_kernel import ALONE, makers
from loadmaster.model.graph import OpGraph
from loadmaster.model.shapes import parse_output

#: Ops of one kernel at most, as Inductor has it.
MOST = 64

#: Kinds that are kernels by themselves, whatever they read; and so is what counts FLOPs.
_ALONE = re.compile(
    r"cat\b|pool|upsample|interpolate|cumsum|sort|topk|embedding|scatter|gather|index|pad|nll_loss"
    r"|roll|flip|unfold|nonzero|multinomial|linalg|fft|take|one_?hot"
)

#: Kinds that walk through rows, and leave as much as they read.
_NORMS = re.compile(r"norm|softmax", re.IGNORECASE)

#: Kinds that leave less than they walk through.
_REDUCTIONS = re.compile(
    r"\b_?(sum|mean|amax|amin|max|min|var|std|var_mean|argmax|argmin|any|all|prod)\b"
)


class Kernels:
    """Kernels under way, as a graph is walked through in its order.

    Sets of kernels are bits of whole numbers. What an op waits for are the kernels that end before
    it begins, itself or through others.
    """

    def __init__(self, n_ops: int) -> None:
        self.kernel_of = [ALONE] * n_ops
        self.op_waits = [0] * n_ops
        self.parent: list[int] = []
        self.elements: list[int] = []
        self.count: list[int] = []
        self.first: list[int] = []
        #: The kernel itself and those that became part of it.
        self.bits: list[int] = []
        self.waits: list[int] = []

    def of(self, op: int) -> int:
        """The kernel that an op is in; :data:`~.one_kernel.ALONE`: it is one by itself."""
        kernel = self.kernel_of[op]
        while kernel != ALONE and self.parent[kernel] != kernel:
            kernel = self.parent[kernel]
        return kernel

    def begun(self, op: int, elements: int) -> int:
        """A new kernel that walks through so many elements, from an op on."""
        kernel = len(self.parent)
        self.parent.append(kernel)
        self.elements.append(elements)
        self.count.append(0)
        self.first.append(op)
        self.bits.append(1 << kernel)
        self.waits.append(0)
        return kernel

    def merged(self, one: int, other: int, now: int) -> None:
        """Makes one kernel of two, before an op is looked at."""
        self.parent[other] = one
        self.count[one] += self.count[other]
        self.first[one] = min(self.first[one], self.first[other])
        self.bits[one] |= self.bits[other]
        self.waits[one] |= self.waits[other]
        self._passed_on(one, now)

    def joined(self, kernel: int, op: int, waits: int) -> None:
        """Puts an op that waits for some kernels into another one."""
        self.kernel_of[op] = kernel
        self.count[kernel] += 1
        waits &= ~self.bits[kernel]
        if waits & ~self.waits[kernel]:
            self.waits[kernel] |= waits
            self._passed_on(kernel, op)

    def _passed_on(self, kernel: int, now: int) -> None:
        """Lets all that waits for a kernel wait for what the kernel waits for."""
        for op in range(self.first[kernel] + 1, now):
            at = self.of(op)
            waits = self.op_waits if at == ALONE else self.waits
            place = op if at == ALONE else at
            if at != kernel and waits[place] & self.bits[kernel]:
                waits[place] |= self.waits[kernel] | self.bits[kernel]

    def before(self, op: int) -> int:
        """The kernels that end before what reads an op begins."""
        kernel = self.of(op)
        return self.op_waits[op] if kernel == ALONE else self.waits[kernel] | self.bits[kernel]


def kernels_of(graph: OpGraph) -> NDArray[np.int64]:
    """The kernel of each op, int64 [n_ops]; :data:`~.one_kernel.ALONE`: one by itself.

    No kernel waits for itself, through others.

    Notes
    -----
    O((V + E) K / 64), K being the number of kernels; more where kernels are long under way.
    """
    maker, reads = makers(graph), _reads(graph)
    left, walked, may = _elements(graph, reads)
    kernels = Kernels(graph.n_ops)
    for op in range(graph.n_ops):
        if graph.view[op] or graph.placeholder[op]:
            continue
        read = sorted({int(maker[source]) for source in reads[op]})
        best = ALONE
        for source in read if may[op] else ():
            kernel = kernels.of(source)
            if kernel in (ALONE, best) or kernels.count[kernel] >= MOST:
                continue
            if walked[op] not in (kernels.elements[kernel], left[source]):
                continue
            others = (other for other in read if kernels.of(other) != kernel)
            if any(kernels.before(other) & kernels.bits[kernel] for other in others):
                continue
            if best == ALONE:
                best = kernel
            elif kernels.elements[kernel] == kernels.elements[best]:
                kernels.merged(best, kernel, op)
        waits = 0
        for source in read:
            waits |= kernels.before(source)
        kernels.op_waits[op] = waits
        if may[op]:
            best = kernels.begun(op, walked[op]) if best == ALONE else best
            kernels.joined(best, op, waits)
    return np.array([kernels.of(op) for op in range(graph.n_ops)], dtype=np.int64)


def _reads(graph: OpGraph) -> list[list[int]]:
    """The ops that each op reads a tensor of."""
    reads: list[list[int]] = [[] for _ in range(graph.n_ops)]
    data = np.ones(graph.n_edges, dtype=bool) if graph.tensor is None else graph.tensor >= 0
    for source, op in zip(graph.src[data].tolist(), graph.dst[data].tolist(), strict=True):
        reads[op].append(source)
    return reads


def _elements(graph: OpGraph, reads: list[list[int]]) -> tuple[list[int], list[int], list[bool]]:
    """Elements that each op leaves, and walks through; True where it may share a kernel."""
    by_output = {text: _count(text) for text in set(graph.outputs)}
    left = [by_output[text] for text in graph.outputs]
    walked, may = list(left), [False] * graph.n_ops
    for op in range(graph.n_ops):
        if graph.view[op] or graph.placeholder[op] or graph.phases[op] == "o" or graph.flops[op]:
            continue
        kind = graph.kinds[op]
        if _ALONE.search(kind) or not left[op]:
            continue
        most = max((left[source] for source in reads[op]), default=0)
        if _NORMS.search(kind) or _REDUCTIONS.search(kind):
            walked[op] = max(left[op], most)
        elif most > left[op]:
            continue
        may[op] = graph.runs[op] == 1
    return left, walked, may


def _count(output: str) -> int:
    """Elements of the first output; 0: nobody says."""
    shapes = [sizes for _, sizes in parse_output(output) if sizes is not None]
    return math.prod(shapes[0]) if shapes else 0
