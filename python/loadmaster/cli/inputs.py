"""The arguments of ``options`` as objects: graphs, plans, clusters, costs, constraints."""

from __future__ import annotations

import argparse
import os
import re
from typing import TYPE_CHECKING, Any

from loadmaster.base.errors import InputError
from loadmaster.base.user_file import is_spec
from loadmaster.cli import values
from loadmaster.cli.printing import note

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from loadmaster.costs import Costs
    from loadmaster.model.cluster import Cluster
    from loadmaster.model.graph import OpGraph
    from loadmaster.model.recipe import Recipe
    from loadmaster.plans.plan import Plan
    from loadmaster.rules.constraints import Constraints
    from loadmaster.running.measured.measured import Measured

#: Arguments that say how a file is read.
_READING = (
    "batch", "shape", "profile", "device_type", "step", "size", "fetch",
    "parameters", "time_unit", "size_unit", "cost_unit",
)  # fmt: skip


#: Form in which some tools name an object of a module: ``torchvision.models:resnet50``.
_OF_MODULE = re.compile(r"(?!(?i:example|instance):)[A-Za-z_][\w.]+:[A-Za-z_]\w*")


def graph(
    arguments: argparse.Namespace,
    source: str | None = None,
    progress: Callable[[str], None] | None = None,
) -> OpGraph:
    """The one graph of a command, or one of several, as its runtime has it; progress tells of a
    capture.
    """
    plain = plain_graph(arguments, source or arguments.graph, progress)
    if getattr(arguments, "costs", None) is not None:
        from loadmaster.costs.observed import Observed, is_observed

        if arguments.costs != "roofline" and is_observed(arguments.costs):
            plain = Observed.load(arguments.costs).on(plain)
    if getattr(arguments, "runtime", None) is None:
        return plain
    from loadmaster.costs.runtimes.priced import at_runtime

    return at_runtime(plain, arguments.runtime)


def plain_graph(
    arguments: argparse.Namespace, source: str, progress: Callable[[str], None] | None = None
) -> OpGraph:
    """One of the graphs of a command, of which no runtime has fused ops."""
    from loadmaster.readers import read

    if is_spec(source):
        from loadmaster.running.tape.models import captured_model

        if reading_flags := [flag for flag in _READING if getattr(arguments, flag, None)]:
            flags = ", ".join("--" + flag.replace("_", "-") for flag in reading_flags)
            raise InputError(f"{source}: leave out {flags}: the function says all of its model")
        return captured_model(source, progress=progress)
    if source.endswith(".py"):
        raise InputError(f"{source}: name the function that builds the model: {source}:FUNCTION")
    if _OF_MODULE.fullmatch(source) and not os.path.exists(source):
        raise InputError(f"{source}: {_of_module(source)}")
    profiles = arguments.profile or []
    sizes = values.halves("--size", arguments.size or [])
    return read(
        source,
        **shapes(arguments),
        profile=profiles[0] if len(profiles) == 1 else profiles or None,
        device_type=arguments.device_type,
        step=None if arguments.step is None else values.whole("--step", arguments.step),
        sizes={symbol: values.whole("--size", n) for symbol, n in sizes} or None,
        fetches=arguments.fetch,
        parameters=arguments.parameters,
        time_unit=arguments.time_unit,
        size_unit=arguments.size_unit,
        cost_unit=arguments.cost_unit,
    )


def _of_module(source: str) -> str:
    """The likely meaning of ``WORD:NAME`` that is no file."""
    from difflib import get_close_matches

    word, _, name = source.partition(":")
    if near := get_close_matches(word, ("example", "instance"), 1):
        return f"did you mean {near[0]}:{name}?"
    return (
        "there is no such file; a model that Python builds is a function in a file of yours, "
        "FILE.py:FUNCTION, which may import others"
    )


def shapes(arguments: argparse.Namespace) -> dict[str, Any]:
    """``--batch`` and ``--shape``, as readers take them."""
    by_name = {}
    for text in arguments.shape:
        name, _, dims = text.rpartition("=")
        try:
            by_name[name] = [int(d) for d in dims.split(",")]
        except ValueError:
            by_name = {}
        if not name or name not in by_name:
            raise InputError(f"--shape {text!r}: wants NAME=1,3,224,224")
    return {"batch": arguments.batch, "shapes": by_name or None}


def saved(
    path: str, graph: OpGraph | None = None, cluster: Cluster | None = None
) -> Plan | Measured:
    """A saved plan or run; it must be for the graph and for the cluster, if given."""
    from loadmaster.base.files import parse_json, read_bytes
    from loadmaster.plans.document import plan_of_document
    from loadmaster.running.measured.document import is_measured, measured_of_document

    document = parse_json(read_bytes(path), path)
    of_document = measured_of_document if is_measured(document) else plan_of_document
    return of_document(document, path, graph, cluster)


def plan(path: str, graph: OpGraph | None = None, cluster: Cluster | None = None) -> Plan:
    """A saved plan, or that of a saved run, as it was predicted."""
    from loadmaster.running.measured.measured import Measured

    loaded = saved(path, graph, cluster)
    return loaded.plan if isinstance(loaded, Measured) else loaded


def seen(path: str, graph: OpGraph | None = None, cluster: Cluster | None = None) -> Plan:
    """A saved plan as it was predicted, or that of a saved run as it was measured."""
    from loadmaster.running.measured.measured import Measured

    loaded = saved(path, graph, cluster)
    return loaded.seen if isinstance(loaded, Measured) else loaded


def wanted_graph(arguments: argparse.Namespace) -> OpGraph | None:
    """The graph that a plan must be for, where ``--graph`` says one."""
    from loadmaster.readers import read

    return read(arguments.graph) if arguments.graph else None


def cluster(text: str) -> Cluster:
    """A preset, a TOML file, or the cluster of an instance."""
    from loadmaster.tasks.given import as_cluster

    return as_cluster(text)


def hosted_cluster(arguments: argparse.Namespace) -> Cluster:
    """The cluster, with the hosts of a runtime."""
    whole = cluster(arguments.cluster)
    if arguments.runtime is None:
        return whole
    from loadmaster.costs.runtimes.priced import on_hosts

    return on_hosts(whole, arguments.runtime)


def limited_cluster(arguments: argparse.Namespace) -> Cluster:
    """The cluster, with no more memory than ``--max-memory`` allows, and with the hosts of a
    runtime.
    """
    whole = hosted_cluster(arguments)
    if arguments.max_memory is None:
        return whole
    from loadmaster.base.files import parse_json
    from loadmaster.writers import max_memory

    if not arguments.max_memory.lstrip().startswith("{"):
        raise InputError(
            f"--max-memory {arguments.max_memory}: wants bytes by device, such as "
            '\'{"0": "10GiB"}\'; --reserve 2GiB keeps memory free on every device'
        )
    return max_memory(whole, parse_json(arguments.max_memory.encode(), "--max-memory"))


def costs(arguments: argparse.Namespace, graph: OpGraph, cluster: Cluster) -> Costs | None:
    """Costs of a file, or the roofline, for a graph on a cluster; of a file, says on stderr which
    ops they share.
    """
    if arguments.costs is None:
        if arguments.explore:
            raise InputError("--explore is for --costs: without them nothing is known or unknown")
        return None
    from loadmaster.costs import CostModel
    from loadmaster.costs.observed import Observed, is_observed
    from loadmaster.costs.roofline import roofline_costs

    if arguments.costs == "roofline":
        return roofline_costs(graph, cluster)
    if is_observed(arguments.costs):
        if arguments.explore:
            raise InputError("--explore is for costs that were learnt op by op")
        return Observed.load(arguments.costs).costs(graph, cluster)
    model = CostModel.load(arguments.costs)
    note(str(model.join(graph)).replace("\n", "; "))
    return model.costs(graph, cluster, explore=arguments.explore)


def constraints(arguments: argparse.Namespace, cluster: Cluster | None = None) -> Constraints:
    """Constraints of the file, merged with those of the command line.

    Where neither has a reserve, the default one of a cluster is kept free, if one is given.
    """
    from loadmaster.rules.constraints import Constraints

    kinds: dict[str, list[str]] = {}
    for device, pattern in values.halves("--kinds", arguments.kinds):
        kinds.setdefault(device, []).append(pattern)
    own = Constraints(
        pin=dict(values.halves("--pin", arguments.pin)),
        reserve=values.per_device("--reserve", arguments.reserve),
        no_split=arguments.no_split,
        contiguous=arguments.contiguous,
        kinds=kinds,
    )
    if arguments.constraints:
        own = Constraints.read(arguments.constraints).merged(own)
    is_said = arguments.reserve or own.reserve or getattr(arguments, "max_memory", None)
    if cluster is None or is_said:
        return own
    from loadmaster.rules.reserves import kept_by_default

    return kept_by_default(cluster, getattr(arguments, "runtime", None)).merged(own)


def recipe(path: str | None) -> Recipe | None:
    """The recipe of a file, where one is named."""
    from loadmaster.model.recipe import Recipe

    return None if path is None else Recipe.load(path)


def chosen(arguments: argparse.Namespace) -> dict[str, Any]:
    """``--option`` and ``--effort``, as methods take them."""
    efforts = [] if arguments.effort is None else [f"effort={arguments.effort}"]
    return values.options([*efforts, *arguments.option])


def methods(arguments: argparse.Namespace) -> list[Any]:
    """Names of the methods to run; by default all, or none where there are targets."""
    from loadmaster.strategies import METHODS

    if arguments.methods:
        return [*arguments.methods.split(",")]
    return [] if arguments.targets else list(METHODS)


def targets(arguments: argparse.Namespace) -> list[str]:
    """Names of the targets to plan for; none by default."""
    return arguments.targets.split(",") if arguments.targets else []


def check_planners(
    methods: Iterable[str], targets: Iterable[str], options: dict[str, Any] | None = None
) -> None:
    """Refuses methods and targets of no known name, and options that they do not take, if these are
    given: before a model is captured.
    """
    from loadmaster.strategies.registry import function_of, options_of
    from loadmaster.systems.registry import check_no_target, target_of

    for name in methods:
        check_no_target(name)
        if options is None:
            options_of(name)
        else:
            function_of(name, options)
    for name in targets:
        target_of(name).checked(options or {})
