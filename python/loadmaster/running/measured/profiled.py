"""A measured run as a profile of the user's ops, from which cost models learn."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from loadmaster.base.errors import InputError
from loadmaster.model.profile import Profile

if TYPE_CHECKING:
    from loadmaster.running.measured.measured import Measured


def types_of(measured: Measured) -> tuple[str, ...]:
    """The device types that ops of the user's ran on, in the cluster's order."""
    cluster, on = measured.plan.cluster, _type_of_each(measured)
    return tuple(cluster.types[k].name for k in np.unique(on[on >= 0]).tolist())


def profile(measured: Measured, device_type: str | None = None) -> Profile:
    """Times of the ops of the user's graph; see :meth:`Measured.profile`. O(V steps)."""
    program, cluster = measured.plan.program, measured.plan.cluster
    known = types_of(measured)
    if device_type is None and len(known) > 1:
        raise InputError(f"ops ran on {' and '.join(known)}: say of which type to make a profile")
    chosen = known[0] if device_type is None else device_type
    if chosen not in known:
        raise InputError(
            f"no op ran on a device of type {chosen!r}: they ran on {', '.join(known)}"
        )
    kind = next(t for t in cluster.types if t.name == chosen)
    ran = np.flatnonzero(_type_of_each(measured) == cluster.types.index(kind))
    seconds = measured.op_seconds[:, ran].T
    share = program.share[ran, None]
    whole = np.where(share < 1, np.maximum(seconds - kind.launch, 0.0) / share, seconds)
    ops, at = np.unique(program.origin[ran], return_inverse=True)
    total = np.zeros((len(ops), seconds.shape[1]))
    np.add.at(total, at, whole)
    mean = total / np.bincount(at)[:, None]
    graph = program.source
    names, kinds = ([column[op] for op in ops.tolist()] for column in (graph.names, graph.kinds))
    return Profile(tuple(names), tuple(kinds), mean, chosen)


def _type_of_each(measured: Measured) -> NDArray[np.int64]:
    """The device type of each op of the graph that runs; -1: it does no work of the user's.

    Placeholders do nothing, what the program added is no op of the user's, and the time of a
    member of a collective is the collective's.
    """
    plan = measured.plan
    graph, program = plan.program.graph, plan.program
    types = np.array(plan.cluster.device_types)[plan.running_devices]
    works = ~graph.placeholder & ~graph.is_member & ~program.own
    return np.where(works, types, -1)
