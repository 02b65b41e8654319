"""The parts of an op in a plan: ops that run and do its work, each with its device and share."""

from __future__ import annotations

from typing import NamedTuple

from loadmaster.base.errors import InputError
from loadmaster.plans.plan import Plan


class OpPart(NamedTuple):
    """An op of the graph that runs which does the work of a user's op, or a share of it.

    Attributes
    ----------
    name : str
        Of the op that runs, as pictures show it.
    device : str
    share : float
        Of the work.
    replica : int
        The data-parallel replica that it is in; -1: none.
    """

    name: str
    device: str
    share: float
    replica: int


def parts(plan: Plan, op: str | int) -> tuple[OpPart, ...]:
    """The op itself, or its parts; see :meth:`Plan.parts`."""
    program, names = plan.program, plan.program.graph.names
    return tuple(
        OpPart(
            names[i],
            plan.cluster.devices[int(plan.running_devices[i])].name,
            float(program.share[i]),
            int(program.replica[i]),
        )
        for i in program.parts_of(plan.graph.index(op)).tolist()
    )


def device(plan: Plan, op: str | int) -> str:
    """The device that all parts of an op are on; see :meth:`Plan.device`."""
    on = list(dict.fromkeys(part.device for part in parts(plan, op)))
    if len(on) > 1:
        name = plan.graph.names[plan.graph.index(op)]
        raise InputError(f"op {name!r} has parts on {', '.join(on)}: ask for plan.parts({name!r})")
    return on[0]
