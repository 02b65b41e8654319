"""What is said of plans with recipes: documents, summaries, explanations, differences, reports."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

import loadmaster as lm
from loadmaster.base.units import counted
from loadmaster.cli import main
from loadmaster.model.recipe import Recipe
from loadmaster.plans.effects import INPUT, RESULT, caused
from loadmaster.plans.footprint import USES, footprints
from loadmaster.plans.recipe_tables import byte_rows, module_rows
from loadmaster.plans.specs import recipe_in_words, specs

ROWS = {"**": "row", "optim.**": "flat"}


def with_recipe(plan: lm.Plan, recipe: Recipe) -> lm.Plan:
    """A plan whose program says that this recipe made it."""
    program = replace(plan.program, recipe=recipe)
    return replace(plan, problem=replace(plan.problem, program=program))


@pytest.fixture(scope="module")
def replicas():
    """Two replicas of a small training step."""
    graph, cluster = lm.read("example:lenet"), lm.Cluster.preset("2xV100-NVLink")
    return lm.place(graph, cluster, "data-parallel", aggregation="reduce-scatter")


@pytest.fixture(scope="module")
def plan(replicas):
    recipe = Recipe({"dp": 2}, {"dp": ROWS}, {"dp": {"input*": "Shard(0)"}})
    return with_recipe(replicas, recipe)


# -- documents -----------------------------------------------------------------------------------


def test_a_document_keeps_the_recipe(plan, tmp_path):
    path = tmp_path / "plan.json"
    plan.save(path)
    again = lm.Plan.load(path)
    assert again.recipe == plan.recipe
    assert again.program.recipe == again.recipe
    assert again.makespan == plan.makespan
    assert again.on(plan.cluster).recipe == plan.recipe


def test_a_plan_without_a_recipe_has_none(replicas):
    document = json.loads(json.dumps(replicas.to_document()))
    assert "recipe" not in document
    assert lm.Plan.from_document(document).recipe is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mesh": {"axes": {"dp": 3}}}, "is damaged: the mesh has 3 devices"),
        ({"mesh": {"axes": {"dp": 1}, "devices": ["x"]}}, "is damaged: no device 'x'"),
        ({"labels": {"dp": {"nowhere": "row"}}}, "is damaged: recipe: labels.dp: no op is"),
        ({"labels": {"tp": {"**": "row"}}}, "is damaged: recipe: labels has an axis 'tp'"),
    ],
)
def test_a_damaged_recipe_is_refused(plan, change, message):
    document = json.loads(json.dumps(plan.to_document()))
    document["recipe"] |= change
    with pytest.raises(lm.InputError, match=message):
        lm.Plan.from_document(document, "mine")


# -- by modules ----------------------------------------------------------------------------------


def test_specs_count_every_op_and_all_time(plan):
    rows = specs(plan)
    runs = plan.graph.reduced.runs
    assert sum(row.ops for row in rows) == runs.sum()
    assert sum(row.share for row in rows) == pytest.approx(1)
    for row in rows:
        for shares in row.labels.values():
            assert sum(shares.values()) == pytest.approx(1)
    by_module = {row.module: row for row in rows}
    assert by_module["."].parameters["dp"] == {"input0": ("Shard(0)",), "input1": ("Shard(0)",)}
    assert any(row.updates == {"dp": ("flat",)} for row in rows)


def test_layers_that_lie_alike_are_one_row():
    graph, cluster = lm.read("example:gpt3-330m"), lm.Cluster.preset("4xV100-PCIe")
    whole = lm.place(graph, cluster, "single", on_oom="best_effort")
    labels = {"h.**": "row", "h.3.fc": "column", "h.5.fc": "column"}
    tensors = {f"h.{i}.fc.weight": "Shard(0)" for i in (3, 5)}
    recipe = Recipe({"tp": 4}, {"tp": labels}, {"tp": tensors})
    rows = {row.module: row for row in specs(with_recipe(whole, recipe))}
    assert rows["h.*.proj"].on("tp") == "row; weight Replicate, bias Replicate; update whole"
    assert rows["h.0.fc and 21 like it"].on("tp").startswith("row; weight Replicate, bias")
    assert rows["h.3.fc and 1 like it"].on("tp").startswith("column; weight Shard(0), bias")
    assert rows["wte"].on("tp") == "whole; weight Replicate; update whole"
    assert rows["wte"].on("dp") == "-"
    assert len(rows) < 20


def test_a_summary_has_a_line_for_the_recipe(plan, replicas):
    said = plan.summary()
    [line] = [line for line in said.splitlines() if line.startswith("recipe")]
    assert line == f"recipe       {recipe_in_words(plan)}"
    assert line.startswith("recipe       dp 2; dp: row ")
    assert "recipe  " not in replicas.summary()


def test_bytes_add_up_to_the_peak(plan):
    for found, peak in zip(footprints(plan), plan.memory.peak.tolist(), strict=True):
        assert sum(getattr(found, use) for use in USES) == found.used == peak
        assert found.state + found.gradients == found.optimizer
        assert found.to_document()["optimizer"] == found.optimizer
    assert [row[0] for row in byte_rows(plan)] == ["gpu0", "gpu1"]


def test_tables_have_a_cell_per_column(plan):
    head, rows = module_rows(plan)
    assert head == ("module", "ops", "of the time", "dp (2)")
    assert {len(row) for row in rows} == {len(head)}
    assert len(rows) == len(specs(plan))


def test_the_smallest_modules_of_many_are_one_row(plan, monkeypatch):
    from loadmaster.plans import recipe_tables

    monkeypatch.setattr(recipe_tables, "MAX_MODULES", 1)
    _, rows = module_rows(plan)
    assert len(rows) == 2
    assert rows[-1][0] == f"and {counted(len(specs(plan)) - 1, 'module')} more"
    assert sum(int(row[1]) for row in rows) == plan.graph.reduced.runs.sum()


# -- one op --------------------------------------------------------------------------------------


def test_explain_says_how_an_op_is_shared(plan):
    found = plan.explain("convolution")
    assert found.label == ("on dp (2 devices): row, split",)
    assert "on dp (2 devices): row, split" in str(found).splitlines()[1]
    whole = plan.explain(plan.graph.names[int(np.flatnonzero(plan.graph.updates)[-1])])
    assert whole.label == ("on dp (2 devices): flat, each has an equal part of its storage",)
    assert plan.explain("input0").label == ("on dp (2 devices): Shard(0), each has its part",)


def test_explain_counts_the_collectives_around_an_op(plan):
    """Each collective brings some op its input and takes some op's result, and is as long and as
    large as the schedule says."""
    together = plan.schedule.collectives
    maker = plan.graph.index("convolution_backward_1")
    [taken] = [one for one in caused(plan, maker) if one.side == RESULT]
    assert (taken.kind, taken.count, taken.devices) == ("reduce_scatter", 1, 2)
    at = together.kind.index("reduce_scatter")
    assert taken.bytes == int(together.bytes[at])
    assert taken.seconds == pytest.approx(float(together.finish[at] - together.start[at]))
    assert taken.bytes_sent == together.some([at]).bytes_sent
    sides = {(one.side, one.kind) for one in caused(plan, plan.graph.index("add_"))}
    assert (INPUT, "reduce_scatter") in sides
    assert "takes its result" in str(plan.explain("convolution_backward_1"))


def test_an_op_far_from_collectives_caused_none(plan):
    assert plan.explain("convolution").caused == ()
    assert "caused" not in plan.explain("convolution").to_document()


# -- two plans -----------------------------------------------------------------------------------


def test_a_difference_of_recipes_is_told_by_module(plan, replicas):
    some = next(module for module in plan.graph.modules if module.startswith("m"))
    labels = {"dp": {**ROWS, some: "column"}}
    other = with_recipe(replicas, Recipe({"dp": 2}, labels, {"dp": {"input0": "Shard(0)"}}))
    found = plan.diff(other)
    whats = {(one.what, one.before, one.after) for one in found.specs}
    assert ("input1", "Shard(0)", "Replicate") in whats
    assert any(what == "ops" and "column" in after for what, _, after in whats)
    text = str(found)
    assert "of it" in text
    assert f"recipe       {recipe_in_words(plan)} -> {recipe_in_words(other)}" in text
    assert json.loads(json.dumps(found.to_document()))["specs"]
    assert plan.diff(plan).specs == ()


def test_a_difference_from_a_plan_without_a_recipe_says_so(plan, replicas):
    found = replicas.diff(plan)
    assert found.specs == ()
    assert f"recipe       none -> {recipe_in_words(plan)}" in str(found)
    assert "recipe  " not in str(replicas.diff(replicas))


# -- commands and reports ------------------------------------------------------------------------


def test_the_command_prints_and_writes_the_recipe(plan, tmp_path, capsys):
    path, written = tmp_path / "plan.json", tmp_path / "recipe.toml"
    plan.save(path)
    assert main(["recipe", str(path), "-o", str(written)]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"{recipe_in_words(plan)}\nmodule ")
    assert "parameters" in said
    assert Recipe.load(written) == plan.recipe
    assert main(["recipe", str(path), "--json"]) == 0
    assert Recipe.from_document(json.loads(capsys.readouterr().out)) == plan.recipe


def test_the_command_refuses_a_plan_without_a_recipe(replicas, tmp_path, capsys):
    path = tmp_path / "plan.json"
    replicas.save(path)
    assert main(["recipe", str(path)]) == 2
    assert "has no recipe" in capsys.readouterr().err


def test_a_report_shows_the_recipe_first(plan, replicas, tmp_path):
    path = tmp_path / "plan.html"
    plan.report(path)
    page = path.read_text()
    assert page.index("What is split how") < page.index("How good it is")
    assert "Where the bytes go" in page
    assert "<th>dp (2)</th>" in page
    replicas.report(path)
    assert "What is split how" not in path.read_text()
