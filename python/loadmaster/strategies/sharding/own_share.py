"""Labels of processes that run the whole program, each on its own share of the batch."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from loadmaster.base.errors import InputError
from loadmaster.dimensions.dimensions import Dimensions
from loadmaster.dimensions.form import PARTIAL, REPLICATE
from loadmaster.dimensions.words import labels_of
from loadmaster.model.graph import OpGraph
from loadmaster.model.recipe import DeviceMesh, Recipe

_AXIS = "batch"


def own_share(graph: OpGraph) -> NDArray[np.int32]:
    """The labels of the ops along an axis that shares the batch, int32 [n_ops].

    A process sums nothing before the gradients of parameters: what is linear in the parts of a sum
    works on these. Where no op has a batch that can be shared, all are whole: label 0.
    """
    d = Dimensions.of(graph)
    by_batch = Recipe(DeviceMesh.of({_AXIS: 2}), {_AXIS: {"**": "batch"}})
    try:
        labels: NDArray[np.int32] = labels_of(d, by_batch)[0]
    except InputError:
        return np.zeros(graph.n_ops, np.int32)
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
