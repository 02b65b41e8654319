"""Real graphs on clusters: the examples that come along on presets, and graphs of own clusters.

What is known of the first was found by Loadmaster's own methods. ``best.toml`` has it, with how it
is found again.
"""

from __future__ import annotations

import tomllib
from functools import cache
from importlib import resources
from typing import Any

from loadmaster.base.errors import InputError
from loadmaster.base.text import meant
from loadmaster.model.cluster import Cluster
from loadmaster.model.graph import ESTIMATED_BY, OpGraph
from loadmaster.readers import examples, opgraph
from loadmaster.readers.instances.instance import Instance

#: Presets that the listed instances are on.
CLUSTERS = ("4xV100-PCIe", "8xA100-NVLink")

#: Graphs whose times were measured on four types of devices, with their clusters, by name.
MEASURED = {"googlenet": "moirai-googlenet", "transformer": "moirai-transformer"}

_MOIRAI = "sample data of Moirai: times measured on four types of GPUs, and their links"


@cache
def _known() -> dict[str, Any]:
    text = (resources.files(__package__) / "best.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def names() -> list[str]:
    """Names of the listed ones: each traced example on each of :data:`CLUSTERS`."""
    traced = [name for name in examples.EXAMPLES if name not in MEASURED]
    return [f"{name}@{cluster}" for name in traced for cluster in CLUSTERS]


def load(name: str) -> Instance:
    """The instance of a name such as ``"lenet@4xV100-PCIe"``: any example on any preset.

    Raises
    ------
    InputError
        No such example or preset.
    """
    model, at, preset = name.partition("@")
    if not at or model not in examples.EXAMPLES:
        raise InputError(
            f"no instance is named 'models/{name}': wants models/EXAMPLE@PRESET, such as "
            f"models/lenet@4xV100-PCIe{meant(model, sorted(examples.EXAMPLES))}"
        )
    return _with_known(
        f"models/{name}",
        examples.load(model).with_columns({}, meta={ESTIMATED_BY: "roofline"}),
        Cluster.preset(preset),
        examples.EXAMPLES[model][1] + "; traced to operator level",
        "MIT OR Apache-2.0",
    )


def measured_names() -> list[str]:
    """Names of the graphs that have clusters of their own."""
    return list(MEASURED)


def load_measured(name: str) -> Instance:
    """A measured graph on its own cluster: ``"googlenet"`` or ``"transformer"``.

    Raises
    ------
    InputError
        None has that name.
    """
    if name not in MEASURED:
        raise InputError(f"no instance is named 'measured/{name}'{meant(name, MEASURED)}")
    graph = examples.load(name) if name in examples.EXAMPLES else _graph(MEASURED[name])
    text = _file(f"{MEASURED[name]}.cluster.toml").read_text(encoding="utf-8")
    cluster = Cluster.from_toml(text, MEASURED[name], bare=True)
    return _with_known(f"measured/{name}", graph, cluster, _MOIRAI, "MIT")


def _file(name: str) -> Any:
    return resources.files(__package__) / "data" / name


def _graph(name: str) -> OpGraph:
    with resources.as_file(_file(f"{name}.json.gz")) as path:
        return opgraph.read(path)


def _with_known(name: str, graph: OpGraph, cluster: Cluster, source: str, licence: str) -> Instance:
    known = _known().get(name, {})
    whole, split = known.get("whole", {}), known.get("split", {})
    return Instance(
        name,
        graph,
        cluster,
        best_known=whole.get("seconds"),
        best_by=whole.get("by", ""),
        best_split=split.get("seconds"),
        split_by=split.get("by", ""),
        lower_bound=known.get("bound", {}).get("seconds"),
        bound_by=known.get("bound", {}).get("by", ""),
        source=source,
        licence=licence,
    )
