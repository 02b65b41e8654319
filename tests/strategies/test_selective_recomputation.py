"""Which modules of layers are recomputed for Megatron-LM: seen in the graph, planned, written."""

from __future__ import annotations

import pytest
from written import flags

import loadmaster as lm
from loadmaster.base.errors import InputError
from loadmaster.dimensions.dimensions import Dimensions
from loadmaster.rules.layer_list import LayerList
from loadmaster.strategies.grids.modules import lines_of_modules
from loadmaster.strategies.grids.recomputation_levels import RecomputationLevel, worthwhile
from loadmaster.strategies.sharding.structure import Structure

GRID = {"tp": 2, "pp": 2, "dp": 2, "micro_batches": 2, "virtual": 1}


@pytest.fixture(scope="module")
def graph():
    return lm.read("example:gpt3-330m")


def given(graph, memory=None, **options):
    cluster = lm.Cluster.preset("8xV100-NVLink")
    cluster = cluster if memory is None else cluster.with_memory(memory)
    return lm.place(graph, cluster, target="megatron", **options)


def recomputed(plan):
    """What the flags say: the granularity, and modules."""
    words = flags(lm.writers.megatron(plan))
    if "--recompute-granularity" not in words:
        return None, []
    at = words.index("--recompute-granularity")
    if "--recompute-modules" not in words:
        return words[at + 1], []
    rest = words[words.index("--recompute-modules") + 1 :]
    end = next((i for i, word in enumerate(rest) if word.startswith("--")), len(rest))
    return words[at + 1], rest[:end]


def test_modules_are_seen_in_what_ops_do(graph):
    structure = Structure.of(Dimensions.of(graph))
    assert lines_of_modules(structure, LayerList.of(graph)) == {
        "core_attn": "h.* | h.* aten.bmm.default#0 | h.* aten.mul.Tensor"
        " | h.* aten.masked_fill.Scalar | h.* aten._softmax.default",
        "layernorm": "h.* | h.*.ln_* aten.native_layer_norm.default",
        "mlp": "h.* | h.*.fc aten.addmm.default | h.* aten.gelu.default"
        " | h.*.proj aten.addmm.default",
    }


def test_names_of_modules_count_for_nothing(graph):
    renamed = [m.replace("fc", "a").replace("ln_", "b") for m in graph.modules]
    other = graph.with_columns({"module": renamed})
    lines = lines_of_modules(Structure.of(Dimensions.of(other)), LayerList.of(other))
    assert set(lines) == {"core_attn", "layernorm", "mlp"}


def test_what_is_asked_for_is_recomputed_and_written(graph):
    none, some, full = (
        given(graph, **GRID, recompute=what) for what in (False, "core_attn,layernorm", True)
    )
    assert recomputed(none) == (None, [])
    assert recomputed(some) == ("selective", ["core_attn", "layernorm"])
    assert recomputed(full)[0] == "full"
    assert none.makespan < some.makespan < full.makespan
    assert none.memory.peak.max() > some.memory.peak.max() > full.memory.peak.max()


def test_as_little_is_recomputed_as_fits(graph):
    none, full = (given(graph, **GRID, recompute=what) for what in (False, True))
    peaks = [int(plan.memory.peak.max()) for plan in (none, full)]
    assert recomputed(given(graph, peaks[0], **GRID))[0] is None
    between = given(graph, int(0.5 * sum(peaks)), **GRID)
    assert between.fits
    assert recomputed(between)[0] == "selective"
    assert none.makespan < between.makespan < full.makespan
    least = given(graph, int(1.02 * peaks[1]), **GRID)
    assert recomputed(least)[0] == "full"


def test_a_recipe_of_the_same_is_written_the_same(graph):
    plan = given(graph, **GRID, recompute="core_attn")
    cluster = lm.Cluster.preset("8xV100-NVLink")
    again = lm.place(graph, cluster, recipe=plan.recipe)
    assert recomputed(again) == recomputed(plan) == ("selective", ["core_attn"])
    # The same ops in other words.
    line = plan.recipe.recompute[0].replace("h.* aten._softmax.default", "h.* aten._soft*")
    halves = {"dp": {"**": "batch"}}, {"dp": {"input*": "Shard(0)"}}
    recipe = lm.Recipe({"dp": 2}, *halves, recompute=(line,))
    other = lm.place(graph, cluster, recipe=recipe, on_oom="best_effort")
    assert recomputed(other) == ("selective", ["core_attn"])


def test_ops_that_are_no_module_are_in_the_way(graph):
    recipe = lm.Recipe({"dp": 1}, recompute=("h.* | h.* aten.gelu.default",))
    plan = lm.place(graph, lm.Cluster.preset("8xV100-NVLink"), recipe=recipe, on_oom="best_effort")
    with pytest.raises(InputError, match=r"no module of --recompute-modules: h\.\* \| h\.\* aten"):
        lm.writers.megatron(plan)


def test_other_words_are_refused(graph):
    with pytest.raises(InputError, match="wants full, selective, core_attn, layernorm, mlp"):
        given(graph, recompute="attention")


def test_sets_that_others_beat_are_left_out():
    parts = {
        "a": RecomputationLevel("selective", ("a",), ("a",), 1.0, 4.0),
        "b": RecomputationLevel("selective", ("b",), ("b",), 2.0, 3.0),
        "c": RecomputationLevel("selective", ("c",), ("c",), 5.0, 10.0),
    }
    found = worthwhile(parts, (("a", "c"),))
    assert [one.modules for one in found] == [("a",), ("a", "b"), ("c",), ("b", "c")]
    assert [one.lines for one in found] == [one.modules for one in found]
    assert found[1].seconds == 3.0
