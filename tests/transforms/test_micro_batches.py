"""Micro-batches: what is copied, what is accumulated, what there is once."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from as_given import check_as_if_given
from hypothesis import given
from hypothesis import strategies as st
from strategies import op_graphs
from test_replicas import normed
from trained import linears, step

import loadmaster as lm
from loadmaster.base.errors import InputError
from loadmaster.transforms import Program, micro_batches, recompute, replicate, shard

WAYS = (
    {"aggregation": "all-reduce"},
    {"aggregation": "reduce-scatter", "shards": "flat"},
    {"aggregation": "reduce-scatter", "shards": "parameters"},
)


@pytest.mark.parametrize("rows", [(4, 4), (3, 3, 2), (1, 6, 1), (1,) * 8])
def test_micro_batches_update_weights_as_the_batch_does(rows):
    widths, batch = (3, 5, 2, 7), sum(rows)
    graph, draw = linears(widths, batch), np.random.default_rng(1)
    x = draw.standard_normal((batch, widths[0]))
    weights = [draw.standard_normal(shape) for shape in pairwise(widths)]
    alone = step(Program.of(graph), [x], weights)
    program = micro_batches(graph, len(rows), rows)
    found = step(program, np.split(x, np.cumsum(rows)[:-1]), weights)
    assert set(found) >= set(alone)
    for key, value in alone.items():
        np.testing.assert_allclose(found[key], value, rtol=1e-9, atol=1e-9)


def test_by_hand_two_layers_in_three_micro_batches():
    graph = linears((2, 3, 4), 6)
    program = micro_batches(graph, 3, (3, 2, 1))
    made = program.graph
    at, micro = made.index, program.micro
    assert [micro[at(name)] for name in ("w0", "update1", "x@m0", "y1@m2")] == [-1, -1, 0, 2]
    assert program.share[at("y1@m1")] == pytest.approx(1 / 3)
    # y1 is [6, 4] of 4 bytes, and 2 * 6 * 3 * 4 FLOPs.
    assert [int(made.output_bytes[at(f"y1@m{j}")]) for j in range(3)] == [48, 32, 16]
    assert [int(made.flops[at(f"y1@m{j}")]) for j in range(3)] == [72, 48, 24]
    # dw1 is [3, 4]: 48 bytes, whole in each micro-batch. Additions read both and write one.
    adds = [at("dw1@aggregate@m1"), at("dw1@aggregate@m2")]
    assert [int(made.output_bytes[at(f"dw1@m{j}")]) for j in range(3)] == [48, 48, 48]
    for column, value in {"flops": 12, "bytes_accessed": 144, "output_bytes": 0}.items():
        assert getattr(made, column)[adds].tolist() == [value, value]
    assert (made.alias_of[adds] == at("dw1@m0")).all()
    assert made.names[at("dw1@m0") : at("dw1@m0") + 5] == [
        "dw1@m0", "dw1@m1", "dw1@m2", "dw1@aggregate@m1", "dw1@aggregate@m2",
    ]  # fmt: skip
    assert program.source.names[program.serves[adds[0]]] == "dw1"
    sources = {made.names[s] for s in made.src[made.dst == at("update1")].tolist()}
    assert sources == {"w1", "m1", "dw1@aggregate@m2"}


@pytest.mark.parametrize("how", [WAYS[0], WAYS[2]])
@pytest.mark.parametrize("rows", [(4, 4), (5, 3)])
def test_micro_batches_of_replicas_sum_gradients_once(how, rows):
    widths, batch, m, k = (3, 5, 2, 7), sum(rows), 3, len(rows)
    graph, draw = linears(widths, batch), np.random.default_rng(1)
    x = draw.standard_normal((batch, widths[0]))
    weights = [draw.standard_normal(shape) for shape in pairwise(widths)]
    alone = step(Program.of(graph), [x], weights)
    replicas = replicate(graph, k, rows=rows, **how)
    program = micro_batches(replicas, m)
    taken = [[round(batch * program.share[i]) for i in copies(program, "x", r)] for r in range(k)]
    assert [sum(samples) for samples in taken] == list(rows)
    parts = np.split(x, np.cumsum(np.ravel(taken))[:-1])
    found = step(program, parts, weights)
    for (name, _), value in alone.items():
        for r in range(k):
            np.testing.assert_allclose(found[name, r * m], value, rtol=1e-9, atol=1e-9)
    collectives = [label for label in program.graph.collectives if label]
    assert Counter(collectives) == Counter(c for c in replicas.graph.collectives if c)
    assert (program.micro[program.graph.is_member] < 0).all()


def copies(program: Program, name: str, replica: int) -> list[int]:
    """The ops of an op in a replica."""
    of = program.serves == program.source.index(name)
    return np.flatnonzero(of & (program.replica == replica) & ~program.own).tolist()


def tied(batch: int = 4, *, modules: tuple[str, str] = ("embed", "head")) -> lm.OpGraph:
    """A weight that two products read, whose gradients are turned, summed and read by an update."""
    rows = [
        ("x", "input", "f", "", 16 * batch), ("w", "parameter", "f", "w", 0),
        ("y", "aten.mm", "f", modules[0], 16 * batch),
        ("z", "aten.mm", "f", modules[1], 16 * batch),
        ("dz", "aten.mul", "b", modules[1], 16 * batch),
        ("dw_z", "aten.mm", "b", modules[1], 64), ("turned", "aten.t", "b", modules[1], 0),
        ("dy", "aten.mm", "b", modules[1], 16 * batch), ("dw_y", "aten.mm", "b", modules[0], 64),
        ("dw", "aten.add", "b", "w", 64), ("update", "aten.add_", "o", "w", 0),
    ]  # fmt: skip
    columns = ("name", "kind", "phase", "module", "output_bytes")
    ops = dict(zip(columns, map(list, zip(*rows, strict=True)), strict=True))
    ops["param_bytes"] = [64 * (name == "w") for name in ops["name"]]
    ops["flops"] = [9 * (kind == "aten.mm") for kind in ops["kind"]]
    ops["view"] = [int(name == "turned") for name in ops["name"]]
    ops["alias_of"] = [
        5 if name == "turned" else 1 if name == "update" else -1 for name in ops["name"]
    ]
    ends = [(0, 2), (1, 2), (2, 3), (1, 3), (3, 4), (2, 5), (4, 5), (5, 6), (4, 7), (1, 7)]
    ends += [(0, 8), (7, 8), (6, 9), (8, 9), (1, 10), (9, 10)]
    sizes = [16 * batch if ops["name"][s] in "x y z dz dy" else 64 for s, _ in ends]
    edges = {"src": [s for s, _ in ends], "dst": [d for _, d in ends], "bytes": sizes}
    return lm.OpGraph(ops, edges, meta={"batch": batch})


def test_a_tied_gradient_is_accumulated_where_its_parts_are_made_and_meets_once():
    program = micro_batches(tied(), 2)
    made = program.graph
    assert {"turned", "dw"} < set(made.names)
    assert (program.micro[[made.index("turned"), made.index("dw")]] == -1).all()
    sums = [name for name in made.names if "aggregate" in name]
    assert sums == ["dw_z@aggregate@m1", "dw_y@aggregate@m1"]
    read = {made.names[s] for s in made.src[made.dst == made.index("turned")]}
    assert read == {"dw_z@aggregate@m1"}
    assert [made.modules[made.index(name)] for name in sums] == ["head", "embed"]


def test_parts_that_one_module_makes_are_summed_before_they_are_kept():
    program = micro_batches(tied(modules=("cell", "cell")), 3)
    made = program.graph
    sums = [name for name in made.names if "aggregate" in name]
    assert sums == ["dw@aggregate@m1", "dw@aggregate@m2"]
    assert {"turned@m2", "dw@m2"} < set(made.names)
    assert program.share[made.index("dw@m2")] == 1.0, (
        "a sum of gradients is as long in a micro-batch"
    )


# -- properties ------------------------------------------------------------------------------


def check(before: lm.OpGraph, program: Program, m: int) -> None:
    """What holds of the micro-batches of any graph."""
    made, own, serves = program.graph, program.own, program.serves
    check_as_if_given(made)
    origin = serves[~own]
    assert set(origin.tolist()) == set(range(before.n_ops))
    assert (np.diff(origin) >= 0).all(), "the order of the graph is kept"
    copies_of = np.bincount(origin, minlength=before.n_ops)
    is_many = copies_of > 1
    assert set(copies_of.tolist()) <= {1, m}
    assert (is_many <= before.roles.many).all()
    micro = program.micro[~own]
    assert (micro[~is_many[origin]] == -1).all()
    assert (micro[is_many[origin]].reshape(-1, m) == np.arange(m)).all()
    share = np.bincount(origin, program.share[~own])
    is_whole = program.share[~own] == 1.0
    of_sums = np.zeros(before.n_ops, dtype=bool)
    of_sums[origin[is_whole & is_many[origin]]] = True
    assert share[~of_sums] == pytest.approx(1)
    for column in ("flops", "param_bytes", "workspace"):
        found = np.bincount(origin, getattr(made, column)[~own].astype(float), before.n_ops)
        assert (found == getattr(before, column)).all(), column
    for column in ("output_bytes", "bytes_accessed"):
        found = np.bincount(origin, getattr(made, column)[~own].astype(float), before.n_ops)
        total = getattr(before, column)
        assert ((total <= found) & (found <= m * total)).all(), column
    adds = np.flatnonzero(own)
    assert {made.kinds[i] for i in adds.tolist()} <= {"aggregate"}
    assert (program.micro[adds].reshape(-1, m - 1) == np.arange(1, m)).all(), "m - 1 for each"
    assert (made.bytes_accessed[adds] % 3 == 0).all()


@given(op_graphs(), st.integers(2, 4), st.data())
def test_drawn_graphs_have_every_op_and_can_run(graph, m, data):
    document = graph.to_document()
    n = graph.n_ops
    phases = st.sampled_from(["f", "f", "b", "o", ""])
    modules = st.sampled_from(["a", "b", ""])
    document["ops"]["phase"] = data.draw(st.lists(phases, min_size=n, max_size=n))
    document["ops"]["module"] = data.draw(st.lists(modules, min_size=n, max_size=n))
    document["ops"]["flops"] = data.draw(st.lists(st.integers(0, 9), min_size=n, max_size=n))
    document["meta"]["batch"] = m + data.draw(st.integers(0, 5))
    graph = lm.OpGraph.from_document(document)
    program = micro_batches(graph, m)
    check(graph, program, m)
    assert micro_batches(graph, m).graph.digest == program.graph.digest
    cluster = lm.Cluster.mesh(m, memory="1TiB", bandwidth=1e9, type="gpu")
    devices = np.zeros(program.graph.n_ops, dtype=np.int32)
    seen = lm.simulate(program.graph, cluster, devices, costs=np.ones(program.graph.n_ops))
    assert np.isfinite(seen.makespan)


@given(
    st.lists(st.integers(1, 40), min_size=2, max_size=5),
    st.lists(st.integers(1, 9), min_size=2, max_size=4),
)
def test_work_is_conserved(widths, rows):
    graph, m = linears(widths, sum(rows)), len(rows)
    program = micro_batches(graph, m, rows)
    check(graph, program, m)
    assert int(program.own.sum()) == (m - 1) * (len(widths) - 1)
    of_weights = np.array([name.startswith("dw") for name in graph.names])[program.serves]
    batch = ~program.own & (program.micro >= 0) & ~of_weights
    found = np.bincount(program.serves[batch], program.graph.output_bytes[batch], graph.n_ops)
    some = np.unique(program.serves[batch])
    assert (found[some] == graph.output_bytes[some]).all()


MADE = {
    "replicas": lambda g: replicate(g, 2),
    "flat shards of the optimizer": lambda g: replicate(g, 2, **WAYS[1]),
    "shards by parameter": lambda g: replicate(g, 2, **WAYS[2]),
    "recomputation": lambda g: recompute(g, ["h.0", "h.1"]),
    "columns": lambda g: shard(
        g, lm.Recipe({"tp": 2}, {"tp": {"h.*.fc aten.addmm.default": "column"}})
    ),
}


@pytest.mark.parametrize("how", MADE)
def test_programs_have_micro_batches_of_what_they_do(how):
    before = MADE[how](lm.read("example:gpt3-330m"))
    program = micro_batches(before, 2)
    made = program.graph
    assert program.source is before.source
    assert set(program.replica.tolist()) == set(before.replica.tolist())
    assert set(program.rank.tolist()) == set(before.rank.tolist())
    members = np.flatnonzero(made.is_member)
    once = {made.collectives[i] for i in members if program.micro[i] < 0}
    each = {made.collectives[i].rpartition("@")[0] for i in members if program.micro[i] >= 0}
    assert once | each == set(before.graph.collectives) - {""}
    assert not once & each
    assert not any("gradients" in label for label in each)
    assert not any("tensors" in label for label in once)
    adds = made.kinds.count("aggregate")
    # A tied weight has two gradients. What one device updates is accumulated there.
    held = sum(kind == "parameter" for kind in before.graph.kinds)
    assert adds in (held + 1, held + 2)
    assert (made.alias_of[[kind == "aggregate" for kind in made.kinds]] >= 0).all()
    check_as_if_given(made)


def test_a_batch_norm_says_whose_statistics_it_has():
    program = micro_batches(normed(), 4)
    assert ["statistics of a micro-batch, of 2 samples" in note for note in program.notes] == [True]
    assert micro_batches(linears((2, 2), 4), 2).notes == ()


def test_gradients_that_nothing_reads_are_said():
    document = linears((2, 2), 4).to_document()
    last = document["ops"]["name"].index("update0")
    for column in document["ops"].values():
        if isinstance(column, list):
            del column[last]
    keep = [i for i, dst in enumerate(document["edges"]["dst"]) if dst != last]
    for column, values in document["edges"].items():
        document["edges"][column] = [values[i] for i in keep]
    program = micro_batches(lm.OpGraph.from_document(document), 2)
    assert ["not accumulated" in note for note in program.notes] == [True]


def test_weights_that_an_op_holds_are_there_once_and_its_copies_are_with_them():
    graph = lm.OpGraph(
        {"name": ["x", "a", "b"], "kind": ["input", "mm", "mm"], "param_bytes": [0, 10, 6],
         "colocation": ["", "", "pair"], "output_bytes": [8, 8, 8]},
        {"src": [0, 1], "dst": [1, 2], "bytes": [8, 8]}, meta={"batch": 4},
    )  # fmt: skip
    made = micro_batches(graph, 4).graph
    assert made.param_bytes.sum() == graph.param_bytes.sum()
    sets = dict(zip(made.names, made.colocation, strict=True))
    assert {sets[f"a@m{j}"] for j in range(4)} == {"a"}
    assert {sets[f"b@m{j}"] for j in range(4)} == {"pair"}
    check_as_if_given(made)


def test_one_micro_batch_is_the_graph_itself():
    graph = linears((2, 2), 4)
    assert micro_batches(graph, 1).graph is graph


# -- refusals --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("graph", "m", "rows", "words"),
    [
        (linears((2, 2), 4), 5, None, "batch of 4 samples.*at most 4"),
        (linears((2, 2), 4), 2, (3, 2), "rows add up to 5, and the batch is 4"),
        (linears((2, 2), 4), 2, (4,), "rows has 1 value for 2 micro-batches"),
        (linears((2, 2), 4), 0, None, "m "),
        (replicate(linears((2, 2), 5), 2, rows=(4, 1)), 2, None, "a replica with 1 sample"),
        (replicate(linears((2, 2), 4), 2), 2, (3, 1), "rows .3, 1. would cut samples"),
        (lm.OpGraph({"name": ["a"]}, {"src": [], "dst": []}), 2, None, "nobody says how many"),
    ],
)
def test_refusals_say_the_way_out(graph, m, rows, words):
    with pytest.raises(InputError, match=words):
        micro_batches(graph, m, rows)
