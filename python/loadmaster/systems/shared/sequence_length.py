"""The number of tokens of a sample, as the inputs of a graph say it."""

from __future__ import annotations

import numpy as np

from loadmaster.model.graph import INPUT, OpGraph
from loadmaster.model.shapes import parse_output
from loadmaster.transforms.shares import batch_size


def sequence_length(graph: OpGraph) -> int | None:
    """The second size of the first input whose first size is the batch; None: there is none.

    >>> import loadmaster as lm
    >>> sequence_length(lm.read("example:gpt3-330m"))
    2048
    """
    batch = batch_size(graph) or 1
    for op in np.flatnonzero(graph.stands_for == INPUT).tolist():
        shape = parse_output(graph.outputs[op])[0][1]
        if shape and len(shape) > 1 and shape[0] == batch:
            return int(shape[1])
    return None
