"""Words of recipes for labels, there and back, and what a user writes by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import loadmaster as lm
from loadmaster.dimensions.dimensions import Dimensions
from loadmaster.dimensions.form import FLAT, OWNER
from loadmaster.dimensions.words import FREE, labels_of, words_of
from loadmaster.model.recipe import DeviceMesh, Recipe


@pytest.fixture(scope="module")
def known():
    return {name: Dimensions.of(lm.read(f"example:{name}")) for name in ("gpt3-330m", "lenet")}


@pytest.fixture(scope="module")
def gpt(known):
    return known["gpt3-330m"]


def cut(dimensions: Dimensions, label: int, op: int) -> str:
    return dimensions.forms[dimensions.form_of[op]].cuts[label - 1].name


@settings(max_examples=6)
@given(st.sampled_from(["gpt3-330m", "lenet"]), st.integers(0, 2**32))
def test_labels_come_back_from_a_recipe(known, name, seed):
    dimensions = known[name]
    chance, of = np.random.default_rng(seed), dimensions.form_of
    cuts = np.array([len(form.cuts) for form in dimensions.forms])
    most = np.where(of >= 0, cuts[of] + 1, 1)
    labels = (chance.random((2, len(of))) * most).astype(np.int32)
    for label in (FLAT, OWNER, FREE):
        labels[(chance.random(labels.shape) < 0.1) & (of >= 0)] = label
    mesh = DeviceMesh.of({"dp": 2, "tp": 4})
    recipe = Recipe.of_labels(dimensions.graph, mesh, words_of(dimensions, mesh.names, labels))
    found = labels_of(dimensions, Recipe.from_toml(recipe.to_toml()))
    assert (found == labels).all()


def test_a_role_is_a_label_for_every_op_that_has_it(gpt):
    recipe = Recipe({"dp": 4}, {"dp": {"**": "batch"}}, {"dp": {"input*": "Shard(0)"}})
    [labels] = labels_of(gpt, recipe)
    graph = gpt.graph
    for op, form in enumerate(gpt.form_of.tolist()):
        roles = [one.role for one in gpt.forms[form].cuts] if form >= 0 else []
        if graph.placeholder[op]:
            assert labels[op] == (1 if graph.kinds[op] == "input" else 0)
        else:
            assert bool(labels[op]) == ("batch" in roles)
            assert not labels[op] or roles[labels[op] - 1] == "batch"


def test_heads_of_attention_by_hand(gpt):
    lines = {"h.*.c_attn": "head", "h.*.c_proj": "head", "h.*": "head"}
    of_weight = {"h.*.c_attn.weight": "Shard(0).1"}
    [labels] = labels_of(gpt, Recipe({"tp": 4}, {"tp": lines}, {"tp": of_weight}))
    graph = gpt.graph
    for name, word in (
        ("addmm", "column.1"),
        ("addmm_1", "contraction"),
        ("bmm", "batch.1"),
        ("h.0.c_attn.weight", "axis0.1"),
    ):
        op = graph.index(name)
        assert cut(gpt, labels[op], op) == word
    assert labels[graph.index("gelu")] == 0


def test_what_no_line_speaks_of_is_left_to_a_solver(gpt):
    [labels] = labels_of(gpt, Recipe({"tp": 4}, {"tp": {"h.*.fc": "column"}}, rest="auto"))
    assert labels[gpt.graph.index("bmm")] == FREE
    assert labels[gpt.graph.index("addmm_2")] > 0
    assert (labels[gpt.form_of < 0] == 0).all()


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        (
            Recipe({"tp": 4}, {"tp": {"h.*.fc": "expert"}}),
            "labels.tp, .h.\\*.fc': nothing .* can be 'expert'; they can be .*contraction",
        ),
        (
            Recipe({"tp": 4}, parameters={"tp": {"h.*.fc.bias": "Shard(1)"}}),
            "nothing that it means can be 'Shard\\(1\\)'; they can be Shard\\(0\\)$",
        ),
        (
            Recipe({"tp": 4}, {"tp": {"h.*.fc aten.t.default": "row"}}),
            "nothing that it means can be 'row'; they can only be whole",
        ),
    ],
)
def test_what_cannot_be_cut_so_is_named(gpt, recipe, message):
    with pytest.raises(lm.InputError, match=message):
        labels_of(gpt, recipe)
