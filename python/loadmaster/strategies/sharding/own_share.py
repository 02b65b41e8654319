"""Labels of processes that run the whole program, each on its own share of the batch."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from loadmaster.base.errors import InputError
from loadmaster.base.reached import reached
from loadmaster.dimensions.dimensions import Dimensions
from loadmaster.dimensions.form import PARTIAL, REPLICATE
from loadmaster.dimensions.words import labels_of
from loadmaster.model.graph import INPUT, OpGraph
from loadmaster.model.recipe import DeviceMesh, Recipe

_AXIS = "batch"


def own_share(graph: OpGraph) -> NDArray[np.int32]:
    """The labels of the ops along an axis that shares the batch, int32 [n_ops].

    A process sums nothing before the gradients of parameters: what is linear in the parts of a sum
    works on these. It gathers nothing that no sample is in, such as the numbers of positions: it
    has these whole. Where no op has a batch that can be shared, all are whole: label 0.
    """
    d = Dimensions.of(graph)
    by_batch = Recipe(DeviceMesh.of({_AXIS: 2}), {_AXIS: {"**": "batch"}})
    try:
        labels: NDArray[np.int32] = labels_of(d, by_batch)[0]
    except InputError:
        return np.zeros(graph.n_ops, np.int32)
    labels = _with_constants_whole(d, labels)
    is_whole = (labels == 0) & (d.form_of >= 0) & ~graph.updates & ~graph.view

    def spec_of(argument: int) -> int:
        """The spec of an argument, as the op that it comes from gives it."""
        root, output = int(d.root[argument]), int(d.output[argument])
        label = int(labels[root]) if root >= 0 else 0
        return d.forms[d.form_of[root]].cuts[label - 1].outputs[output] if label > 0 else REPLICATE

    for op in np.flatnonzero(is_whole).tolist():
        specs = [spec_of(at) for at in range(int(d.first[op]), int(d.first[op + 1]))]
        for at, cut in enumerate(d.forms[d.form_of[op]].cuts if PARTIAL in specs else ()):
            pairs = zip(specs, cut.inputs, strict=True)
            if not cut.works and all(want == PARTIAL for spec, want in pairs if spec == PARTIAL):
                labels[op] = at + 1
                break
    return labels


def _with_constants_whole(d: Dimensions, labels: NDArray[np.int32]) -> NDArray[np.int32]:
    """Labels under which what no sample is in is whole where some op wants it whole."""
    graph, root = d.graph, d.root.tolist()
    readers: dict[int, list[int]] = {}
    for src, dst in zip(graph.src.tolist(), graph.dst.tolist(), strict=True):
        readers.setdefault(src, []).append(dst)
    inputs = np.flatnonzero(graph.stands_for == INPUT).tolist()
    samples = reached(inputs, lambda op: readers.get(op, ()))
    changed, runs = labels.copy(), (d.form_of >= 0) & ~graph.view
    for op in np.flatnonzero(runs & ~graph.updates).tolist()[::-1]:
        sources = root[int(d.first[op]) : int(d.first[op + 1])]
        label, cuts = int(changed[op]), d.forms[d.form_of[op]].cuts
        wants = cuts[label - 1].inputs if label > 0 else (REPLICATE,) * len(sources)
        for source, want in zip(sources, wants, strict=True):
            if want == REPLICATE and source >= 0 and source not in samples:
                changed[source] = min(changed[source], 0)
    return changed
