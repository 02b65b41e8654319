"""Parts that writers of systems share: names of devices, and refusals.

The name of a device in another system follows from its family and its number
(:mod:`loadmaster.model.families`). ``names`` overrides the name of a device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from loadmaster.base.errors import InputError
from loadmaster.model.families import families
from loadmaster.plans.plan import Plan

#: Number of ops or modules that an error names before it says how many more there are.
NAMED = 3


def device_names(
    plan: Plan, spelled: Callable[[str, int], str], names: Mapping[str, str] | None
) -> list[str]:
    """The name of each device of the plan's cluster in another system.

    Parameters
    ----------
    plan
    spelled
        From family and number to the name.
    names
        Device name to the name to use instead.

    Raises
    ------
    InputError
        ``names`` speaks of a device that the cluster does not have.
    """
    names_given = dict(names or {})
    for name in names_given:
        plan.cluster.index(name)
    return [
        names_given.get(device.name, spelled(*family))
        for device, family in zip(plan.cluster.devices, families(plan.cluster), strict=True)
    ]


def torch_device(family: str, number: int) -> str:
    """PyTorch's name: ``"cuda:0"``, ``"cpu"``, ``"npu:0"``."""
    return "cpu" if family == "cpu" else f"{'cuda' if family == 'gpu' else family}:{number}"


def listed(names: Sequence[str]) -> str:
    """The first few names, and how many more there are.

    >>> listed(["a", "b", "c", "d", "e"])
    "'a', 'b', 'c' and 2 more"
    """
    shown = ", ".join(map(repr, names[:NAMED]))
    return shown + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")


def placed(plan: Plan, ops: Iterable[int]) -> str:
    """The first few ops with their devices, as ``op on device``."""
    ops = list(ops)
    names = [d.name for d in plan.cluster.devices]
    shown = [f"{plan.graph.names[i]!r} on {names[plan.devices[i]]}" for i in ops[:NAMED]]
    return ", ".join(shown) + (f" and {len(ops) - NAMED} more" if len(ops) > NAMED else "")


def pattern(module: str) -> str:
    """A module with its numbers as wildcards: what ``--no-split`` should be given.

    >>> pattern("model.layers.3.mlp")
    'model.layers.*.mlp'
    """
    return ".".join("*" if part.isdecimal() else part for part in module.split("."))


def divided(plan: Plan) -> str:
    """That the plan has an op of the model in parts or replicas; empty: it has none."""
    ops = np.flatnonzero(plan.devices < 0).tolist()
    if not ops:
        return ""
    parts = plan.parts(ops[0])
    kind = "replicas" if parts[0].replica >= 0 else "parts"
    used = dict.fromkeys(part.device for part in parts)
    on = " and ".join(used) if len(used) <= 2 else f"{len(used)} devices"
    more = f", and so {len(ops) - 1} more" if len(ops) > 1 else ""
    return f"the plan has op {plan.graph.names[ops[0]]!r} in {len(parts)} {kind} on {on}{more}"


def refuse_parts(plan: Plan, system: str) -> None:
    """Refuses a plan in which parts or replicas do the work of an op of the model.

    Raises
    ------
    InputError
        An op has parts or replicas; it is named.
    """
    if in_parts := divided(plan):
        raise InputError(
            f"{system} has every op once, but {in_parts}: place whole ops, as auto does with "
            "split=none"
        )


def check_names(plan: Plan, present: Iterable[str], source: str) -> None:
    """Refuses a model whose ops are not those of the plan's graph.

    Raises
    ------
    InputError
        A name that the plan does not have, or an op that the plan has in parts.
    """
    refuse_parts(plan, source)
    missing = sorted(set(present) - set(plan.graph.names))
    if missing:
        raise InputError(
            f"{source} is not the model that the plan is for: the plan has no op {listed(missing)}"
        )


def run_order(plan: Plan) -> NDArray[np.int32]:
    """The ops that run, views and placeholders left out, by index of the plan's graph.

    If the ops can run in the graph's own order, as in a traced graph, that order is kept. Else the
    order is topological.
    """
    import loadmaster.fast as fast

    reduced = plan.graph.reduced
    src, dst, _, _ = reduced.graph.flows()
    if bool((src < dst).all()):
        return reduced.op_of
    ordered: NDArray[np.int32] = reduced.op_of[fast.m_topo(reduced.graph)]
    return ordered
