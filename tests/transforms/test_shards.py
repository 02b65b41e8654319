"""Graphs that are sharded: the collectives that specs need, shares that add up, the judge."""

from __future__ import annotations

from collections import Counter
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from labels import cut_along, drawn, whole, with_state
from products import chain, mlp

import loadmaster as lm
from loadmaster.base.errors import InputError
from loadmaster.costs.roofline import roofline_costs
from loadmaster.dimensions.dimensions import Dimensions
from loadmaster.dimensions.form import FLAT, OWNER, PARTIAL, REPLICATE
from loadmaster.dimensions.words import label_of
from loadmaster.judge.assignment import Assignment
from loadmaster.judge.problem import Problem
from loadmaster.judge.verdict import Verdict
from loadmaster.model.program import COLLECTIVE, SLICE, Program
from loadmaster.model.recipe import DeviceMesh, MeshAxis, Recipe
from loadmaster.transforms import Layout, replicate, shard

CLUSTER = "4xV100-PCIe"
FOUR = DeviceMesh.of({"x": 4})


@cache
def example(name: str) -> Dimensions:
    return Dimensions.of(lm.read(f"example:{name}"))


@cache
def problem(name: str) -> Problem:
    graph, cluster = example(name).graph, lm.Cluster.preset(CLUSTER)
    return Problem.make(graph, cluster, roofline_costs(graph, cluster))


def judged(of: Problem, program: Program) -> Verdict:
    """Every op on its device of the mesh, in the program's order."""
    placed = of.transformed(program)
    rank = program.rank if (program.rank >= 0).all() else program.replica
    order = np.arange(placed.graph.n_ops, dtype=np.int32)
    return placed.verdict(Assignment(rank[placed.reduced.op_of].astype(np.int32), order))


def labelled(graph: lm.OpGraph, mesh: DeviceMesh, words: dict[str, str]) -> Layout:
    """A layout of one axis by the words of some ops; the others are whole."""
    dimensions = Dimensions.of(graph)
    labels = whole(dimensions, mesh)
    for name, word in words.items():
        op = graph.index(name)
        label = label_of(dimensions.forms[dimensions.form_of[op]], word)
        assert label is not None, (name, word)
        labels[0, op] = label
    return Layout(dimensions, mesh, labels)


def collectives(program: Program, device: int = 0) -> list[tuple[str, str]]:
    """The kind of each collective of a device, and the op whose tensor it takes, in order."""
    graph, names = program.graph, program.source.names
    return [
        (graph.kinds[op], names[program.serves[op]])
        for op in np.flatnonzero((program.role == COLLECTIVE) & (program.rank == device)).tolist()
    ]


# -- the collectives that specs need ---------------------------------------------------------------

MEGATRON = {
    "w1": "Shard(1)",
    "up": "column",
    "gelu": "axis1",
    "w2": "Shard(0)",
    "down": "contraction",
    "dh": "column",
    "dw2": "row",
    "du": "axis1",
    "dx": "contraction",
    "dw1": "column",
    "update.w1": "axis1",
    "update.w2": "axis0",
}


def test_megatron_has_an_all_reduce_forward_and_one_backward():
    program = shard(mlp(), labelled(mlp(), FOUR, MEGATRON))
    assert collectives(program) == [("all_reduce", "down"), ("all_reduce", "dx")]
    assert len(set(program.graph.collectives)) == 3


def test_sequence_parallelism_gathers_and_scatters_instead():
    tokens = {"x": "Shard(0)", "before": "axis0", "after": "axis0", "end": "axis0"}
    program = shard(mlp(), labelled(mlp(), FOUR, MEGATRON | tokens))
    assert collectives(program) == [
        ("all_gather", "before"),
        ("reduce_scatter", "down"),
        ("all_gather", "after"),
        ("reduce_scatter", "dx"),
    ]
    rows = [op for op in program.parts_of(3) if not program.own[op]]
    assert program.graph.output_bytes[rows].tolist() == [64 * 128 * 4 // 4] * 4


OF_TRAINING = {
    "aten.native_batch_norm_backward.default": lambda *tensors: [
        [*tensors[:3], None, None, *tensors[3:], True, 1e-5, [True] * 3]
    ],
    "com.microsoft.BatchNormalizationGrad": lambda *tensors: [[*tensors], {"epsilon": 1e-5}],
}


@pytest.mark.parametrize("kind", OF_TRAINING)
def test_weights_of_a_local_batch_norm_have_gradients_in_parts_of_a_sum(kind):
    shapes = ["f32[8,4,6,6]"] * 2 + ["f32[4]"] * 3
    tensors = [{"op": op} for op in range(5)]
    graph = lm.OpGraph(
        {
            "name": ["gradient", "x", "scale", "mean", "inverse", "norm"],
            "kind": ["input", "input", "parameter", "buffer", "buffer", kind],
            "output": [*shapes, "f32[8,4,6,6];f32[4];f32[4]"],
            "args": [None] * 5 + [OF_TRAINING[kind](*tensors)],
        },
        {"src": range(5), "dst": [5] * 5, "bytes": [4608, 4608, 16, 16, 16]},
    )
    dimensions = Dimensions.of(graph)
    labels = cut_along(dimensions, "batch")
    made = {
        batch_norm: Layout(dimensions, FOUR, labels, batch_norm).made[0, -3:].tolist()
        for batch_norm in ("local", "synchronised")
    }
    assert made == {"local": [0, PARTIAL, PARTIAL], "synchronised": [0, REPLICATE, REPLICATE]}


def test_data_parallelism_sums_gradients_alone():
    graph = chain()
    layout = Layout(Dimensions.of(graph), FOUR, cut_along(Dimensions.of(graph), "batch"))
    assert collectives(shard(graph, layout)) == [("all_reduce", "dw5")]
    small = Layout(layout.dimensions, FOUR, layout.labels, bucket_bytes=2 * 64 * 64 * 4)
    program = shard(graph, small)
    assert collectives(program) == [("all_reduce", f"dw{i}") for i in (5, 3, 1)]
    assert set(program.replica.tolist()) == {0, 1, 2, 3}


@pytest.mark.parametrize("label", [FLAT, OWNER])
def test_updates_that_are_sharded_scatter_gradients_and_gather_parameters(label):
    graph = chain()
    layout = Layout(Dimensions.of(graph), FOUR, cut_along(Dimensions.of(graph), "batch"))
    sharded = Layout(layout.dimensions, FOUR, with_state(layout, label))
    program = shard(graph, sharded)
    assert [kind for kind, _ in collectives(program)] == ["reduce_scatter", "all_gather"]
    updates = program.parts_of(graph.index("update.w0"))
    assert len(updates) == (4 if label == FLAT else 1)
    assert program.share[updates].sum() == pytest.approx(1)
    assert program.graph.param_bytes.sum() == 4 * graph.param_bytes.sum()


def fsdp(graph: lm.OpGraph, bucket_bytes: int) -> Program:
    dimensions = Dimensions.of(graph)
    layout = Layout(dimensions, FOUR, cut_along(dimensions, "batch"))
    labels = with_state(layout, FLAT, parameters=True)
    return shard(graph, Layout(dimensions, FOUR, labels, bucket_bytes=bucket_bytes))


def test_parameters_that_are_sharded_are_gathered_where_they_are_used():
    graph = chain()
    program = fsdp(graph, 2 * 64 * 64 * 4)
    kinds = Counter(kind for kind, _ in collectives(program))
    # Forward all six, backward but the first, which no gradient of a tensor needs.
    assert kinds == {"all_gather": 3 + 3, "reduce_scatter": 3}
    assert program.graph.param_bytes.sum() == graph.param_bytes.sum()


def test_no_more_than_two_buckets_are_there_ahead_of_their_time():
    graph = chain()
    program = fsdp(graph, 1)
    running = program.graph
    gathers = [op for op in np.flatnonzero(program.rank == 0) if running.kinds[op] == "all_gather"]
    first_use = [int(running.dst[running.src == op].min()) for op in gathers]
    order = np.argsort(first_use)
    for i, at in enumerate(order.tolist()):
        waits = running.src[(running.dst == gathers[at]) & (running.tensor < 0)].tolist()
        assert waits == ([first_use[order[i - 2]]] if i >= 2 else [])


def test_what_is_saved_for_the_backward_pass_is_gathered_there():
    graph = mlp()
    words = {"x": "Shard(0)", "before": "axis0"} | {"up": "row", "gelu": "axis0"}
    program = shard(graph, labelled(graph, FOUR, words))
    running = program.graph
    gathers = [
        op
        for op in np.flatnonzero((program.role == COLLECTIVE) & (program.rank == 0)).tolist()
        if graph.names[program.serves[op]] == "before"
    ]
    assert len(gathers) == 1
    waits = running.src[(running.dst == gathers[0]) & (running.tensor < 0)].tolist()
    assert [running.names[op] for op in waits] == ["dh@d0"]


# -- as replicas are -------------------------------------------------------------------------------

STATES = {
    "all-reduce": (None, {}),
    "flat": (FLAT, {"aggregation": "reduce-scatter"}),
    "owner": (OWNER, {"aggregation": "reduce-scatter", "shards": "parameters"}),
}


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("name", ["alexnet", "gpt3-330m"])
def test_pure_data_parallelism_is_that_of_replicas(name, state):
    label, options = STATES[state]
    dimensions = example(name)
    layout = Layout(dimensions, FOUR, cut_along(dimensions, "batch"))
    if label is not None:
        layout = Layout(dimensions, FOUR, with_state(layout, label))
    program, known = shard(dimensions.graph, layout), replicate(dimensions.graph, 4, **options)
    seen, wanted = (judged(problem(name), each) for each in (program, known))
    assert seen.step_time == pytest.approx(wanted.step_time, rel=0.01)
    assert int(seen.peak.max()) == pytest.approx(int(wanted.peak.max()), rel=0.02)
    assert program.graph.param_bytes.sum() == known.graph.param_bytes.sum()
    assert sent(program) == pytest.approx(sent(known), rel=1e-3)


def without_arguments(name: str) -> lm.OpGraph:
    """An example that does not say what its ops were called with."""
    return example(name).graph.with_columns({"args": None})


@pytest.mark.parametrize(("word", "options"), [("none", {}), ("optimizer", STATES["flat"][1])])
def test_a_recipe_of_the_batch_alone_needs_no_arguments_of_calls(word, options):
    graph = without_arguments("alexnet")
    recipe = Recipe({"x": 4}, {"x": {"**": "batch"}}, shard_state={"**": word})
    program, known = shard(graph, recipe), replicate(graph, 4, **options)
    seen, wanted = (judged(problem("alexnet"), each) for each in (program, known))
    assert seen.step_time == pytest.approx(wanted.step_time, rel=0.01)
    assert sent(program) == pytest.approx(sent(known), rel=1e-3)


def test_what_is_recomputed_shares_the_batch_without_arguments_too():
    graph = without_arguments("gpt3-330m")
    recipe = Recipe({"x": 4}, {"x": {"**": "batch"}}, recompute=("h.*",))
    program = shard(graph, recipe)
    again = np.bincount(program.serves[~program.own], minlength=graph.n_ops) > 4
    products = np.array(["aten.mm" in kind or "aten.addmm" in kind for kind in graph.kinds])
    assert (again & products).sum() > 24
    assert (program.share[(again & products)[program.serves]] == 0.25).all()


def sent(program: Program) -> int:
    """Bytes that members of collectives read."""
    graph = program.graph
    into = graph.is_member[graph.dst] & (graph.tensor >= 0)
    _, once = np.unique(np.stack([graph.tensor, graph.dst])[:, into], axis=1, return_index=True)
    return int(graph.bytes[into][once].sum())


def test_batch_norms_are_synchronised_as_those_of_replicas():
    dimensions = example("inception-v3")
    counts = {}
    for word in ("local", "synchronised"):
        layout = Layout(dimensions, FOUR, cut_along(dimensions, "batch"), word)
        program = shard(dimensions.graph, layout)
        counts[word] = sum("statistics" in name for name in set(program.graph.collectives))
    known = replicate(dimensions.graph, 4, batch_norm="synchronised")
    norms = sum("statistics" in name for name in set(known.graph.collectives))
    # What is left is the loss: its sum and its samples.
    assert norms > 100
    assert counts["synchronised"] - counts["local"] == norms
    assert counts["local"] == 2


# -- shares, and what the judge sees ---------------------------------------------------------------

MESHES = [
    DeviceMesh.of({"x": 2}),
    FOUR,
    DeviceMesh.of({"x": 2, "y": 2}),
    DeviceMesh((MeshAxis("x", 4, (4.0, 2.0, 1.0, 1.0)),)),
]


@settings(max_examples=12)
@given(st.integers(0, 2**16), st.sampled_from(MESHES), st.sampled_from(["lenet", "mlp"]))
def test_shares_add_up_and_the_judge_runs_it(seed, mesh, name):
    dimensions = Dimensions.of(mlp()) if name == "mlp" else example(name)
    graph = dimensions.graph
    layout = Layout(dimensions, mesh, drawn(dimensions, mesh, seed), "synchronised")
    program = shard(graph, layout)
    copies = ~program.own
    share = np.bincount(program.serves[copies], program.share[copies], graph.n_ops)
    k = np.bincount(program.serves[copies], minlength=graph.n_ops)
    # Each axis has one whole op in all, or one on each of its devices.
    wanted = np.ones(graph.n_ops)
    classes = layout.tables.work_class(layout.form_of, layout.labels)
    for axis, size in enumerate(mesh.shape):
        everywhere = (classes[axis] == 0) & ~(layout.labels[axis] == OWNER)
        wanted *= np.where(everywhere | graph.view, size, 1)
    runs = ~graph.view
    np.testing.assert_allclose(share[runs], wanted[runs])
    assert (k >= 1).all()
    assert (k <= mesh.size).all()
    running = program.graph
    flops = np.bincount(program.serves[copies], running.flops[copies], graph.n_ops)
    np.testing.assert_allclose(flops[runs], graph.flops[runs] * wanted[runs], rtol=1e-6, atol=8)
    held = np.bincount(program.serves[copies], running.param_bytes[copies], graph.n_ops)
    spread = layout.ways.fractions[layout.made_way[layout.first_output[:-1]]].sum(axis=1)
    state = graph.placeholder
    np.testing.assert_allclose(held[state], (graph.param_bytes * spread)[state], atol=8)
    cluster = lm.Cluster.preset(CLUSTER)
    of = Problem.make(graph, cluster, lm.costs.estimate(graph, cluster))
    verdict = judged(of, program)
    assert np.isfinite(verdict.step_time)
    on = np.bincount(program.rank, running.param_bytes, 4)
    assert (verdict.peak >= on).all()


def test_an_op_is_on_the_device_of_its_place_on_the_mesh():
    graph, mesh = mlp(), DeviceMesh.of({"dp": 2, "tp": 2})
    dimensions = Dimensions.of(graph)
    labels = whole(dimensions, mesh)
    labels[0] = cut_along(dimensions, "batch")[0]
    labels[1, graph.index("up")] = 2
    program = shard(graph, Layout(dimensions, mesh, labels))
    up = program.parts_of(graph.index("up"))
    assert [program.graph.names[op] for op in up] == ["up@d0", "up@d1", "up@d2", "up@d3"]
    assert program.rank[up].tolist() == [0, 1, 2, 3]
    assert program.replica[up].tolist() == [0, 0, 1, 1]
    assert program.part[up].tolist() == [0, 1, 0, 1]
    assert program.parts[up].tolist() == [2, 2, 2, 2]
    assert program.share[up].tolist() == [0.25] * 4
    assert program.label(int(up[3])) == "'up' (device 3 of the mesh)"
    groups = {}
    for op, name in enumerate(program.graph.collectives):
        if name.startswith("all_gather"):
            groups.setdefault(name, []).append(int(program.rank[op]))
    assert [0, 1] in groups.values()
    assert [2, 3] in groups.values()


def test_fewer_bytes_cross_the_outer_axis():
    """What is cut on both axes is gathered on the outer one first, while it is small."""
    graph, mesh = mlp(), DeviceMesh.of({"outer": 2, "inner": 2})
    dimensions = Dimensions.of(graph)
    labels = whole(dimensions, mesh)
    labels[:, graph.index("before")] = 1, 2
    program = shard(graph, Layout(dimensions, mesh, labels))
    running = program.graph
    members = np.flatnonzero(running.is_member & (program.rank == 0)).tolist()
    assert [running.output_bytes[op] for op in members] == [64 * 128 * 2, 64 * 128 * 4]
    mates = [
        sorted(program.rank[[i for i, c in enumerate(running.collectives) if c == label]].tolist())
        for label in (running.collectives[op] for op in members)
    ]
    assert mates == [[0, 2], [0, 1]]


def test_neighbours_send_the_rows_that_parts_need():
    graph = example("lenet").graph
    layout = labelled(
        graph, FOUR, {"input0": "Shard(2)", "convolution": "spatial0", "relu": "axis2"}
    )
    program = shard(graph, layout)
    slices = np.flatnonzero(program.role == SLICE)
    # 28 rows, and a filter of 5: each part needs the 4 rows after its own.
    assert [program.graph.names[op] for op in slices] == [
        f"slice/convolution.0.1.0@d{d}" for d in (1, 2, 3)
    ]
    assert program.graph.output_bytes[slices].tolist() == [256 * 28 * 4 * 4] * 3
    for op in slices.tolist():
        reader = program.graph.dst[program.graph.src == op]
        assert program.rank[reader].tolist() == [program.rank[op] - 1]


def test_unequal_devices_have_unequal_parts():
    graph = chain()
    mesh = DeviceMesh((MeshAxis("x", 2, (3.0, 1.0)),))
    dimensions = Dimensions.of(graph)
    program = shard(graph, Layout(dimensions, mesh, cut_along(dimensions, "batch")))
    rows = program.parts_of(graph.index("y0"))
    assert program.share[rows].tolist() == [0.75, 0.25]
    assert program.graph.output_bytes[rows].tolist() == [48 * 64 * 4, 16 * 64 * 4]


# -- recipes, and what is refused ------------------------------------------------------------------


@pytest.mark.parametrize("mesh", MESHES[:3], ids=str)
def test_a_layout_is_that_of_its_recipe(mesh):
    dimensions = example("lenet")
    layout = Layout(dimensions, mesh, drawn(dimensions, mesh, 3), "synchronised", 1000)
    recipe = Recipe.from_toml(layout.recipe().to_toml())
    again = Layout.of(dimensions.graph, recipe)
    known = dimensions.form_of >= 0
    np.testing.assert_array_equal(again.labels[:, known], layout.labels[:, known])
    assert (again.batch_norm, again.bucket_bytes) == ("synchronised", 1000)
    program = shard(dimensions.graph, recipe)
    assert program.recipe is recipe
    assert program.graph.digest == shard(dimensions.graph, layout).graph.digest


@pytest.mark.parametrize("word", ["optimizer", "gradients", "parameters"])
def test_a_recipe_shards_state_on_the_axes_of_the_batch(word):
    graph = chain()
    dimensions = Dimensions.of(graph)
    plain = Layout(dimensions, FOUR, cut_along(dimensions, "batch"))
    recipe = Recipe.from_document(plain.recipe().to_document() | {"shard_state": {"**": word}})
    layout = Layout.of(graph, recipe)
    wanted = with_state(plain, FLAT, parameters=word == "parameters")
    np.testing.assert_array_equal(layout.labels, wanted)


def test_what_cannot_be_is_refused():
    graph = mlp()
    dimensions = Dimensions.of(graph)
    labels = whole(dimensions, FOUR)
    with pytest.raises(InputError, match=r"labels have shape \(1, 3\)"):
        Layout(dimensions, FOUR, labels[:, :3])
    for op, label, words in (
        ("up", 9, "axis 'x', op 'up'.*cannot have label 9: it has 5 cuts"),
        ("up", OWNER, "op 'up'.*it is of no parameter's update"),
    ):
        bad = labels.copy()
        bad[0, graph.index(op)] = label
        with pytest.raises(InputError, match=words):
            Layout(dimensions, FOUR, bad)
    with pytest.raises(InputError, match=r"'down' needs .* 'gelu' .*no collective"):
        shard(graph, labelled(graph, FOUR, {"gelu": "axis1", "down": "partial"}))
    with pytest.raises(InputError, match="nothing that it means can be 'rows'; they can be row"):
        shard(graph, Recipe({"x": 4}, {"x": {"** aten.mm.default#0": "rows"}}))
    with pytest.raises(InputError, match=r"it leaves .* to a solver"):
        shard(graph, Recipe({"x": 4}, rest="auto"))
    twice = replicate(chain(), 2).graph
    with pytest.raises(InputError, match="a graph of several devices is not sharded"):
        shard(twice, Recipe({"x": 4}))
