"""Recipes: what they say of a graph, in few lines and exactly, and what they refuse."""

from __future__ import annotations

import random
import re

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import loadmaster as lm
from loadmaster.model.micro import Micro
from loadmaster.model.patterns import Places, Selector, instances
from loadmaster.model.recipe import DeviceMesh, MeshAxis, Recipe

EXAMPLES = ("bert-large", "gpt3-330m", "lenet", "mixtral", "rnnlm", "vgg19")
LABELS = ("whole", "row", "column", "contraction", "flat", "auto")
SPECS = ("Replicate", "Shard(0)", "Shard(1)", "Shard(1).2", "owner")
HAND = """
[mesh]
devices = ["gpu1", "gpu0"]
[mesh.axes]
tp = 2
[labels.tp]
"h.*.fc" = "column"
"h.0.fc aten.mm.default#1" = "contraction"
[parameters.tp]
"h.*.fc.weight" = "Shard(0)"
"""


@pytest.fixture(scope="module")
def graphs():
    return {name: lm.read(f"example:{name}") for name in EXAMPLES}


def layered(n: int, *, module: str = "layers.{}.mlp.{}") -> lm.OpGraph:
    """Layers of two matrices of different shapes, with an op of an optimizer for each."""
    rows = [
        (f"{module.format(i, j)}.{k}", module.format(i, j), kind)
        for i in range(n)
        for j in range(2)
        for k, kind in enumerate(("parameter", "mm", "add", "mm"))
    ]
    names, modules, kinds = (list(column) for column in zip(*rows, strict=True))
    return lm.OpGraph(
        {"name": names, "module": modules, "kind": kinds},
        {"src": range(len(rows) - 1), "dst": range(1, len(rows))},
    )


# -- the words of a graph, there and back ---------------------------------------------------------


@settings(max_examples=6)
@given(
    st.sampled_from(EXAMPLES),
    st.integers(0, 2**32),
    st.sampled_from(["module", "layer", "op"]),
    st.sampled_from(["whole", "auto"]),
)
def test_words_come_back_exactly(graphs, name, seed, by, rest):
    chance = random.Random(seed)
    graph = graphs[name]
    fixed: dict[str, str] = {}

    def word(op: int, known: tuple[str, ...]) -> str:
        where = graph.names[op] if graph.placeholder[op] else graph.modules[op] + graph.kinds[op]
        where = re.sub(r"\d+", "", where) if by == "layer" else where
        return fixed.setdefault(str(op) if by == "op" else where, chance.choice(known))

    words = {
        axis: [word(op, SPECS if graph.placeholder[op] else LABELS) for op in range(graph.n_ops)]
        for axis in ("dp", "tp")
    }
    recipe = Recipe.of_labels(graph, DeviceMesh.of({"dp": 2, "tp": 4}), words, rest=rest)
    assert recipe.words(graph) == words
    assert Recipe.from_toml(recipe.to_toml()).words(graph) == words


@given(
    st.lists(
        st.tuples(st.text("ab.*\\# /1", max_size=6), st.text("ab.*# ", max_size=3)),
        min_size=1,
        max_size=12,
    ),
    st.integers(0, 2**32),
)
@example([(".", ""), ("", ""), ("..", ""), (".a", ""), ("a", "")], 1)
def test_words_come_back_whatever_names_are(places, seed):
    chance = random.Random(seed)
    n = len(places)
    graph = lm.OpGraph(
        {
            "name": [f"{module}\t{i}" for i, (module, _) in enumerate(places)],
            "module": [module for module, _ in places],
            "kind": [kind for _, kind in places],
        },
        {"src": [], "dst": []},
    )
    words = {"tp": [chance.choice(LABELS) for _ in range(n)]}
    recipe = Recipe.of_labels(graph, DeviceMesh.of({"tp": 4}), words)
    assert Recipe.from_document(recipe.to_document()).words(graph) == words


def test_what_has_no_label_may_have_any(graphs):
    graph = graphs["gpt3-330m"]
    some = [
        None if view else "Replicate" if p else "row"
        for view, p in zip(graph.view, graph.placeholder, strict=True)
    ]
    recipe = Recipe.of_labels(graph, DeviceMesh.of({"dp": 4}), {"dp": some})
    assert recipe.labels == {"dp": {"**": "row"}}
    assert not recipe.parameters


@pytest.mark.parametrize("module", ["layers.{}.mlp.{}", "layer{}/w_{}", "/layers.{}/block_{}/mm"])
def test_more_layers_take_no_more_lines(module):
    def lines(n: int) -> list[str]:
        graph = layered(n, module=module)
        pattern = ["Shard(0)", "column", "whole", "contraction"]
        pattern += ["Shard(1)", "contraction", "row", "column"]
        words = pattern * n
        recipe = Recipe.of_labels(graph, DeviceMesh.of({"tp": 4}), {"tp": words})
        assert recipe.words(graph)["tp"] == words
        return recipe.to_toml().splitlines()

    assert lines(4) == lines(40)
    assert len(lines(4)) < 20


def test_one_layer_apart_is_an_exception_of_one_line():
    graph = layered(12)
    words = ["Replicate" if p else "column" for p in graph.placeholder]
    common = Recipe.of_labels(graph, DeviceMesh.of({"tp": 2}), {"tp": words})
    words = [
        "whole" if module == "layers.7.mlp.1" and word == "column" else word
        for word, module in zip(words, graph.modules, strict=True)
    ]
    apart = Recipe.of_labels(graph, DeviceMesh.of({"tp": 2}), {"tp": words})
    assert common.labels == {"tp": {"**": "column"}}
    assert apart.labels == {"tp": {"**": "column", "layers.7.mlp.1": "whole"}}


# -- patterns -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "meant", "others"),
    [
        ("h.*.fc", ["h.0.fc", "h.11.fc"], ["h.0.fc.weight", "x.h.0.fc", "h.fc", "h.0.1.fc"]),
        ("h.**", ["h", "h.0", "h.0.fc"], ["hh", "x.h"]),
        ("**", ["", "h", "/a/b"], []),
        ("**.fc", ["fc", "h.0.fc"], ["fcc"]),
        (".", [""], ["h"]),
        ("h.ln_*", ["h.ln_1", "h.ln_"], ["h.ln_1.w", "h.l"]),
        (r"h.\*", ["h.*"], ["h.0"]),
        ("/a/*", ["/a/b"], ["a.b"]),
    ],
)
def test_patterns(pattern, meant, others):
    names = meant + others
    found = Places(names, [""] * len(names)).matching(Selector(pattern))
    assert found.tolist() == list(range(len(meant)))


def test_of_lines_that_mean_an_op_the_last_counts(graphs):
    graph = graphs["gpt3-330m"]
    words = Recipe.from_toml(HAND).words(graph)["tp"]
    mm = [
        op
        for op in range(graph.n_ops)
        if graph.modules[op] == "h.0.fc" and graph.kinds[op] == "aten.mm.default"
    ]
    assert [words[op] for op in mm] == ["column", "contraction"]
    assert words[graph.index("h.3.fc.weight")] == "Shard(0)"
    assert words[graph.index("h.3.fc.bias")] == "Replicate"


# -- other columns --------------------------------------------------------------------------------


def test_state_and_recomputation_go_by_modules(graphs):
    graph = graphs["gpt3-330m"]
    recipe = Recipe({"dp": 8}, shard_state={"h.**": "optimizer"}, recompute=("h.*",))
    state = recipe.sharded_state(graph)
    assert state[graph.modules.index("optim.h.3.fc.weight")] == "optimizer"
    assert state[graph.modules.index("wte")] == "none"
    layer = instances(graph.modules, recipe.recompute, "recompute")
    assert len(np.unique(layer[layer >= 0])) == 24
    assert layer[graph.modules.index("h.3.fc")] == layer[graph.modules.index("h.3")]
    assert layer[graph.modules.index("wte")] == -1


def test_mesh_groups_and_devices():
    mesh = DeviceMesh((MeshAxis("dp", 2), MeshAxis("tp", 3, (1, 1, 2))))
    assert mesh.groups("dp").tolist() == [[0, 3], [1, 4], [2, 5]]
    assert mesh.groups("tp").tolist() == [[0, 1, 2], [3, 4, 5]]
    cluster = lm.Cluster.preset("8xV100-NVLink")
    assert mesh.on(cluster).tolist() == [0, 1, 2, 3, 4, 5]
    assert DeviceMesh.of({"tp": 2}, ["gpu7", "gpu1"]).on(cluster).tolist() == [7, 1]
    with pytest.raises(lm.InputError, match="the mesh has 6 devices"):
        mesh.on(lm.Cluster.preset("4xV100-PCIe"))
    with pytest.raises(lm.InputError, match="no device 'gpu9'"):
        DeviceMesh.of({"tp": 1}, ["gpu9"]).on(cluster)


# -- on disk --------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["toml", "json", "json.gz", "toml.gz"])
def test_files(tmp_path, suffix):
    recipe = Recipe(
        DeviceMesh((MeshAxis("dp", 2, (2.0, 1.0)), MeshAxis("tp", 1)), ("b", "a")),
        {"tp": {"h.* aten.mm#2": "column", "**": "row"}},
        {"dp": {"w": "Shard(1).2"}},
        rest="auto",
        shard_state={"h.**": "parameters"},
        recompute=("h.*",),
        batch_norm="synchronised",
        bucket_bytes=1000,
        overrides={"conv*": "b"},
        name="by hand",
    )
    path = tmp_path / f"recipe.{suffix}"
    recipe.save(path)
    read = lm.Recipe.load(path)
    assert read == recipe
    assert list(read.labels["tp"]) == list(recipe.labels["tp"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("[labels.dp]\n'**' = 'row'", "labels has an axis 'dp', and the mesh has tp"),
        ("[label.tp]\n'**' = 'row'", "unknown key 'label'; known are batch_norm"),
        ("[labels.tp]\n'**' = 'Shard(0)'", r"'\*\*' is 'Shard\(0\)': wants whole, flat"),
        ("[labels.tp]\n'**' = 3", "'\\*\\*' is 3: wants a text"),
        ("[labels.tp]\n'h#x' = 'row'", "'h#x' is no selector: write"),
        ("[parameters.tp]\n'w' = 'column'", "'w' is 'column': wants Replicate, Shard"),
        ("[shard_state]\n'**' = 'all'", "shard_state of '\\*\\*' is 'all': wants one of none"),
        ("[mesh.share]\ntp = [1, 2]", "mesh: unknown key 'share'; known are axes"),
        ("[mesh.shares]\ntp = [1]", "shares of axis 'tp': 1 share for 2 devices"),
        ("[mesh.shares]\ntp = [1, 0]", "shares of axis 'tp' is 0: wants a number > 0"),
        ("[overrides]\na = 1", "overrides, 'a' is 1: wants a text"),
    ],
)
def test_what_is_wrong_is_named(change, message):
    text = f"[mesh.axes]\ntp = 2\n{change}\n"
    with pytest.raises(lm.InputError, match=f"^mine: .*{message}"):
        Recipe.from_toml(text, "mine")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rest = 'none'\n[mesh.axes]\ntp = 2", "rest is 'none': wants one of whole, auto"),
        ("bucket_bytes = 25\n[mesh.axes]\ntp = 2", "bucket_bytes is 25, without a unit"),
        ("recompute = 'h'\n[mesh.axes]\ntp = 2", "recompute is 'h': wants a list of patterns"),
        ("batch_norm = 'both'\n[mesh.axes]\ntp = 2", "batch_norm is 'both': wants one of local"),
        ("version = 7\n[mesh.axes]\ntp = 2", "version 7; this Loadmaster reads version 1"),
        ("format = 'opgraph'", "is not a recipe"),
        ("name = 'x'", "the recipe has no mesh: write"),
        ("[mesh]\ndevices = ['a']", "the mesh has no axes: write"),
        ("[mesh]\naxes = {}", "the mesh has no axis: name one"),
        ("[mesh.axes]\ntp = 0", "size of axis 'tp' is 0: wants an integer"),
        ("[mesh.axes]\n'a b' = 2", "an axis is named 'a b'"),
        ("[mesh]\ndevices = ['a', 'b', 'c']\naxes.tp = 2", "names 3 devices and its axes are tp 2"),
        ("[mesh]\ndevices = ['a', 'a']\naxes.tp = 2", "has the device 'a' twice"),
    ],
)
def test_what_is_missing_is_named(text, message):
    with pytest.raises(lm.InputError, match=message):
        Recipe.from_toml(text)


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        (Recipe({"tp": 2}, {"tp": {"h.*.fcc": "row"}}), "no op is 'h.*.fcc'; did you mean 'h"),
        (
            Recipe({"tp": 2}, {"tp": {"h.*.fc conv": "row"}}),
            "no op is 'h.*.fc conv'; the kinds of ops there are aten.view",
        ),
        (
            Recipe({"tp": 2}, parameters={"tp": {"h.*.fc": "flat"}}),
            "parameters.tp: no parameter, buffer or input is 'h.*.fc'; did you mean",
        ),
    ],
)
def test_a_line_that_means_nothing_is_named(graphs, recipe, message):
    with pytest.raises(lm.InputError, match=re.escape(message)):
        recipe.words(graphs["gpt3-330m"])


def test_a_pattern_of_a_module_that_is_not_there_is_named(graphs):
    recipe = Recipe({"tp": 2}, recompute=("layers.*",), shard_state={"x": "optimizer"})
    with pytest.raises(lm.InputError, match="recompute: no module is 'layers"):
        instances(graphs["gpt3-330m"].modules, recipe.recompute, "recompute")
    with pytest.raises(lm.InputError, match="shard_state: no module is 'x'"):
        recipe.sharded_state(graphs["gpt3-330m"])


def test_words_of_another_length_are_refused(graphs):
    with pytest.raises(lm.InputError, match="words of axis 'tp': 1 for"):
        Recipe.of_labels(graphs["lenet"], DeviceMesh.of({"tp": 2}), {"tp": ["row"]})


def test_words_are_per_op_of_the_graph(graphs):
    graph = graphs["lenet"]
    words = Recipe({"dp": 2, "tp": 2}).words(graph)
    assert list(words) == ["dp", "tp"]
    assert {len(column) for column in words.values()} == {graph.n_ops}
    expected = np.where(graph.placeholder, "Replicate", "whole").tolist()
    assert words["dp"] == expected


def test_a_recipe_prints_as_what_it_is_read_from_and_is_named_in_a_line():
    recipe = Recipe(
        DeviceMesh.of({"dp": 2, "tp": 2}), {"dp": {"**": "batch"}, "tp": {"h.*": "column"}}
    )
    assert Recipe.from_toml(str(recipe)) == recipe
    assert repr(recipe) == "Recipe(dp 2 x tp 2, 2 lines of labels and parameters)"
    staged = Recipe(DeviceMesh.of({"pp": 2}), stages={"h.*": 1}, micro={"n": 4, "schedule": "1f1b"})
    assert repr(staged).startswith("Recipe(pp 2, 2 stages, 4 micro-batches, 0 lines")
    assert "<pre>format" in staged._repr_html_()


def test_older_recipes_call_virtual_stages_chunks():
    now = Micro(4, "zb-v", virtual=2)
    assert Micro.from_document({"n": 4, "schedule": "zb-v", "chunks": 2}) == now
    assert now.to_document()["virtual"] == 2
