"""Recipes that leave something "auto": what they fix stays, and the rest is searched."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

import loadmaster as lm
from loadmaster.base.errors import InfeasibleError, InputError
from loadmaster.cli import main
from loadmaster.dimensions.form import OWNER

CLUSTER = lm.Cluster.preset("4xV100-PCIe")


@cache
def graph(name: str) -> lm.OpGraph:
    return lm.read(f"example:{name}")


def placed(name: str, recipe: lm.Recipe, **options) -> lm.Plan:
    return lm.place(graph(name), CLUSTER, recipe=recipe, **options)


def test_what_fixes_nothing_is_what_the_solver_finds():
    best = lm.place(graph("alexnet"), CLUSTER, "sharded", costs="roofline")
    assert best.recipe.mesh.shape == (4,)
    plan = placed("alexnet", lm.Recipe({"x": 4}, rest="auto"), costs="roofline")
    assert (plan.method, plan.makespan) == ("sharded", best.makespan)


@pytest.mark.parametrize("word", ["column", "row"])
def test_what_is_fixed_stays_and_the_rest_is_searched(word):
    of_one = {"m.3 aten.addmm.default": word}
    plan = placed("alexnet", lm.Recipe({"tp": 4}, {"tp": of_one}, rest="auto"))
    alone = placed("alexnet", lm.Recipe({"tp": 4}, {"tp": of_one}))
    assert (plan.method, alone.method) == ("sharded", "recipe")
    assert plan.recipe.mesh.names == ("tp",)
    op = next(
        i
        for i, (module, kind) in enumerate(zip(plan.graph.modules, plan.graph.kinds, strict=True))
        if (module, kind) == ("m.3", "aten.addmm.default")
    )
    layout = plan.layout
    cuts = layout.dimensions.forms[layout.form_of[op]].cuts
    assert cuts[layout.labels[0, op] - 1].name == word
    # Much of the rest is cut by now.
    assert (layout.labels[0] > 0).sum() > 20
    assert plan.makespan < 0.6 * alone.makespan


def test_a_label_of_one_module_is_applied_without_a_search():
    recipe = lm.Recipe({"tp": 4}, {"tp": {"m.3 aten.addmm.default": "column"}})
    plan = placed("alexnet", recipe)
    assert plan.method == "recipe"
    cut = np.flatnonzero(plan.layout.labels[0] != 0)
    assert [plan.graph.modules[op] for op in cut] == ["m.3"]
    assert plan.recipe == recipe


def test_lines_may_be_left_open_where_the_rest_is_said():
    recipe = lm.Recipe(
        {"dp": 4}, {"dp": {"**": "batch", "optim.**": "auto"}}, {"dp": {"input*": "Shard(0)"}}
    )
    plan = placed("alexnet", recipe)
    graph_, labels = plan.graph, plan.layout.labels[0]
    runs = ~graph_.view & ~graph_.placeholder & ~graph_.updates
    said = lm.Recipe({"dp": 4}, {"dp": {"**": "batch"}}, {"dp": {"input*": "Shard(0)"}})
    assert np.array_equal(labels[runs], placed("alexnet", said).layout.labels[0, runs])
    assert (labels[graph_.updates & ~graph_.view] != 0).any()


def test_one_layer_may_be_fixed_alone():
    fixed = lm.Recipe({"x": 4}, {"x": {"h.3.fc": "whole"}}, rest="auto")
    plan = placed("gpt3-330m", fixed)
    labels, modules = plan.layout.labels[0], plan.graph.modules
    of = {
        layer: {
            int(labels[i])
            for i, module in enumerate(modules)
            if module == f"h.{layer}.fc" and plan.graph.reduced.runs[i]
        }
        for layer in (3, 4)
    }
    assert of[3] == {0}
    assert of[4] != {0}


def test_what_is_recomputed_has_the_label_of_what_it_repeats():
    of_one = {"h.*.fc aten.addmm.default": "column"}
    recipe = lm.Recipe({"x": 4}, {"x": of_one}, rest="auto", recompute=("h.*",), name="mine")
    plan = placed("gpt3-330m", recipe)
    assert (plan.recipe.recompute, plan.recipe.name) == (("h.*",), "mine")
    words = plan.recipe.words(plan.graph)["x"]
    found = {
        words[i]
        for i, (module, kind) in enumerate(zip(plan.graph.modules, plan.graph.kinds, strict=True))
        if module.endswith(".fc") and kind == "aten.addmm.default"
    }
    assert found == {"column"}


def test_experts_may_be_fixed():
    mixtral, cluster = lm.read("example:mixtral"), lm.Cluster.preset("8xV100-NVLink")
    tables = {"layers.*.moe.w*.*": "expert"}
    recipe = lm.Recipe({"ep": 8}, {"ep": tables}, rest="auto", expert_imbalance=1.1)
    plan = lm.place(mixtral, cluster, recipe=recipe)
    runs = plan.layout.dimensions.experts.of_op >= 0
    products = np.array([kind == "aten.mm.default" for kind in mixtral.kinds]) & runs
    assert (plan.layout.labels[0, products] == OWNER).all()
    assert plan.recipe.expert_imbalance == 1.1


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        ({"shard_state": {"m.3": "optimizer"}}, "shard_state"),
        ({"overrides": {"addmm": "gpu0"}}, "overrides"),
        ({"labels": {"x": {"m.3": "flat"}}}, "only what updates a parameter"),
        ({"labels": {"x": {"m.3": "sideways"}}}, "sideways"),
    ],
)
def test_what_cannot_be_is_refused(extra, said):
    with pytest.raises(InputError, match=said):
        placed("alexnet", lm.Recipe({"x": 4}, rest="auto", **extra))


def test_labels_that_go_with_no_others_are_refused():
    # What is on one device cannot be turned into parts.
    tables = {"optim.m.3.weight": "owner"}, {"m.3.weight": "Shard(0)"}
    recipe = lm.Recipe({"x": 4}, {"x": tables[0]}, {"x": tables[1]}, rest="auto")
    with pytest.raises(InfeasibleError, match="leave more open"):
        placed("alexnet", recipe)


def test_other_methods_take_no_open_recipe():
    with pytest.raises(InputError, match="leaves"):
        placed("alexnet", lm.Recipe({"x": 4}, rest="auto"), method="recipe")
    with pytest.raises(InputError, match="no option 'recipe'"):
        placed("alexnet", lm.Recipe({"x": 4}, rest="auto"), method="fsdp")


def test_the_command_line_searches_for_what_is_open(tmp_path, capsys):
    path, out = tmp_path / "r.toml", tmp_path / "plan.json"
    path.write_text('rest = "auto"\n[mesh.axes]\nx = 4\n[labels.x]\n"m.3" = "column"\n')
    given = ["place", "example:alexnet", "--cluster", "4xV100-PCIe", "--recipe", str(path)]
    assert main([*given, "-o", str(out)]) == 0
    assert "sharded" in capsys.readouterr().out
    plan = lm.Plan.load(out)
    assert plan.method == "sharded"
    assert not plan.recipe.is_open
