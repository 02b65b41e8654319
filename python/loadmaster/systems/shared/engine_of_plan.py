"""The engine of PyTorch that runs a plan, its processes, and what it cannot do of the plan."""

from __future__ import annotations

from collections.abc import Iterator

from loadmaster.plans.plan import Plan
from loadmaster.systems.shared import replicated_plans, sharded_plans, zero, zero_plans
from loadmaster.systems.shared.engines import Engine
from loadmaster.systems.shared.processes import devices_of
from loadmaster.systems.shared.refusal import Reason

#: What is said of plans of each engine.
_PLANS = {"ddp": replicated_plans, "fsdp": sharded_plans, "deepspeed": zero_plans}


def engine_of(plan: Plan) -> Engine:
    """The engine that a plan is made for, or that is nearest to it.

    >>> import loadmaster as lm
    >>> alexnet, two = lm.read("example:alexnet"), lm.Cluster.preset("2xV100-NVLink")
    >>> [engine_of(lm.place(alexnet, two, target=name)) for name in ("ddp", "fsdp", "deepspeed")]
    ['ddp', 'fsdp', 'deepspeed']
    """
    graph = plan.program.graph
    if plan.target is not None and zero.SAID in graph.meta:
        return "deepspeed"
    if plan.recipe is not None:
        return "fsdp"
    is_scattered = any(label.startswith("reduce_scatter") for label in graph.collectives)
    return "deepspeed" if is_scattered else "ddp"


def in_the_way(plan: Plan, engine: Engine, name: str) -> Iterator[Reason]:
    """Everything that an engine cannot do of a plan, but for a plan that was made for the system of
    a name, or for the engine alone.
    """
    if plan.target not in (name, engine):
        yield from _PLANS[engine].in_the_way(plan)


def ranked_devices(plan: Plan) -> list[int]:
    """The device of each process, by its rank."""
    if plan.recipe is not None:
        devices: list[int] = plan.recipe.mesh.on(plan.cluster).tolist()
        return devices
    return devices_of(plan)
