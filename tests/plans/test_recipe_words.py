"""What is said of plans with recipes: documents, summaries, explanations, differences, reports."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

import loadmaster as lm
from loadmaster.base.units import counted
from loadmaster.cli import main
from loadmaster.model.recipe import DeviceMesh, Recipe
from loadmaster.plans.effects import EXCHANGE, INPUT, OUTPUT, caused
from loadmaster.plans.footprint import USES, footprints
from loadmaster.plans.recipe_tables import byte_rows, module_rows
from loadmaster.plans.relabel import relabelled
from loadmaster.plans.specs import recipe_in_words, specs

#: The batch on one axis, and an optimizer by parts of its storage.
DATA = Recipe(
    {"dp": 2},
    {"dp": {"**": "batch"}},
    {"dp": {"input*": "Shard(0)"}},
    shard_state={"**": "optimizer"},
)

#: Output features of the layers that are matrices on one axis.
FEATURES = Recipe({"tp": 2}, {"tp": {"m.* aten.addmm.default": "column"}})


@pytest.fixture(scope="module")
def replicas():
    """Two replicas of a small training step, which no recipe made."""
    graph, cluster = lm.read("example:lenet"), lm.Cluster.preset("2xV100-NVLink")
    return lm.place(graph, cluster, "data-parallel", aggregation="reduce-scatter")


@pytest.fixture(scope="module")
def plan(replicas):
    return lm.place(replicas.graph, replicas.cluster, recipe=DATA)


@pytest.fixture(scope="module")
def features(replicas):
    return lm.place(replicas.graph, replicas.cluster, recipe=FEATURES)


# -- applied -------------------------------------------------------------------------------------


def test_a_recipe_is_applied_and_judged_without_a_search(plan):
    assert plan.method == "recipe"
    assert plan.recipe == DATA
    assert dict(plan.options) == {}
    assert plan.space == "split ops"
    program = plan.program
    here = plan.running_devices[program.rank >= 0]
    assert (here == program.rank[program.rank >= 0]).all()
    assert [part.device for part in plan.parts("convolution")] == ["gpu0", "gpu1"]
    assert plan.devices[plan.graph.index("convolution")] == -1
    again = lm.place(plan.graph, plan.cluster, "recipe", recipe=DATA)
    assert again.makespan == plan.makespan


def test_the_batch_by_recipe_is_data_parallelism():
    """But for two small all-reduces that replicas leave out: what a loss is divided by, and the
    gradient of a weight that two ops make, in parts."""
    graph, cluster = lm.read("example:gpt3-330m"), lm.Cluster.preset("4xV100-PCIe")
    recipe = Recipe({"dp": 4}, {"dp": {"**": "batch"}}, {"dp": {"input*": "Shard(0)"}})
    found = lm.place(graph, cluster, recipe=recipe)
    known = lm.place(graph, cluster, "data-parallel")
    assert found.makespan == pytest.approx(known.makespan, rel=0.01)
    assert found.memory.peak.tolist() == pytest.approx(known.memory.peak.tolist(), rel=0.01)


def test_devices_of_the_mesh_are_those_of_the_plan(plan):
    turned = replace(DATA, mesh=DeviceMesh.of({"dp": 2}, ["gpu1", "gpu0"]))
    found = lm.place(plan.graph, plan.cluster, recipe=turned)
    assert [part.device for part in found.parts("convolution")] == ["gpu1", "gpu0"]


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        (replace(DATA, shard_state={"m.0": "optimizer"}, rest="auto"), "has shard_state"),
        (Recipe({"dp": 4}), "the mesh has 4 devices"),
        (Recipe({"dp": 2}, {"dp": {"m.0": "expert"}}), "labels.dp, 'm.0': nothing that it means"),
        (replace(DATA, overrides={"conv*": "gpu0"}), "overrides: 'convolution' has parts on"),
        (replace(DATA, overrides={"x": "gpu0"}), "overrides: no op is named 'x'"),
        ("by hand", "recipe is 'by hand': wants a Recipe"),
    ],
)
def test_a_recipe_that_cannot_be_applied_says_why(replicas, recipe, message):
    with pytest.raises(lm.InputError, match=message):
        lm.place(replicas.graph, replicas.cluster, recipe=recipe)


def test_what_is_left_open_is_not_applied_as_it_is(replicas):
    with pytest.raises(lm.InputError, match=r"leaves .* to a solver: .*rest"):
        lm.place(replicas.graph, replicas.cluster, "recipe", recipe=replace(DATA, rest="auto"))


def test_a_method_that_takes_no_recipe_says_so(replicas):
    with pytest.raises(lm.InputError, match="'heft' has no option 'recipe'"):
        lm.place(replicas.graph, replicas.cluster, "heft", recipe=DATA)
    with pytest.raises(lm.InputError, match="'recipe' needs the option 'recipe'"):
        lm.place(replicas.graph, replicas.cluster, "recipe")


def test_overrides_move_whole_ops(replicas):
    recipe = Recipe(DeviceMesh.of({"dp": 1}, ["gpu0"]), overrides={"convolution": "gpu1"})
    found = lm.place(replicas.graph, replicas.cluster, recipe=recipe)
    assert found.device("convolution") == "gpu1"
    assert found.device("addmm") == "gpu0"


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
    assert by_module["loss"].on("dp") == "whole"
    said = "batch; weight Replicate, bias Replicate; update flat"
    assert by_module["m.0 and 3 like it"].on("dp") == said


def test_layers_that_lie_alike_are_one_row():
    graph, cluster = lm.read("example:gpt3-330m"), lm.Cluster.preset("4xV100-PCIe")
    labels = {"h.**": "batch", "h.3.fc": "column", "h.5.fc": "column"}
    tensors = {f"h.{i}.fc.weight": "Shard(0)" for i in (3, 5)}
    recipe = Recipe({"tp": 4}, {"tp": labels}, {"tp": tensors})
    rows = {row.module: row for row in specs(lm.place(graph, cluster, recipe=recipe))}
    assert rows["h.*.proj"].on("tp") == "batch; weight Replicate, bias Replicate; update whole"
    assert rows["h.0.fc and 21 like it"].on("tp").startswith("batch; weight Replicate, bias")
    assert rows["h.3.fc and 1 like it"].on("tp").startswith("column ")
    assert "; weight Shard(0), bias" in rows["h.3.fc and 1 like it"].on("tp")
    assert rows["wte"].on("tp") == "whole; weight Replicate; update whole"
    assert rows["wte"].on("dp") == "-"
    assert len(rows) < 20


def test_a_summary_has_a_line_for_the_recipe(plan, replicas):
    said = plan.summary()
    [line] = [line for line in said.splitlines() if line.startswith("recipe")]
    assert line == f"recipe       {recipe_in_words(plan)}"
    assert line.startswith("recipe       dp 2; dp: batch ")
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


def test_explain_says_how_an_op_is_shared(plan, features):
    found = plan.explain("convolution")
    assert found.label == ("on dp (2 devices): batch, each does a part",)
    assert str(found).splitlines()[1] == "on dp (2 devices): batch, each does a part"
    flat = ("on dp (2 devices): flat, each has an equal part of its storage",)
    assert plan.explain("add_").label == flat
    assert plan.explain("input0").label == ("on dp (2 devices): Shard(0) (batch), each has a part",)
    assert features.explain("addmm").label == (
        "on tp (2 devices): column (feature), each does a part",
    )
    whole = ("on tp (2 devices): whole, each does all of it",)
    assert features.explain("convolution").label == whole
    assert features.explain("t").label == ()


def test_explain_says_that_some_devices_are_idle():
    """Query, key and value are three parts, for four devices."""
    graph, cluster = lm.read("example:gpt3-330m"), lm.Cluster.preset("4xV100-PCIe")
    labels = {"h.0.c_attn aten.addmm.default": "column", "h.0.c_proj aten.addmm.default": "head"}
    recipe = Recipe({"tp": 4}, {"tp": labels})
    plan = lm.place(graph, cluster, recipe=recipe, on_oom="best_effort")
    assert [part.share for part in plan.parts("addmm")] == pytest.approx([1 / 3] * 3 + [0])
    some = ("on tp (4 devices): column (feature), some do a part, the others nothing",)
    assert plan.explain("addmm").label == some
    all_of_them = ("on tp (4 devices): contraction (head), each does a part",)
    assert plan.explain("addmm_1").label == all_of_them


def test_explain_counts_the_collectives_around_an_op(plan):
    """Each collective brings some op its input and takes some op's result, and is as long and as
    large as the schedule says."""
    together = plan.schedule.collectives
    maker = plan.graph.index("convolution_backward_1")
    [taken] = [one for one in caused(plan, maker) if one.side == OUTPUT]
    assert (taken.kind, taken.count, taken.devices) == ("reduce_scatter", 1, 2)
    at = together.kind.index("reduce_scatter")
    assert taken.bytes == int(together.bytes[at])
    assert taken.seconds == pytest.approx(float(together.finish[at] - together.start[at]))
    assert taken.bytes_sent == together.some([at]).bytes_sent
    sides = {(one.side, one.kind) for one in caused(plan, plan.graph.index("add_"))}
    assert (INPUT, "reduce_scatter") in sides
    assert "takes its output" in str(plan.explain("convolution_backward_1"))


@pytest.mark.parametrize("state", ["none", "optimizer", "parameters"])
def test_every_collective_is_some_ops(replicas, state):
    recipe = replace(DATA, shard_state={"**": state})
    plan = lm.place(replicas.graph, replicas.cluster, recipe=recipe)
    together = plan.schedule.collectives
    seen = {
        (one.kind, one.bytes, one.start)
        for op in range(plan.graph.n_ops)
        for one in caused(plan, op)
        if one.side != INPUT
    }
    rows = zip(together.kind, together.bytes.tolist(), together.start.tolist(), strict=True)
    assert set(rows) <= seen
    [sums] = [one for one in plan.explain("nll_loss_forward").caused if one.side == EXCHANGE]
    assert "1 x all_reduce of 8 B on 2 devices sums what its parts exchange" in str(sums)


def test_an_op_far_from_collectives_caused_none(plan):
    assert plan.explain("convolution").caused == ()
    assert "caused" not in plan.explain("convolution").to_document()


def test_a_cut_of_features_causes_a_gather(features):
    [taken] = features.explain("addmm").caused
    assert (taken.side, taken.kind) == (OUTPUT, "all_gather")
    assert taken.bytes == 256 * 500 * 4
    assert "1 x all_gather of 500 KiB on 2 devices takes its output" in str(taken)


def test_other_labels_are_what_the_judge_says(plan):
    """A recipe with the label in it takes as much longer as was said."""
    found = plan.explain("convolution").relabelled
    assert found
    assert [one.seconds for one in found] == sorted(one.seconds for one in found)
    assert {one.axis for one in found} == {"dp"}
    for one in found[:3]:
        labels = {"dp": {**DATA.labels["dp"], "m.0 aten.convolution.default": one.word}}
        other = lm.place(plan.graph, plan.cluster, recipe=replace(DATA, labels=labels))
        assert other.makespan - plan.makespan == pytest.approx(one.seconds)
        assert other.schedule.bytes_moved - plan.schedule.bytes_moved == one.bytes_moved
        assert one.ops == 1
        assert str(one) in str(plan.explain("convolution"))
    assert "batch" not in {one.word for one in found}


def test_ops_of_equal_layers_get_another_label_together():
    graph, cluster = lm.read("example:gpt3-330m"), lm.Cluster.preset("4xV100-PCIe")
    recipe = Recipe({"tp": 4}, {"tp": {"h.*.fc": "column"}})
    plan = lm.place(graph, cluster, recipe=recipe, on_oom="best_effort")
    [whole] = [one for one in relabelled(plan, graph.index("addmm_2")) if one.word == "whole"]
    assert whole.ops == 24
    assert ", with 23 ops like it: " in str(whole)
    labels = {"h.*.fc": "column", "h.*.fc aten.addmm.default": "whole"}
    other = Recipe({"tp": 4}, {"tp": labels})
    other = lm.place(graph, cluster, recipe=other, on_oom="best_effort")
    assert other.makespan - plan.makespan == pytest.approx(whole.seconds)
    assert "would not fit (short: gpu0 " in str(whole)


def test_a_plan_without_a_recipe_has_no_other_labels(replicas):
    found = replicas.explain("convolution")
    assert (found.label, found.relabelled) == ((), ())
    assert "relabelled" not in found.to_document()


# -- two plans -----------------------------------------------------------------------------------


def test_a_difference_of_recipes_is_told_by_module(plan, features):
    found = plan.diff(features)
    changes = {(one.module, one.what): (one.before, one.after) for one in found.specs}
    assert changes[".", "input0"] == ("dp Shard(0)", "whole")
    assert changes["m.7", "ops"][0] == "dp batch"
    assert changes["m.7", "ops"][1].startswith("tp ")
    assert ("update", "dp flat", "whole") in {(c.what, c.before, c.after) for c in found.specs}
    text = str(found)
    assert f"recipe       {recipe_in_words(plan)} -> {recipe_in_words(features)}" in text
    assert "module" in text
    assert "of it" in text
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


def test_place_applies_a_recipe_of_a_file_and_writes_it(tmp_path, capsys):
    given, kept = tmp_path / "given.toml", tmp_path / "kept.json"
    DATA.save(given)
    words = ["place", "example:lenet", "--cluster", "2xV100-NVLink", "--json"]
    assert main([*words, "--recipe", str(given), "--save-recipe", str(kept)]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["method"] == "recipe"
    assert Recipe.from_document(said["recipe"]) == DATA
    assert Recipe.load(kept) == DATA


def test_place_says_that_a_plan_has_no_recipe(tmp_path, capsys):
    path = tmp_path / "recipe.toml"
    words = ["place", "example:lenet", "--method", "single", "--save-recipe", str(path)]
    assert main(words) == 0
    assert "the plan has no recipe" in capsys.readouterr().err
    assert not path.exists()


def test_a_report_shows_the_recipe_first(plan, replicas, tmp_path):
    path = tmp_path / "plan.html"
    plan.report(path)
    page = path.read_text()
    assert page.index("<dt>recipe</dt>") < page.index('<div id="timeline"')
    assert page.index("What is split how") < page.index("Where the bytes go")
    assert "<th>dp (2)</th>" in page
    replicas.report(path)
    assert "What is split how" not in path.read_text()
