"""Times of the ops of a program from those of the user's graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loadmaster.costs.kernels.seconds import has_kernels, part_seconds
from loadmaster.costs.peaks import peaks
from loadmaster.costs.roofline import (
    PROVENANCES,
    Costs,
    busy_seconds,
    check_roofline,
    is_estimated,
    is_of_kernels,
)
from loadmaster.model.cluster import Cluster
from loadmaster.model.clusters.devices import DeviceType
from loadmaster.model.graph import ANY_TYPE, OpGraph, Texts
from loadmaster.model.program import JOIN, Program, is_added


@dataclass(frozen=True)
class ProgramWork:
    """Ops of a program, as far as their times depend on them.

    Attributes
    ----------
    source : OpGraph
        What the program was made of.
    serves, share, role : columns
        As those of :class:`~loadmaster.model.program.Program`.
    flops, accessed : uint64 columns
    free : bool column
        Views and placeholders.
    runs : uint64 column
        How often each op runs in a step.
    output : sequence of str
        Read of ops that join parts alone.
    """

    source: OpGraph
    serves: NDArray[np.int32]
    share: NDArray[np.float64]
    role: NDArray[np.uint8]
    flops: NDArray[np.uint64]
    accessed: NDArray[np.uint64]
    free: NDArray[np.bool_]
    runs: NDArray[np.uint64]
    output: Texts | Sequence[str]

    @classmethod
    def of(cls, program: Program) -> ProgramWork:
        """All ops of the graph that runs."""
        graph = program.graph
        return cls(
            program.source,
            program.serves,
            program.share,
            program.role,
            graph.flops,
            graph.bytes_accessed,
            graph.view | graph.placeholder,
            graph.runs,
            graph.column_of_texts("output"),
        )


def program_costs(program: Program, before: Costs, cluster: Cluster) -> Costs:
    """Times of the ops that run from those of the program's source: :func:`costs_of` all of them.

    Raises
    ------
    InputError
        A part whose origin has a roofline, on a device type without one.
    """
    return costs_of(ProgramWork.of(program), before, cluster)


def costs_of(work: ProgramWork, before: Costs, cluster: Cluster) -> Costs:
    """Times of ops of a program from those of its source.

    An op that is whole keeps its time. A part's roofline is computed anew, and a part's kernels are
    those of its own sizes, none of which takes longer than the whole op's. A part's measured or
    given time is the whole op's, multiplied by the part's share, plus the device type's launch
    time for each of its runs; its provenance is ``regressed``. An op that the program adds takes
    its roofline, and at least a launch a run. On a type with neither, it takes the shortest time of
    any op of the model. So no added op is free.

    Raises
    ------
    InputError
        A part whose origin has a roofline, on a device type without one.
    """
    own, part = is_added(work.role), work.share != 1.0
    time, provenance = before.time[work.serves], before.provenance[work.serves]
    word = {name: PROVENANCES.index(name) for name in PROVENANCES}
    anew = part & is_estimated(provenance)
    scaled = part & ~anew & time.any(axis=1)
    parts, added = np.flatnonzero(anew), np.flatnonzero(own)
    shortest = added_seconds(before, cluster)
    for k, device_type in enumerate(cluster.types):
        column = time[:, k]
        some = scaled & (column > 0)
        column[some] = column[some] * work.share[some] + device_type.launch * work.runs[some]
        if len(parts):
            measured = work.source.time.get(device_type.name, work.source.time.get(ANY_TYPE))
            column[parts] = (
                _estimated(work, parts, column[parts], provenance[parts], device_type)
                if measured is None
                else measured[work.serves[parts]] * work.share[parts]
            )
        least = shortest[k]
        if device_type.has_roofline:
            column[added] = np.maximum(
                _roofline(work, added, device_type), least * work.runs[added]
            )
        else:
            column[added] = least * work.runs[added]
    provenance[scaled] = word["regressed"]
    known = all(t.has_roofline for t in cluster.types)
    provenance[own] = word["roofline" if known else "regressed"]
    return Costs(time, before.types, provenance)


def added_seconds(before: Costs, cluster: Cluster) -> NDArray[np.float64]:
    """The least seconds of an op that a program adds, per device type: a launch, or the shortest
    time of any op.
    """
    columns = zip(cluster.types, before.time.T, strict=True)
    return np.array([of_type.launch or least_positive(column) for of_type, column in columns])


def least_positive(seconds: NDArray[np.float64]) -> float:
    """The shortest time that is not zero; 0 if there is none."""
    return float(np.min(seconds, where=seconds > 0, initial=np.inf)) if seconds.any() else 0.0


def _estimated(
    work: ProgramWork,
    parts: NDArray[np.intp],
    whole: NDArray[np.float64],
    provenance: NDArray[np.uint8],
    device_type: DeviceType,
) -> NDArray[np.float64]:
    """Seconds of parts of ops whose times follow from their sizes, as their own follow from theirs.

    ``whole`` are the seconds of the whole ops, ``provenance`` where these come from.
    """
    by_kernels = is_of_kernels(provenance) if has_kernels(device_type) else np.zeros(0, dtype=bool)
    if not by_kernels.any():
        return _roofline(work, parts, device_type)
    seconds = np.empty(len(parts))
    some = parts[~by_kernels]
    if len(some):
        seconds[~by_kernels] = _roofline(work, some, device_type)
    some = parts[by_kernels]
    origin = work.serves[some]
    own = part_seconds(work.source, origin, work.flops[some], work.accessed[some], device_type)
    launched = np.where(own.seconds > 0, work.source.launches[origin] * device_type.launch, 0.0)
    seconds[by_kernels] = np.minimum(
        np.where(work.free[some], 0.0, own.seconds + launched),
        np.where(work.share[some] <= 1.0, whole[by_kernels], np.inf),
    )
    return seconds


def _roofline(
    work: ProgramWork, ops: NDArray[np.intp], device_type: DeviceType
) -> NDArray[np.float64]:
    """Seconds of some of the ops, from their own FLOPs and bytes.

    An op computes in the dtype of the op that it serves; one that joins parts, in its own.
    """
    check_roofline(work.source, device_type)
    of, which = np.unique(work.serves[ops], return_inverse=True)
    outputs = work.source.column_of_texts("output")
    peak = peaks([outputs[op] for op in of.tolist()], device_type)[which]
    joins = np.flatnonzero(work.role[ops] == JOIN)
    peak[joins] = peaks([work.output[op] for op in ops[joins].tolist()], device_type)
    launches = work.source.launches[work.serves[ops]]
    launches = np.where(is_added(work.role[ops]), work.runs[ops], launches)
    free = work.free[ops]
    return busy_seconds(work.flops[ops], work.accessed[ops], peak, device_type, free, launches)
