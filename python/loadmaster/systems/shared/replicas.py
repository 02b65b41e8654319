"""Parts that systems share which run a process per device, each on an equal share of the batch."""

from __future__ import annotations

from loadmaster.base import checks
from loadmaster.base.errors import InputError
from loadmaster.base.units import counted
from loadmaster.judge.problem import Problem
from loadmaster.strategies.sharding.processes import equal_groups, of_one_family
from loadmaster.systems.registry import refused
from loadmaster.transforms.samples import joined_samples
from loadmaster.transforms.shares import batch_size


def check_kind(problem: Problem, name: str) -> None:
    """Refuses what is no training step with a batch and an optimizer."""
    graph = problem.model
    if "b" not in graph.phases:
        raise refused(name, f"no op of {graph.name!r} is of a backward pass")
    if not graph.updates.any():
        raise refused(
            name, f"no op of {graph.name!r} updates a parameter: capture it with an optimizer"
        )
    if batch_size(graph) is None:
        raise refused(name, f"{graph.name!r} does not say how many samples its batch has")
    if reason := joined_samples(graph):
        raise refused(name, reason)


def numbers_of_devices(problem: Problem, name: str, n: int | None) -> list[list[int]]:
    """The devices for every number of processes that divides the batch, the most first; or for the
    one that is asked for.

    Raises
    ------
    InputError
        The number asked for is more than there are devices of use, or does not divide the batch.
    """
    groups = equal_groups(problem)
    if n is None:
        return groups
    checks.integer("replicas", n, 1, len(of_one_family(problem)))
    some = [devices for devices in groups if len(devices) == n]
    if not some:
        batch = batch_size(problem.model) or 1
        raise InputError(
            f"target {name!r}: replicas is {n}, and a batch of {counted(batch, 'sample')} is "
            f"not {n} equal shares"
        )
    return some


def numbers_of_several(problem: Problem, name: str, n: int | None) -> list[list[int]]:
    """As :func:`numbers_of_devices`, without one device alone.

    Raises
    ------
    InputError
        There are no several devices with an equal share each: what is in the way, and the way out.
    """
    several = [some for some in numbers_of_devices(problem, name, n) if len(some) > 1]
    if several:
        return several
    if n is not None:
        raise InputError(f"target {name!r}: replicas is {n}, and several share the state")
    most = len(of_one_family(problem))
    if most == 1:
        raise InputError(
            f"target {name!r}: one device can be used, or is of the fastest kind, and there is "
            "nothing to share: leave constraints out, or plan for more devices"
        )
    batch = counted(batch_size(problem.model) or 1, "sample")
    raise InputError(
        f"target {name!r}: a batch of {batch} has no equal shares for 2 of the {most} devices or "
        f"more: capture the batch of all processes together, such as {most} times as many samples"
    )
