"""Times of the ops of a program from those of the user's graph."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from loadmaster.costs.roofline import PROVENANCES, Costs, busy_seconds, check_roofline, peaks
from loadmaster.model.cluster import Cluster, DeviceType
from loadmaster.model.graph import ANY_TYPE
from loadmaster.model.program import JOIN, Program


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
    for k, device_type in enumerate(cluster.types):
        column = time[:, k]
        some = scaled & (column > 0)
        column[some] = column[some] * program.share[some] + device_type.launch
        if len(parts):
            measured = graph.time.get(device_type.name, graph.time.get(ANY_TYPE))
            column[parts] = (
                _roofline(program, parts, device_type) if measured is None else measured[parts]
            )
        least = device_type.launch or least_positive(before.time[:, k])
        if device_type.has_roofline:
            column[added] = np.maximum(_roofline(program, added, device_type), least)
        else:
            column[added] = least
    provenance[scaled] = word["regressed"]
    known = all(t.has_roofline for t in cluster.types)
    provenance[own] = word["roofline" if known else "regressed"]
    return Costs(time, before.types, provenance)


def least_positive(seconds: NDArray[np.float64]) -> float:
    """The shortest time that is not zero; 0 if there is none."""
    return float(np.min(seconds, where=seconds > 0, initial=np.inf)) if seconds.any() else 0.0


def _roofline(
    program: Program, ops: NDArray[np.intp], device_type: DeviceType
) -> NDArray[np.float64]:
    """Seconds of some ops of the graph that runs, from their own FLOPs and bytes.

    An op computes in the dtype of the op that it serves; one that joins parts, in its own.
    """
    graph, source = program.graph, program.source
    check_roofline(graph, device_type)
    serves = program.serves[ops]
    of, which = np.unique(serves, return_inverse=True)
    peak = peaks([source.outputs[op] for op in of.tolist()], device_type)[which]
    joins = np.flatnonzero(program.role[ops] == JOIN)
    peak[joins] = peaks([graph.outputs[op] for op in ops[joins].tolist()], device_type)
    flops, moved = graph.flops[ops], graph.bytes_accessed[ops]
    free = graph.view[ops] | graph.placeholder[ops]
    return busy_seconds(flops, moved, peak, device_type, free)
