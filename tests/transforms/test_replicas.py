"""Replicas whose gradients are summed by collectives."""

from __future__ import annotations

from collections import Counter
from copy import deepcopy
from itertools import pairwise

import numpy as np
import pytest
from as_given import check_as_if_given
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import op_graphs, v100_mesh
from trained import linears, step

import loadmaster as lm
from loadmaster.base.errors import InputError
from loadmaster.costs.program import program_costs
from loadmaster.judge.problem import Problem
from loadmaster.model.graph import TEXTS
from loadmaster.transforms import Program, replicate
from loadmaster.transforms.data_parallel import share_out

WAYS = (
    {"aggregation": "all-reduce"},
    {"aggregation": "reduce-scatter", "shards": "flat"},
    {"aggregation": "reduce-scatter", "shards": "parameters"},
)


def members(program: Program) -> dict[str, list[int]]:
    """The ops of each collective, in the order of the graph."""
    found: dict[str, list[int]] = {}
    for op, label in enumerate(program.graph.collectives):
        if label:
            found.setdefault(label, []).append(op)
    return found


def with_rows(graph: lm.OpGraph, rows: list[dict], edges: list[tuple]) -> lm.OpGraph:
    """A graph with more ops, and more edges (source, destination, tensor, bytes)."""
    document = deepcopy(graph.to_document())
    ops = document["ops"]
    for row in rows:
        for column in set(row) - set(ops):
            ops[column] = ["" if isinstance(row[column], str) else 0] * len(ops["name"])
        for column, values in ops.items():
            if column != "time":
                blank = "" if isinstance(values[0], str) else -1 if column == "alias_of" else 0
                values.append(row.get(column, blank))
    for edge in edges:
        for column, value in zip(("src", "dst", "tensor", "bytes"), edge, strict=True):
            document["edges"][column].append(value)
    return lm.OpGraph.from_document(document)


def normed(batch: int = 8, channels: int = 6) -> lm.OpGraph:
    """A batch norm and its gradient, with running statistics that are written in place."""
    shape, stat = f"f32[{batch},{channels},4,4]", f"f32[{channels}]"
    big, small = 4 * batch * channels * 16, 4 * channels
    rows = [
        ("x", "input", "f", shape, "", -1), ("mean", "buffer", "f", stat, "mean", -1),
        ("scale", "parameter", "f", stat, "scale", -1),
        ("norm", "aten.native_batch_norm.default", "f", f"{shape};{stat};{stat}", "", -1),
        ("running", "aten.copy_", "f", stat, "mean", 1), ("loss", "aten.mul", "b", shape, "", -1),
        ("back", "aten.native_batch_norm_backward.default", "b", f"{shape};{stat};{stat}", "", -1),
        ("update", "aten.add_", "o", stat, "scale", 2),
    ]  # fmt: skip
    columns = ("name", "kind", "phase", "output", "colocation", "alias_of")
    ops = dict(zip(columns, map(list, zip(*rows, strict=True)), strict=True))
    ops["param_bytes"] = [0, small, small, 0, 0, 0, 0, 0]
    ops["output_bytes"] = [big, 0, 0, big + 2 * small, 0, big, big + 2 * small, 0]
    ops["bytes_accessed"] = [0, 0, 0, 2 * big, 2 * small, 2 * big, 2 * big, 2 * small]
    edges = {
        "src": [0, 2, 3, 3, 1, 5, 0, 6, 2, 3],
        "dst": [3, 3, 5, 4, 4, 6, 6, 7, 7, 6],
        "tensor": [0, 2, 3, 4, 1, 5, 0, 6, 2, 4],
        "bytes": [big, small, big, small, small, big, big, small, small, small],
    }
    return lm.OpGraph(ops, edges, meta={"batch": batch})


# -- what is computed ------------------------------------------------------------------------


@pytest.mark.parametrize("how", [WAYS[0], WAYS[2]])
@pytest.mark.parametrize("rows", [(4, 4), (3, 3, 2), (1, 6, 1)])
@pytest.mark.parametrize("bucket", [1, 100, 10**6])
def test_replicas_update_weights_as_one_device_does(how, rows, bucket):
    widths, batch = (3, 5, 2, 7), sum(rows)
    graph, draw = linears(widths, batch), np.random.default_rng(1)
    x = draw.standard_normal((batch, widths[0]))
    weights = [draw.standard_normal(shape) for shape in pairwise(widths)]
    alone = step(Program.of(graph), [x], weights)
    program = replicate(graph, len(rows), rows=rows, bucket_bytes=bucket, **how)
    parts = np.split(x, np.cumsum(rows)[:-1])
    for (name, _), found in step(program, parts, weights).items():
        np.testing.assert_allclose(found, alone[name, 0], rtol=1e-9, atol=1e-9)


# -- shares and sizes ------------------------------------------------------------------------


@given(
    st.lists(st.integers(1, 40), min_size=2, max_size=5),
    st.lists(st.integers(1, 9), min_size=2, max_size=4),
    st.sampled_from(WAYS),
    st.integers(1, 10**4),
)
def test_work_is_conserved(widths, rows, how, bucket):
    graph = linears(widths, sum(rows))
    program = replicate(graph, len(rows), rows=rows, bucket_bytes=bucket, **how)
    made, own, k = program.graph, program.own, len(rows)
    shares = np.bincount(program.serves[~own], program.share[~own], graph.n_ops)
    copies = np.bincount(program.serves[~own], minlength=graph.n_ops)
    weights = [i for i, kind in enumerate(graph.kinds) if kind == "parameter"]
    assert (copies[weights] == k).all(), "weights are on every device"
    is_batch = [name[0] in "xy" or name[:2] in ("dw", "dy", "lo") for name in graph.names]
    assert shares[is_batch] == pytest.approx(1)
    updates = np.flatnonzero(graph.updates)
    whole = how["aggregation"] == "all-reduce"
    assert shares[updates] == pytest.approx(k if whole else 1)
    assert (copies[updates] == (1 if how.get("shards") == "parameters" else k)).all()
    slots = [i for i, kind in enumerate(graph.kinds) if kind == "buffer"]
    kept = np.bincount(program.serves, made.param_bytes, graph.n_ops)
    assert (kept[weights] == k * graph.param_bytes[weights]).all()
    assert (kept[slots] == (k if whole else 1) * graph.param_bytes[slots]).all()
    flops = np.bincount(program.serves[~own], made.flops[~own], graph.n_ops)
    batch_work = np.array(is_batch) & ~graph.updates
    assert (flops[batch_work] == graph.flops[batch_work]).all()
    for i in np.flatnonzero(program.own):
        assert (made.flops[i], made.param_bytes[i]) == (0, 0)
    # The gradient of a weight is whole in each replica, what goes with the batch is shared.
    for i in np.flatnonzero(~own):
        name, r = made.names[i].split("@r")
        size = int(graph.output_bytes[graph.index(name)])
        if name.startswith("dw"):
            assert made.output_bytes[i] == size
        elif name[0] in "xy":
            assert made.output_bytes[i] * sum(rows) == size * rows[int(r)]


@given(op_graphs(), st.integers(2, 4), st.data())
def test_drawn_graphs_have_every_op_and_can_run(graph, k, data):
    document = graph.to_document()
    phases = st.sampled_from(["f", "f", "b", "o", ""])
    n = graph.n_ops
    document["ops"]["phase"] = data.draw(st.lists(phases, min_size=n, max_size=n))
    document["ops"]["flops"] = data.draw(st.lists(st.integers(0, 9), min_size=n, max_size=n))
    graph = lm.OpGraph.from_document(document)
    how = data.draw(st.sampled_from(WAYS))
    program = replicate(graph, k, bucket_bytes=data.draw(st.integers(1, 50)), **how)
    assert set(program.origin[~program.own].tolist()) == set(range(n))
    assert (
        program.graph.param_bytes[~program.own] <= graph.param_bytes[program.serves[~program.own]]
    ).all()
    again = replicate(graph, k, **how)
    assert again.graph.digest == replicate(graph, k, **how).graph.digest
    check_as_if_given(again.graph)
    check_as_if_given(replicate(graph, k, aggregation="parameter-server").graph)
    devices = program.replica.astype(np.int32)
    cluster = lm.Cluster.mesh(k, memory="1TiB", bandwidth=1e9, type="gpu")
    seconds = np.ones(program.graph.n_ops)
    seen = lm.simulate(program.graph, cluster, devices, costs=seconds)
    assert np.isfinite(seen.makespan)


@pytest.mark.parametrize("how", [*WAYS, {"aggregation": "parameter-server"}])
def test_planning_makes_no_texts(how):
    graph = lm.read("example:lenet")
    program = replicate(graph, 2, **how)
    cluster = v100_mesh(2)
    costs = program_costs(program, lm.costs.estimate(graph, cluster), cluster)
    Problem.make(program, cluster, costs)
    made = set(TEXTS.values()) & set(vars(program.graph))
    assert not made
    assert len(program.graph.names) == len(set(program.graph.names)) == program.graph.n_ops


def test_messages_name_the_ops_of_replicas():
    graph = linears((4, 4), 8)
    types = ["cpu" if kind == "parameter" else "gpu" for kind in graph.kinds]
    apart = graph.with_columns({"device_types": types, "colocation": ["same"] * graph.n_ops})
    with pytest.raises(InputError, match='"x@r0" and "w0@r0" must share'):
        replicate(apart, 2).graph.reduced_for(("cpu", "gpu"))
    with pytest.raises(AttributeError, match="an OpGraph has no attribute 'weights'"):
        getattr(replicate(graph, 2).graph, "weights")  # noqa: B009


def test_a_batch_shared_unevenly_says_how_gradients_are_weighted():
    program = replicate(linears((4, 4), 10), 3)
    assert program.notes == (
        "replicas have 4, 3, 3 samples: weight each one's loss by its share of the batch, so that "
        "the sum of gradients is that of the whole batch",
    )
    assert replicate(linears((4, 4), 9), 3).notes == ()


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"rows": (4, 5)}, "rows add up to 9, and the batch is 8"),
        ({"rows": (8,)}, "rows has 1 value for 2 replicas"),
        ({"rows": (8, 0)}, r"rows\[1\] is 0"),
        ({"aggregation": "ring"}, "aggregation is 'ring': wants one of all-reduce"),
        ({"shards": "rows"}, "shards is 'rows'"),
        ({"batch_norm": "global"}, "batch_norm is 'global'"),
        ({"bucket_bytes": 0}, "bucket_bytes is 0"),
        (
            {"aggregation": "parameter-server", "batch_norm": "synchronised"},
            "'synchronised' needs collectives",
        ),
    ],
)
def test_what_is_refused(asked, words):
    with pytest.raises(InputError, match=words):
        replicate(linears((4, 4), 8), 2, **asked)


def test_more_replicas_than_samples_names_that_are_taken_and_graphs_of_several_devices():
    with pytest.raises(InputError, match="3 replicas of a batch of 2 samples: each needs one"):
        replicate(linears((4, 4), 2), 3)
    graph = linears((4, 4), 4)
    taken = with_rows(graph, [{"name": "all_reduce/gradients0"}], [])
    with pytest.raises(InputError, match="'all_reduce/gradients0': a collective, or"):
        replicate(taken, 2)
    with pytest.raises(InputError, match="of several devices is not replicated"):
        replicate(replicate(graph, 2).graph, 2)


@given(
    st.lists(st.tuples(st.floats(0, 100), st.floats(0.1, 10)), min_size=1, max_size=6),
    st.integers(0, 200),
    st.data(),
)
def test_samples_are_shared_out_so_that_the_slowest_ends_early(lines, more, data):
    fixed, each = map(np.array, zip(*lines, strict=True))
    k = len(lines)
    most = np.array(data.draw(st.lists(st.integers(1, 60), min_size=k, max_size=k)))
    batch = min(k + more, int(most.sum()))
    rows = np.array(share_out(batch, fixed, each, most))
    assert rows.sum() == batch
    assert ((rows >= 1) & (rows <= most)).all()
    # No sample can go elsewhere and the last replica end earlier.
    ends = fixed + each * rows
    last = int(ends.argmax())
    others = (np.arange(k) != last) & (rows < most)
    if rows[last] > 1 and others.any():
        assert (fixed + each * (rows + 1))[others].min() >= ends[last] * (1 - 1e-9)


# -- buckets ---------------------------------------------------------------------------------


@given(st.lists(st.integers(1, 60), min_size=2, max_size=8), st.integers(1, 20_000))
def test_buckets_follow_the_backward_pass_up_to_their_size(widths, most):
    graph = linears(widths, 4)
    program = replicate(graph, 2, bucket_bytes=most)
    made, seen = program.graph, []
    for label, ops in members(program).items():
        assert made.kinds[ops[0]] == "all_reduce"
        assert [int(program.replica[op]) for op in ops] == [0, 1], "one member a replica"
        for r, op in enumerate(ops):
            read = [made.names[s] for s in made.src[made.dst == op]]
            assert all(name.endswith(f"@r{r}") for name in read)
            gradients = [graph.index(name.partition("@")[0]) for name in read]
            size = int(graph.output_bytes[gradients].sum())
            assert size <= most or len(gradients) == 1, label
            assert made.output_bytes[op] == size
        seen.append(sorted(gradients))
    assert [op for bucket in seen for op in bucket] == [
        i for i, name in enumerate(graph.names) if name.startswith("dw")
    ]
    # A bucket is closed only by a gradient that has no room in it.
    for bucket, after in pairwise(seen):
        assert graph.output_bytes[[*bucket, after[0]]].sum() > most


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("name", ["lenet", "vgg19", "inception-v3", "rnnlm"])
def test_each_gradient_reaches_its_update_through_one_sum(name, how):
    graph = lm.read(f"example:{name}")
    program = replicate(graph, 3, **how)
    made = program.graph
    summing = {op for label, ops in members(program).items() if "gradients" in label for op in ops}
    into = Counter(int(d) for s, d in zip(made.src, made.dst, strict=True) if int(s) in summing)
    updated = {
        i
        for i, (phase, of) in enumerate(zip(graph.phases, graph.alias_of.tolist(), strict=True))
        if phase == "o" and of >= 0 and graph.kinds[of] == "parameter" and not graph.view[i]
    }
    # Back from every update, within the optimizer, to sums: exactly one.
    sources: dict[int, list[int]] = {}
    for s, d in zip(made.src.tolist(), made.dst.tolist(), strict=True):
        sources.setdefault(d, []).append(s)
    for op in np.flatnonzero(np.isin(program.origin, list(updated))).tolist():
        stack, seen, found = [op], {op}, 0
        while stack:
            at = stack.pop()
            found += into[at]
            inside = [s for s in sources.get(at, ()) if made.phases[s] == "o" and s not in summing]
            stack += [s for s in inside if s not in seen]
            seen.update(inside)
        assert found == 1, made.names[op]


def test_a_second_step_in_the_graph_waits_for_no_bucket_of_its_own():
    """y1 = x w', with w' = update(w, dw0); dw1 = f(y1): dw1 cannot be summed together with dw0."""
    graph = linears((4, 4), 8)
    w, dw, x, update = (graph.index(name) for name in ("w0", "dw0", "x", "update0"))
    again = [
        {"name": "z", "kind": "aten.mm", "phase": "f", "output_bytes": 128},
        {"name": "dz", "kind": "aten.mm", "phase": "b", "output_bytes": 64, "output": "f32[4,4]"},
        {"name": "update_again", "kind": "aten.add_", "phase": "o", "alias_of": w,
         "colocation": "w0"},
    ]  # fmt: skip
    n = graph.n_ops
    edges = [(x, n, x, 128), (update, n, n, 64), (n, n + 1, n + 1, 128), (n + 1, n + 2, n + 2, 64)]
    program = replicate(with_rows(graph, again, edges), 2)
    assert len(members(program)) == 2
    reads = [
        {
            program.graph.names[s].partition("@")[0]
            for s in program.graph.src[program.graph.dst == op]
        }
        for op, *_ in members(program).values()
    ]
    assert reads == [{graph.names[dw]}, {"dz"}]


# -- sharded optimizers ----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["lenet", "vgg19", "inception-v3"])
@pytest.mark.parametrize("how", WAYS[1:])
def test_a_sharded_optimizer_takes_no_more_memory(name, how):
    graph, cluster = lm.read(f"example:{name}"), v100_mesh(3, "1TiB")
    whole = lm.place(graph, cluster, "data-parallel")
    sharded = lm.place(graph, cluster, "data-parallel", **how)
    assert (sharded.memory.peak <= whole.memory.peak).all()
    assert sharded.memory.static.sum() < whole.memory.static.sum()


def test_updates_of_several_parameters_stay_together():
    """An optimizer whose one op updates two parameters is sharded as one set."""
    graph = linears((4, 4, 4, 4), 8)
    columns = {"colocation": ["w0" if c == "w1" else c for c in graph.colocation]}
    graph = graph.with_columns(columns, {})
    program = replicate(graph, 2, aggregation="reduce-scatter", shards="parameters")
    owner = dict(zip(program.graph.names, program.replica.tolist(), strict=True))
    homes = [owner[name] for name in owner if name.startswith(("update0", "update1", "m0", "m1"))]
    assert len(set(homes)) == 1
    assert owner.keys() >= {"update2@r1"} or homes[0] == 1


def test_what_reads_all_gradients_gets_them_whole():
    """The norm of all gradients is made by every replica: their bucket is not scattered."""
    graph = linears((4, 6), 8)
    dw, update = graph.index("dw0"), graph.index("update0")
    norm = [{"name": "norm", "kind": "aten.norm", "phase": "o", "output_bytes": 4}]
    edges = [(dw, graph.n_ops, dw, 96), (graph.n_ops, update, graph.n_ops, 4)]
    clipped = with_rows(graph, norm, edges)
    for how in WAYS[1:]:
        program = replicate(clipped, 2, **how)
        assert [label.partition("/")[0] for label in members(program)] == [
            "all_reduce",
            "all_gather",
        ]
        assert any("1 op of the optimizer belong" in note for note in program.notes)
        assert {f"norm@r{r}" for r in range(2)} <= set(program.graph.names)


def test_an_optimizer_without_colocation_is_not_sharded_and_says_so():
    graph = linears((4, 6), 8)
    loose = graph.with_columns({"colocation": [""] * graph.n_ops}, {})
    program = replicate(loose, 2, aggregation="reduce-scatter")
    assert "the optimizer is not sharded: no colocation set" in program.notes[0]
    assert program.graph.digest == replicate(loose, 2).graph.digest


# -- batch norms -----------------------------------------------------------------------------


def test_running_statistics_are_each_replicas_own():
    program = replicate(normed(), 2)
    made = program.graph
    assert list(members(program)) == ["all_reduce/gradients0"]
    for r in range(2):
        into = {made.names[s] for s in made.src[made.dst == made.index(f"running@r{r}")]}
        assert into == {f"norm@r{r}", f"mean@r{r}"}


def test_synchronised_batch_norms_sum_two_numbers_per_channel():
    local, program = (replicate(normed(), 2, batch_norm=how) for how in ("local", "synchronised"))
    made, sums = program.graph, members(program)
    assert list(sums) == [
        "all_reduce/statistics0", "all_reduce/statistics1", "all_reduce/gradients0",
    ]  # fmt: skip
    for label, op in (("all_reduce/statistics0", "norm"), ("all_reduce/statistics1", "back")):
        for r, member in enumerate(sums[label]):
            assert made.output_bytes[member] == 2 * 6 * 4
            sent = made.src == member
            assert [made.names[d] for d in made.dst[sent]] == [f"{op}@r{r}"]
            assert made.bytes[sent].tolist() == [2 * 6 * 4]
            before = {made.names[s] for s in made.src[made.dst == member]}
            assert before <= {f"{name}@r{r}" for name in ("x", "loss", "norm")}
            assert not made.bytes[made.dst == member].any()
            assert program.label(member) == f"the collective for {op!r}, replica {r}"
    cluster = v100_mesh(2)
    on = [program.replica.astype(np.int32), local.replica.astype(np.int32)]
    slower, quicker = (
        lm.simulate(one.graph, cluster, devices)
        for one, devices in zip((program, local), on, strict=True)
    )
    assert slower.makespan > quicker.makespan


def test_batch_norms_that_cannot_be_synchronised():
    graph = normed()
    shapeless = graph.with_columns({"output": [""] * graph.n_ops}, {})
    with pytest.raises(InputError, match="'norm': its output, '', does not say how many channels"):
        replicate(shapeless, 2, batch_norm="synchronised")
    program = replicate(linears((4, 4), 8), 2, batch_norm="synchronised")
    assert program.notes == (
        "no batch norm to synchronise: no op in training is of a kind known as one",
    )
    inference = graph.with_columns({"phase": ["f"] * graph.n_ops}, {})
    assert not any(
        "statistics" in c
        for c in replicate(inference, 2, batch_norm="synchronised").graph.collectives
    )


# -- inference -------------------------------------------------------------------------------


@settings(max_examples=20)
@given(st.lists(st.integers(1, 40), min_size=2, max_size=5), st.integers(2, 4))
def test_inference_sends_nothing(widths, k):
    graph = linears(widths, 4 * k, train=False)
    plan = lm.place(graph, v100_mesh(k), "data-parallel")
    assert not any(plan.program.graph.collectives)
    assert (plan.schedule.bytes_moved, len(plan.schedule.transfers)) == (0, 0)
    assert plan.notes == ()


def test_many_small_updates_are_shared_out_as_evenly_as_their_launches():
    """A large parameter weighs as much as all small ones, but its update is launched once."""
    graph = linears([1024, 1024] + [4] * 33, 8)
    program = replicate(graph, 2, aggregation="reduce-scatter", shards="parameters")
    homes = {
        name.partition("@")[0]: r
        for name, r in zip(program.graph.names, program.replica.tolist(), strict=True)
        if name.startswith("update")
    }
    assert homes["update0"] == 0
    assert list(homes.values()).count(0) == 15
    assert len(homes) == 34
