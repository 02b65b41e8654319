"""Times of the ops of a program from those of the user's graph."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadmaster.costs.roofline import PROVENANCES, Costs, roofline
from loadmaster.model.cluster import Cluster
from loadmaster.model.graph import ANY_TYPE, OpGraph
from loadmaster.model.program import Program


def program_costs(program: Program, before: Costs, cluster: Cluster) -> Costs:
    """Times of the ops that run from those of the program's source.

    An op that is whole keeps its time. A part's roofline is computed anew. A part's measured or
    given time is the whole op's, multiplied by the part's share, plus the device type's launch
    time; its provenance is ``regressed``. An op that the program adds takes its roofline, and at
    least a launch. On a type with neither, it takes the shortest time of any op of the model. So no
    added op is free.

    Raises
    ------
    InputError
        A part whose origin has a roofline, on a device type without one.
    """
    graph, own, part = program.graph, program.own, program.share < 1.0
    time = before.time[program.serves]
    provenance = before.provenance[program.serves]
    word = {name: PROVENANCES.index(name) for name in PROVENANCES}
    anew = part & (provenance == word["roofline"])
    scaled = part & ~anew & time.any(axis=1)
    parts, added = np.flatnonzero(anew), np.flatnonzero(own)
    of_parts, of_added = _rows(graph, parts), _rows(graph, added)
    for k, device_type in enumerate(cluster.types):
        column = time[:, k]
        some = scaled & (column > 0)
        column[some] = column[some] * program.share[some] + device_type.launch
        if of_parts is not None:
            measured = of_parts.time.get(device_type.name, of_parts.time.get(ANY_TYPE))
            column[parts] = roofline(of_parts, device_type) if measured is None else measured
        least = device_type.launch or least_positive(before.time[:, k])
        if device_type.has_roofline and of_added is not None:
            column[added] = np.maximum(roofline(of_added, device_type), least)
        else:
            column[added] = least
    provenance[scaled] = word["regressed"]
    known = all(t.has_roofline for t in cluster.types)
    provenance[own] = word["roofline" if known else "regressed"]
    return Costs(time, before.types, provenance)


def least_positive(seconds: NDArray[np.float64]) -> float:
    """The shortest time that is not zero; 0 if there is none."""
    return float(np.min(seconds, where=seconds > 0, initial=np.inf)) if seconds.any() else 0.0


def _rows(graph: OpGraph, rows: NDArray[np.intp]) -> OpGraph | None:
    """A graph of some ops, with the columns that costs depend on and no edges; None: no ops."""
    if not len(rows):
        return None
    ops: dict[str, Any] = {
        "name": [str(row) for row in rows],
        "kind": [graph.kinds[row] for row in rows],
        "output": [graph.outputs[row] for row in rows],
        "flops": graph.flops[rows],
        "bytes_accessed": graph.bytes_accessed[rows],
        "view": graph.view[rows],
        "time": {kind: seconds[rows] for kind, seconds in graph.time.items()},
    }
    return OpGraph(ops, {"src": [], "dst": []})
