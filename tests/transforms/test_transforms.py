"""Replicas with parameter servers: nothing lost, nothing invented, gradients summed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import op_graphs, v100_mesh
from traced import every_traced_graph

import loadmaster as lm
from loadmaster.base.errors import InputError
from loadmaster.costs.program import program_costs
from loadmaster.costs.roofline import roofline_costs
from loadmaster.transforms import Program, replicate
from loadmaster.transforms.base import shares
from loadmaster.transforms.shares import batch_size
from loadmaster.transforms.ways import SharingWays

LARGE = ("evoformer", "mamba", "nmt_4x2048_train")

SERVED = {"aggregation": "parameter-server"}


def replicas(graph: lm.OpGraph, k: int) -> Program:
    """Replicas with parameter servers."""
    return replicate(graph, k, **SERVED)


def served(graph: lm.OpGraph, k: int) -> lm.OpGraph:
    """Their graph."""
    return replicas(graph, k).graph


def training(batch: int = 8, times: dict | None = None) -> lm.OpGraph:
    """One linear layer without bias, trained by plain gradient descent.

    x [8, 4] f32 = 128 B, w [4, 2] = 32 B; y = x w, dy = y, dw = x^T dy, w += dw.
    """
    ops = {
        "name": ["x", "w", "y", "dy", "dw", "dw_t", "update"],
        "kind": ["input", "parameter", "aten.mm", "aten.mul", "aten.mm", "aten.t", "aten.add_"],
        "phase": ["f", "f", "f", "b", "b", "b", "o"],
        "output": [
            f"f32[{batch},4]",
            "f32[4,2]",
            f"f32[{batch},2]",
            f"f32[{batch},2]",
            "f32[4,2]",
            "f32[2,4]",
            "f32[4,2]",
        ],
        "flops": [0, 0, 129, 0, 128, 0, 8],
        "bytes_accessed": [0, 0, 224, 128, 224, 0, 96],
        "output_bytes": [128, 32, 64, 64, 32, 0, 0],
        "param_bytes": [0, 32, 0, 0, 0, 0, 0],
        "view": [0, 0, 0, 0, 0, 1, 0],
        "alias_of": [-1, -1, -1, -1, -1, 4, 1],
        "colocation": ["", "w", "", "", "", "", "w"],
    }
    if times:
        ops["time"] = times
    edges = {
        "src": [0, 1, 2, 0, 3, 4, 5, 1, 2],
        "dst": [2, 2, 3, 4, 4, 5, 6, 6, 6],
        "tensor": [0, 1, 2, 0, 3, 4, 5, 1, -1],
        "bytes": [128, 32, 64, 128, 64, 32, 32, 32, 0],
    }
    return lm.OpGraph(ops, edges, name="linear", meta={"batch": batch})


def edges_of(graph: lm.OpGraph) -> list[tuple[str, str, int]]:
    """(source, destination, bytes), control edges with -1."""
    tensor = graph.src if graph.tensor is None else graph.tensor
    return sorted(
        (graph.names[s], graph.names[d], int(b) if t >= 0 else -1)
        for s, d, t, b in zip(graph.src, graph.dst, tensor, graph.bytes, strict=True)
    )


def column(graph: lm.OpGraph, values) -> dict[str, int]:
    return dict(zip(graph.names, np.asarray(values).tolist(), strict=True))


def check_conserved(before: lm.OpGraph, after: Program) -> None:
    """Invariants of every transform. An OpGraph is acyclic, with unique names, or it is none."""
    graph, own = after.graph, after.own
    assert int(graph.flops[~own].sum()) == int(before.flops.sum())
    copies = graph.meta.get("data_parallel", {}).get("copied_param_bytes", 0)
    assert int(graph.param_bytes.sum()) - copies == int(before.param_bytes.sum())
    assert not graph.param_bytes[own].any()
    assert len(after.origin) == len(after.share) == graph.n_ops
    assert set(after.origin[~own].tolist()) == set(range(before.n_ops)), "every op is still there"
    # Slices of a tensor leave and arrive whole.
    reduced = graph.reduced.graph
    assert reduced.n_ops > 0


# -- by hand ---------------------------------------------------------------------------------


def test_a_linear_layer_twice():
    done = replicas(training(), 2)
    graph = done.graph
    assert graph.names == [
        "x@r0", "x@r1", "w", "y@r0", "y@r1", "dy@r0", "dy@r1", "dw@r0", "dw@r1",
        "dw_t@r0", "dw_t@r1", "dw_t@aggregate", "update",
    ]  # fmt: skip
    assert edges_of(graph) == sorted(
        [
            *[(f"x@r{r}", f"y@r{r}", 64) for r in (0, 1)],
            *[("w", f"y@r{r}", 32) for r in (0, 1)],
            *[(f"y@r{r}", f"dy@r{r}", 32) for r in (0, 1)],
            *[(f"x@r{r}", f"dw@r{r}", 64) for r in (0, 1)],
            *[(f"dy@r{r}", f"dw@r{r}", 32) for r in (0, 1)],
            *[(f"dw@r{r}", f"dw_t@r{r}", 32) for r in (0, 1)],
            *[(f"dw_t@r{r}", "dw_t@aggregate", 32) for r in (0, 1)],
            ("dw_t@aggregate", "update", 32),
            ("w", "update", 32),
            *[(f"y@r{r}", "update", -1) for r in (0, 1)],
        ]
    )
    flops = column(graph, graph.flops)
    assert (flops["y@r0"], flops["y@r1"], flops["dw@r0"]) == (65, 64, 64)
    assert flops["dw_t@aggregate"] == 8, "one addition for each of 32 B / 4 B elements"
    accessed = column(graph, graph.bytes_accessed)
    assert accessed["y@r0"] == 32 + (224 - 32) // 2, "the weight whole, the rest by half"
    assert accessed["dw@r0"] == 32 + (224 - 32) // 2, "its gradient whole, the rest by half"
    assert accessed["dw_t@aggregate"] == 3 * 32
    assert column(graph, graph.output_bytes)["dw@r1"] == 32, "a weight gradient is whole"
    outputs = dict(zip(graph.names, graph.outputs, strict=True))
    assert (outputs["y@r0"], outputs["dw@r0"]) == ("f32[4,2]", "f32[4,2]")
    assert graph.alias_of[graph.index("dw_t@r1")] == graph.index("dw@r1")
    assert graph.alias_of[graph.index("update")] == graph.index("w")
    assert graph.meta["data_parallel"] == {
        "replicas": 2,
        "batch": 8,
        "aggregation_flops": 8,
        "aggregation_bytes": 96,
        "copied_param_bytes": 0,
    }
    assert [graph.names[i] for i in np.flatnonzero(done.own)] == ["dw_t@aggregate"]


def test_sums_of_gradients_over_steps_are_whole():
    """dw = dw1 + dw2: both terms are as large as the weight in every replica."""
    g = training()
    document = g.to_document()
    ops, edges = document["ops"], document["edges"]
    ops["name"] += ["dw2", "total"]
    for name, values in {
        "kind": ["aten.mm", "aten.add"],
        "phase": ["b", "b"],
        "output": ["f32[4,2]", "f32[4,2]"],
        "flops": [64, 0],
        "bytes_accessed": [224, 96],
        "output_bytes": [32, 32],
        "param_bytes": [0, 0],
        "view": [0, 0],
        "alias_of": [-1, -1],
        "colocation": ["", ""],
    }.items():
        ops[name] += values
    # update reads total = dw_t + dw2 instead of dw_t.
    edges["dst"][6] = 8
    for s, d, t, b in ((3, 7, 3, 64), (7, 8, 6, 32), (8, 6, 7, 32)):
        for name, value in zip(("src", "dst", "tensor", "bytes"), (s, d, t, b), strict=True):
            edges[name].append(value)
    graph = served(lm.OpGraph.from_document(document), 4)
    carried = {(s, d): b for s, d, b in edges_of(graph)}
    assert carried["dw_t@r3", "total@r3"] == carried["dw2@r0", "total@r0"] == 32
    assert carried["total@r2", "total@aggregate"] == 32
    assert carried["dy@r1", "dw2@r1"] == 16
    assert "dw_t@aggregate" not in graph.names
    assert column(graph, graph.bytes_accessed)["total@r1"] == 96, "a sum of weights does not shrink"


def test_what_follows_from_weights_alone_is_computed_once():
    g = lm.OpGraph(
        {
            "name": ["w", "cast", "x", "y"],
            "kind": ["parameter", "aten._to_copy", "input", "aten.mm"],
            "flops": [0, 6, 0, 7],
            "param_bytes": [16, 0, 0, 0],
        },
        {"src": [0, 1, 2], "dst": [1, 3, 3], "tensor": [0, 1, 2], "bytes": [16, 8, 10]},
    )
    graph = served(g, 3)
    assert graph.names == ["w", "cast", "x@r0", "x@r1", "x@r2", "y@r0", "y@r1", "y@r2"]
    assert graph.flops.tolist() == [0, 6, 0, 0, 0, 3, 2, 2]
    assert [b for s, d, b in edges_of(graph) if s.startswith("x")] == [4, 3, 3]
    assert [b for s, d, b in edges_of(graph) if s == "cast"] == [8, 8, 8]


def test_weights_that_an_op_holds_itself_are_whole_in_every_replica():
    ops = {
        "name": ["x", "layer"],
        "kind": ["input", "dense"],
        "flops": [0, 100],
        "bytes_accessed": [0, 64 + 30 + 32],
        "output_bytes": [64, 32],
        "param_bytes": [8, 30],
    }
    edges = {"src": [0], "dst": [1], "bytes": [64]}
    graph = served(lm.OpGraph(ops, edges), 2)
    assert column(graph, graph.param_bytes) == {
        "x@r0": 4,
        "x@r1": 4,
        "layer@r0": 30,
        "layer@r1": 30,
    }
    assert column(graph, graph.bytes_accessed)["layer@r1"] == 32 + 30 + 16
    assert graph.meta["data_parallel"]["copied_param_bytes"] == 30


def test_arguments_keep_their_order():
    g = training()
    graph = served(g, 2)
    for op in range(graph.n_ops):
        name = graph.names[op].partition("@")[0]
        if "@aggregate" in graph.names[op]:
            continue
        reads = [graph.names[s].partition("@")[0] for s in graph.src[graph.dst == op]]
        before = [g.names[s] for s in g.src[g.dst == g.index(name)]]
        assert list(dict.fromkeys(reads)) == before, name


def test_state_that_is_written_stays_with_replica_0():
    g = lm.OpGraph(
        {
            "name": ["x", "mean", "norm", "count", "tick"],
            "kind": ["input", "buffer", "aten.native_batch_norm", "buffer", "aten.add_"],
            "colocation": ["", "mean", "mean", "count", "count"],
            "param_bytes": [0, 8, 0, 8, 0],
            "alias_of": [-1, -1, -1, -1, 3],
        },
        {"src": [0, 1, 3], "dst": [2, 2, 4], "bytes": [80, 8, 8]},
    )
    graph = served(g, 2)
    assert dict(zip(graph.names, graph.colocation, strict=True)) == {
        "x@r0": "", "x@r1": "", "mean": "mean", "norm@r0": "mean", "norm@r1": "mean@r1",
        "count": "count", "tick": "count",
    }  # fmt: skip


def test_measured_times_are_divided_and_no_op_is_free():
    g = training(times={"gpu": [0.0, 0.0, 4e-3, 2e-3, 6e-3, 0.0, 1e-3]})
    done = replicas(g, 2)
    time = column(done.graph, done.graph.time["gpu"])
    assert (time["y@r0"], time["dw@r1"], time["update"]) == (2e-3, 3e-3, 1e-3)
    assert time["dw_t@aggregate"] == 1e-3, "the shortest time of any op"
    assert time["x@r0"] == time["dw_t@r0"] == 0.0


def test_costs_of_parts_have_a_launch_and_say_where_they_are_from():
    g, cluster = training(), v100_mesh(2)
    done = replicas(g, 2)
    given = lm.Costs.given([0, 0, 4e-3, 2e-3, 6e-3, 0, 1e-3], g, cluster)
    costs = program_costs(done, given, cluster)
    seconds = column(done.graph, costs.time[:, 0])
    assert seconds["y@r0"] == pytest.approx(2e-3 + 5e-6)
    assert seconds["update"] == 1e-3
    assert seconds["w"] == seconds["dw_t@r1"] == 0.0
    assert seconds["dw_t@aggregate"] == pytest.approx(96 / 900e9 + 5e-6)
    word = {n: lm.costs.PROVENANCES[p] for n, p in zip(done.graph.names, costs.provenance)}  # noqa: B905
    assert (word["y@r0"], word["update"], word["dw_t@aggregate"]) == (
        "regressed", "given", "roofline",
    )  # fmt: skip
    rooflines = program_costs(done, roofline_costs(g, cluster), cluster)
    assert np.array_equal(rooflines.time, roofline_costs(done.graph, cluster).time)
    assert rooflines.shares() == {"roofline": 1.0}


def test_costs_without_a_roofline_take_the_shortest_op():
    g = training(times={"gpu": [0.0, 0.0, 4e-3, 2e-3, 6e-3, 0.0, 1e-3]})
    cluster = lm.Cluster.mesh(2, memory="1GiB", bandwidth=1e9, type="gpu")
    done = replicas(g, 2)
    costs = program_costs(done, lm.costs.estimate(g, cluster), cluster)
    assert column(done.graph, costs.time[:, 0])["dw_t@aggregate"] == 1e-3
    assert costs.shares() == pytest.approx({"measured": 1 / 14, "regressed": 13 / 14})


def test_one_replica_is_the_graph():
    g = training()
    assert served(g, 1) is g


@pytest.mark.parametrize("k", [0, -1, 2.0, "2", None, True])
def test_a_bad_number_of_replicas(k):
    with pytest.raises(InputError, match=r"k is .*at least 1"):
        served(training(), k)


def test_more_replicas_than_samples_are_refused():
    with pytest.raises(InputError, match="9 replicas of a batch of 8 samples"):
        served(training(), 9)


def test_names_that_are_taken():
    g = lm.OpGraph({"name": ["a", "a@r1"]}, {"src": [], "dst": []})
    graph = served(g, 2)
    assert graph.names == ["a@r0", "a@r1", "a@r1@r0", "a@r1@r1"]
    taken = lm.OpGraph(
        {"name": ["w@r0", "w"], "kind": ["parameter", "input"]}, {"src": [], "dst": []}
    )
    with pytest.raises(InputError, match='two ops are named "w@r0"'):
        served(taken, 2)


def test_a_batch_that_does_not_divide_is_shared_out_unevenly():
    done = replicas(training(batch=6), 4)
    shares = dict(zip(done.graph.names, done.share.tolist(), strict=True))
    assert [shares[f"y@r{r}"] for r in range(4)] == [2 / 6, 2 / 6, 1 / 6, 1 / 6]
    outputs = dict(zip(done.graph.names, done.graph.outputs, strict=True))
    assert (outputs["y@r0"], outputs["update"]) == ("f32", "f32[4,2]")
    assert replicas(training(batch=8), 4).notes == ()


# -- properties ------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 2**62), min_size=1, max_size=5), st.integers(1, 9))
def test_even_shares_add_up(totals, n):
    ways = SharingWays(n)
    way = np.full(len(totals), ways.of_rows((1,) * n))
    parts = ways.amounts(way, np.array(totals, dtype=np.uint64))
    assert [sum(column) for column in zip(*parts.tolist(), strict=True)] == totals
    assert int(parts.max(axis=0).max() - parts.min(axis=0).max()) <= 1


@given(st.integers(0, 2**63), st.lists(st.integers(1, 9), min_size=1, max_size=9))
def test_shares_add_up_in_proportion(total, chunks):
    parts = shares(total, chunks)
    assert sum(parts) == total
    for part, chunk in zip(parts, chunks, strict=True):
        assert abs(part * sum(chunks) - total * chunk) <= sum(chunks)


@given(op_graphs(), st.integers(1, 4), st.data())
def test_drawn_graphs_keep_flops_and_parameters(graph, k, data):
    document = graph.to_document()
    n = graph.n_ops
    phases = st.sampled_from(["f", "f", "b", "o", ""])
    document["ops"]["phase"] = data.draw(st.lists(phases, min_size=n, max_size=n))
    document["ops"]["flops"] = data.draw(st.lists(st.integers(0, 9), min_size=n, max_size=n))
    if data.draw(st.booleans()):
        document["ops"]["kind"] = [
            "input" if kind == "parameter" and i % 2 else kind for i, kind in enumerate(graph.kinds)
        ]
        document["ops"]["param_bytes"] = [
            0 if kind == "input" else b
            for kind, b in zip(document["ops"]["kind"], graph.param_bytes.tolist(), strict=True)
        ]
    graph = lm.OpGraph.from_document(document)
    done = replicas(graph, k)
    check_conserved(graph, done)
    for i, op in enumerate(done.origin.tolist()):
        if op >= 0 and graph.kinds[op] != "input":
            assert done.graph.param_bytes[i] == graph.param_bytes[op]
    assert done.graph.digest == replicas(graph, k).graph.digest
    for s, d, b in edges_of(done.graph):
        if s.endswith("@aggregate"):
            assert "@r" not in d
            assert b == next(e for _, to, e in edges_of(done.graph) if to == s)


@pytest.mark.parametrize("name", ["lenet", "inception-v3", "bert-large", "rnnlm"])
@pytest.mark.parametrize("k", [2, 3])
def test_what_replicas_carry_adds_up_or_is_whole(name, k):
    """Activations add up to the original; weights read and gradients are whole in each replica."""
    g = lm.read(f"example:{name}")
    graph = served(g, k)
    whole = {(s, d): b for s, d, b in edges_of(g) if b > 0}
    carried: dict[tuple[str, str], list[int]] = {}
    for s, d, b in edges_of(graph):
        if b > 0 and "@aggregate" not in s + d:
            carried.setdefault((s.partition("@")[0], d.partition("@")[0]), []).append(b)
    state = {n for n, kind in zip(g.names, g.kinds, strict=True) if kind in ("parameter", "buffer")}
    divided = 0
    for ends, sizes in carried.items():
        is_whole = sizes == [whole[ends]] * len(sizes)
        assert is_whole or (sum(sizes) == whole[ends] and len(sizes) <= k), ends
        assert is_whole or ends[0] not in state, ends
        divided += not is_whole
    assert divided > len(carried) / 4
    # What an op of the optimizer reads of a gradient is as large as before.
    summed = {d: b for s, d, b in edges_of(graph) if "@aggregate" in s}
    before = {d: b for (s, d), b in whole.items() if s not in state and d in summed}
    assert summed.keys() <= {d for _, d in whole}
    assert all(b in {x for (_, d), x in whole.items() if d == at} for at, b in summed.items())
    assert before


@pytest.mark.parametrize("k", [2, 4])
@every_traced_graph
def test_every_traced_graph(path, k):
    if path.name.startswith(LARGE) and k == 4:
        return
    graph = lm.read(path)
    if (batch_size(graph) or k) < k:
        with pytest.raises(InputError, match=r"replicas of a batch of \d samples?: each needs one"):
            replicas(graph, k)
        return
    done = replicas(graph, k)
    check_conserved(graph, done)
    trained = "train" in path.name
    assert done.own.any() == trained, path.name
    updated = {graph.alias_of[i] for i, p in enumerate(graph.phases) if p == "o"}
    parameters = [i for i in updated if i >= 0 and graph.kinds[i] == "parameter"]
    if trained:
        # One sum per gradient: every parameter that is updated has its own.
        assert int(done.own.sum()) == len(parameters), path.name
        sums = np.flatnonzero(done.own)
        entering = np.isin(done.graph.dst, sums)
        leaving = np.isin(done.graph.src, sums)
        arriving = np.bincount(done.graph.dst[entering], minlength=done.graph.n_ops)[sums]
        assert (arriving == k).all()
        assert (done.graph.bytes[leaving] > 0).all()


@pytest.mark.parametrize("name", ["lenet", "alexnet"])
def test_examples_can_be_placed(name):
    graph = served(lm.read(f"example:{name}"), 2)
    plan = lm.place(graph, v100_mesh(2), "celeritas")
    assert plan.fits
    assert plan.lower_bound <= plan.makespan


# -- the baseline ----------------------------------------------------------------------------


def test_each_replica_is_on_its_device_and_each_update_where_its_parameter_is():
    graph = lm.read("example:lenet")
    plan = lm.place(graph, v100_mesh(3), "data-parallel", **SERVED)
    placed = plan.program.graph
    on = dict(zip(placed.names, plan.running_devices.tolist(), strict=True))
    for name, device in on.items():
        if name[-3:-1] == "@r" and not placed.view[placed.index(name)]:
            assert device == int(name[-1]), name
    for i in np.flatnonzero(placed.alias_of >= 0):
        assert plan.running_devices[i] == plan.running_devices[placed.alias_of[i]]
    for name, device in on.items():
        if name.endswith("@aggregate"):
            reader = placed.dst[placed.src == placed.index(name)][0]
            assert device == plan.running_devices[reader], "a gradient is summed where it is used"
    homes = {on[name] for name in graph.names if graph.kinds[graph.index(name)] == "parameter"}
    assert homes == {0, 1, 2}, "parameters are spread"


def test_on_one_device_data_parallelism_is_the_graph_as_it_is():
    graph = lm.read("example:lenet")
    plan = lm.place(graph, v100_mesh(1), "data-parallel", **SERVED)
    assert plan.graph is graph
    assert plan.program.is_plain
    assert plan.makespan == lm.place(graph, v100_mesh(1), "single").makespan


def test_two_replicas_of_a_large_batch_are_nearly_twice_as_fast():
    graph = lm.read("example:inception-v3")
    alone = lm.place(graph, v100_mesh(2, "1TiB"), "single", costs="roofline")
    both = lm.place(graph, v100_mesh(2, "1TiB"), "data-parallel", costs="roofline", **SERVED)
    assert 1.8 < alone.makespan / both.makespan < 2
    assert both.notes == ()


def test_a_replica_that_does_not_fit_is_an_error_that_says_how_far():
    with pytest.raises(lm.InfeasibleError) as caught:
        lm.place(lm.read("example:inception-v3"), v100_mesh(2, "1GiB"), "data-parallel", **SERVED)
    assert set(caught.value.shortfall) == {"gpu0", "gpu1"}


def test_what_no_device_may_run_is_named():
    g = lm.OpGraph(
        {"name": ["a", "b"], "time": {"*": [1.0, 1.0]}, "device_types": ["tpu", ""]},
        {"src": [0], "dst": [1]},
    )
    with pytest.raises(lm.InfeasibleError, match="op 'a' may run on tpu"):
        lm.place(g, v100_mesh(2), "data-parallel", **SERVED)
