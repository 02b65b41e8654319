"""Targets by models: what is placed for a target exports to it, and runs in what it is for.

Needs PyTorch, which the models are modules of, and for some targets their own packages.
"""

from __future__ import annotations

import importlib
import json
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch 2.5 or later")

from target_models import EXAMPLES, MODULES, PACKAGES, graph_of, onnx_file  # noqa: E402

import loadmaster as lm  # noqa: E402
from loadmaster.base.errors import InputError  # noqa: E402
from loadmaster.systems.registry import planned_for  # noqa: E402
from loadmaster.writers.export import export, form_of  # noqa: E402

CASES = tomllib.loads((Path(__file__).parents[1] / "targets.toml").read_text()).get("case", [])

#: The keys of a case, and whether it must have them.
KEYS = {
    "target": True, "model": True, "cluster": True, "options": False, "train": False,
    "memory": False, "runs": False, "refused": False,
}  # fmt: skip

#: Models whose like runs in each run: a convolutional net, a decoder.
LARGER = ("mobilenet", "tiny-llama")


def named(case):
    more = [*(["train"] if case.get("train") else []), *case.get("memory", {}).values()]
    return "-".join([case["target"], case["model"], *more])


def test_the_table_is_of_known_targets_and_models():
    for case in CASES:
        assert set(case) <= set(KEYS), case
        assert {key for key, needed in KEYS.items() if needed} <= set(case), case
        assert ("runs" in case) != ("refused" in case), case
        assert case["target"] in planned_for(), case
        assert case["model"] in (*MODULES, *EXAMPLES), case
        if case.get("runs"):
            assert find_spec(runner(case)), f"{case}: tests/support/{runner(case)}.py is not there"


def test_every_target_that_is_planned_for_has_every_model():
    for target in planned_for():
        tried = {case["model"] for case in CASES if case["target"] == target}
        assert tried == {*MODULES, *EXAMPLES}, target


def runner(case):
    """The module with a function ``run(case, plan, written)`` that tries what was written."""
    return "runs_" + case["target"].replace("-", "_")


def at_night(case):
    """A case, which runs in the night where its like runs in each run."""
    is_larger = case["model"] in LARGER and "runs" in case
    return pytest.param(case, id=named(case), marks=pytest.mark.nightly if is_larger else ())


@pytest.mark.parametrize("case", map(at_night, CASES))
def test_what_is_placed_for_a_target_exports_to_it(case, tmp_path):
    given, graph = models_of(case)
    cluster, options = lm.Cluster.preset(case["cluster"]), case.get("options", {})
    for device, size in case.get("memory", {}).items():
        cluster = cluster.with_memory(size, device)
    if "refused" in case:
        with pytest.raises(InputError, match=case["refused"]):
            lm.place(graph, cluster, target=case["target"], **options)
        return
    plan = lm.place(graph, cluster, target=case["target"], **options)
    assert plan.target == case["target"]
    assert plan.fits
    assert plan.lower_bound <= plan.makespan * (1 + 1e-9)
    written = export(plan, path=tmp_path / "written", check=False, **given)
    assert (tmp_path / "written").exists()
    if case["model"] in MODULES:  # To load the plan of a large model takes as long as to make it.
        again = lm.Plan.load(saved(plan, tmp_path))
        assert again.target == plan.target
        twice = export(again, path=tmp_path / "again", check=False, **given)
        # A file may name another that is written beside it.
        first = json.dumps(written, default=str).replace(f"{tmp_path}/written", f"{tmp_path}/again")
        assert first == json.dumps(twice, default=str)
    if case.get("runs"):
        of_use = tmp_path / "written" if form_of(case["target"]).is_file else written
        importlib.import_module(runner(case)).run(case, plan, of_use)


def models_of(case):
    """What the writer needs beside the plan, and the graph that is planned."""
    if needed := PACKAGES.get(case["model"]):
        pytest.importorskip(needed, reason=f"needs {needed}")
    if form_of(case["target"]).options.get("model") and case["model"] in MODULES:
        pytest.importorskip("onnx", minversion="1.18", reason="needs onnx 1.18 or later")
        pytest.importorskip("onnxscript", reason="needs onnxscript")
        model = onnx_file(case["model"])
        return {"model": model}, lm.read(model)
    return {}, graph_of(case["model"], train=case.get("train", False))


def saved(plan, folder):
    plan.save(folder / "plan.json")
    return folder / "plan.json"
