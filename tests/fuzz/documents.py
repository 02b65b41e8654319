"""What people and Loadmaster itself write: plans, runs, constraints, clusters, learnt costs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import loadmaster as lm
from loadmaster.costs.adaptive import CostModel
from loadmaster.costs.transfers import TransferTimes
from loadmaster.judge.coarsening import read_rules
from loadmaster.readers.planners.max_load import MaxLoad
from loadmaster.readers.planners.piper import Piper
from loadmaster.strategies.pipelines import max_load, piper

from .files import Mutated, add
from .frame import refused
from .mutations import json_text, plain_text, toml_text

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
    again = lm.Plan.from_document(plan.to_document())
    plan.summary()
    plan.explain(plan.graph.names[-1])
    str(plan.diff(again))
    if plan.graph.n_ops < 20:
        plan.report(path.with_suffix(".html"))
        with refused():
            lm.what_if(plan, memory="1GiB")


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


def _measured(path: Path) -> None:
    seen = lm.Measured.load(path)
    seen.summary()


def _max_load(path: Path) -> None:
    max_load.split(MaxLoad.read(path))


def _piper(path: Path) -> None:
    piper.stages(Piper.read(path))


#: By name: what reads a document, and how it is mutated.
FORMATS: dict[str, tuple[Callable[[Path], Any], Mutated]] = {
    "plan": (_plan, _plan_text),
    "constraints": (_constraints, toml_text),
    "cluster": (_cluster, toml_text),
    "recipe": (_recipe, toml_text),
    "costs": (CostModel.load, json_text),
    "measured": (_measured, json_text),
    "max-load": (_max_load, json_text),
    "piper": (_piper, json_text),
    "rules": (read_rules, toml_text),
    "transfers": (TransferTimes.read, plain_text),
}

for _name, (_how, _mutate) in FORMATS.items():
    add(_name, _how, _mutate, in_ci=100)
