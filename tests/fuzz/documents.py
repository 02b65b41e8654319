"""What people and Loadmaster itself write: plans, constraints, clusters, learnt costs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import loadmaster as lm
from loadmaster.costs.adaptive import CostModel
from loadmaster.costs.transfers import TransferTimes

from .files import Mutated, add
from .mutations import json_text, plain_text

_DEVICES = lm.Cluster.preset("2xV100-NVLink")


def _plan_text(data: bytes, others: list[bytes], random: Random) -> bytes:
    """A mutated plan, mostly with the hashes of the graphs that it then has."""
    text = json_text(data, others, random)
    if random.random() < 0.3:
        return text
    try:
        document = json.loads(text)
        for part, key in ((document, "graph_sha256"), (document.get("program"), "sha256")):
            if part and key in part:
                part[key] = lm.OpGraph.from_document(part["graph"]).digest
        return json.dumps(document).encode()
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return text


def _plan(path: Path) -> None:
    plan = lm.Plan.load(path)
    plan.summary()
    lm.Plan.from_document(plan.to_document())


def _constraints(path: Path) -> None:
    found = lm.Constraints.read(path)
    lm.place(lm.read("example:lenet"), _DEVICES, "heft", constraints=found)


def _cluster(path: Path) -> None:
    cluster = lm.Cluster.read(path)
    assert lm.Cluster.from_toml(cluster.to_toml()).digest == cluster.digest


def _recipe(path: Path) -> None:
    recipe = lm.Recipe.load(path)
    assert lm.Recipe.from_toml(recipe.to_toml()) == recipe
    plan = lm.place(lm.read("example:lenet"), _DEVICES, recipe=recipe)
    assert plan.layout is not None
    found = plan.layout.recipe()
    assert lm.Recipe.from_document(found.to_document()) == found
    plan.summary()


#: By name: what reads a document, and how it is mutated.
FORMATS: dict[str, tuple[Callable[[Path], Any], Mutated]] = {
    "plan": (_plan, _plan_text),
    "constraints": (_constraints, plain_text),
    "cluster": (_cluster, plain_text),
    "recipe": (_recipe, plain_text),
    "costs": (CostModel.load, json_text),
    "transfers": (TransferTimes.read, plain_text),
}

for _name, (_how, _mutate) in FORMATS.items():
    add(_name, _how, _mutate)
