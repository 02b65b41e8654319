"""A plan's graph and cluster as the command line takes them, for commands that messages show."""

from __future__ import annotations

from contextlib import suppress

from loadmaster.base import quoting
from loadmaster.base.errors import InputError
from loadmaster.model.clusters.presets import preset
from loadmaster.plans.plan import Plan
from loadmaster.readers.examples import EXAMPLES, load


def of(plan: Plan, command: str, *more: str) -> str:
    """A command on the graph and the cluster of a plan, with more arguments.

    >>> import loadmaster as lm
    >>> plan = lm.place("example:lenet", "2xV100-NVLink", "heft")
    >>> print(of(plan, "place", "--target", "ddp"))
    loadmaster place example:lenet --cluster 2xV100-NVLink --target ddp
    """
    words = ("loadmaster", command, _graph(plan), "--cluster", _cluster(plan), *more)
    return quoting.command(*words)


def _graph(plan: Plan) -> str:
    """The example that a plan's graph is; else the word GRAPH."""
    for name, (file, _) in EXAMPLES.items():
        if file == plan.graph.name and load(name).digest == plan.graph.digest:
            return f"example:{name}"
    return "GRAPH"


def _cluster(plan: Plan) -> str:
    """The preset, or part of one, that a plan's cluster is; else the word CLUSTER."""
    with suppress(InputError):
        if preset(plan.cluster.name).digest == plan.cluster.digest:
            return plan.cluster.name
    return "CLUSTER"
