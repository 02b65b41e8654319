"""Runtimes: which ops are one kernel, what it reads and writes, and what that does to plans."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import loadmaster as lm
from loadmaster.costs.runtimes import compiled, eager
from loadmaster.costs.runtimes.one_kernel import ALONE, as_kernels
from loadmaster.costs.runtimes.priced import EAGER_OP, at_runtime, on_hosts
from loadmaster.model.graph import FUSED_UPDATES
from loadmaster.plans.summary import document

KINDS = ("aten.relu.default", "aten.add.Tensor", "aten.sum.default", "aten.mm.default")


@st.composite
def drawn_graphs(draw):
    """Ops of one shape that read up to three of those before them, some of them products."""
    n = draw(st.integers(2, 14))
    kinds = ["input", *draw(st.lists(st.sampled_from(KINDS), min_size=n - 1, max_size=n - 1))]
    src, dst = [], []
    for op in range(1, n):
        reads = draw(st.sets(st.integers(0, op - 1), min_size=1, max_size=3))
        src += sorted(reads)
        dst += [op] * len(reads)
    reads = np.bincount(dst, minlength=n)
    ops = {
        "name": [f"op{i}" for i in range(n)],
        "kind": kinds,
        "output": ["f32[2,8]"] * n,
        "flops": [256 * (kind == KINDS[3]) for kind in kinds],
        "output_bytes": [64] * n,
        "bytes_accessed": [0, *(64 * (int(k) + 1) for k in reads[1:])],
    }
    return lm.OpGraph(ops, {"src": src, "dst": dst, "bytes": [64] * len(src)})


@given(graph=drawn_graphs())
@settings(max_examples=100)
def test_kernels_read_and_write_what_crosses_their_edge(graph):
    kernel = compiled.kernels_of(graph)
    fused = as_kernels(graph, kernel)
    edges = list(zip(graph.src.tolist(), graph.dst.tolist(), strict=True))
    for one in set(kernel.tolist()) - {ALONE}:
        inside = set(np.flatnonzero(kernel == one).tolist())
        read = {a for a, b in edges if b in inside and a not in inside}
        readers = {a: {b for c, b in edges if c == a} for a in inside}
        written = {a for a in inside if not readers[a] or readers[a] - inside}
        accessed = int(fused.bytes_accessed[sorted(inside)].sum())
        assert accessed == 64 * (len(read) + len(written))
        assert int(fused.launches[sorted(inside)].sum()) == 1
    alone = kernel == ALONE
    assert (fused.bytes_accessed[alone] == graph.bytes_accessed[alone]).all()
    assert all(graph.kinds[op] in ("input", KINDS[3]) for op in np.flatnonzero(alone))


@given(graph=drawn_graphs())
@settings(max_examples=100)
def test_no_kernel_waits_for_itself(graph):
    kernel = compiled.kernels_of(graph)
    place = np.where(kernel == ALONE, np.arange(graph.n_ops) + graph.n_ops, kernel)
    waits = {int(k): set() for k in place}
    for a, b in zip(place[graph.src].tolist(), place[graph.dst].tolist(), strict=True):
        if a != b:
            waits[b].add(a)
    while ready := [k for k, before in waits.items() if not before]:
        for k in ready:
            del waits[k]
        for before in waits.values():
            before.difference_update(ready)
    assert not waits


def test_a_dropout_is_one_kernel_in_eager_mode():
    kinds = ["input", "aten.bernoulli_.float", "aten.div_.Scalar", "aten.mul.Tensor"]
    ops = {
        "name": ["x", "draw", "scale", "y"],
        "kind": kinds,
        "phase": ["f"] * 4,
        "bytes_accessed": [0, 4, 8, 12],
        "output_bytes": [4, 4, 0, 4],
    }
    graph = lm.OpGraph(ops, {"src": [0, 1, 2], "dst": [3, 2, 3], "bytes": [4, 4, 4]})
    dropout = at_runtime(graph, "eager")
    assert dropout.launches[1:].sum() == 1
    # It reads x and writes y: the scale's mask is nobody's.
    assert dropout.bytes_accessed.sum() == 8


def test_an_optimizer_updates_many_tensors_by_a_kernel():
    n = 2 * eager.FOREACH + 1
    ops = {"name": [f"u{i}" for i in range(n)], "kind": ["aten.add_.Tensor"] * n}
    graph = lm.OpGraph({**ops, "phase": ["o"] * n}, {"src": [], "dst": []})
    assert eager.foreach(graph).launches.sum() == 3


def test_hosts_launch_ahead_and_graphs_cost_nothing():
    cluster = lm.Cluster.preset("8xH100-NVLink")
    assert on_hosts(cluster, "eager").dispatch.launch == EAGER_OP
    assert on_hosts(cluster, "compiled").dispatch.launch == cluster.types[0].launch
    assert not on_hosts(cluster, "eager").dispatch.one_host
    free = on_hosts(cluster, "graphs")
    assert free.dispatch is None
    assert not any(t.launch for t in free.types)


@pytest.mark.parametrize("name", ["example:lenet", "example:gpt3-330m"])
def test_fewer_launches_and_fewer_bytes_take_no_longer(name):
    one = lm.Cluster.preset("8xH100-NVLink").subset([0])
    seconds = [
        lm.place(name, one, "single", runtime=runtime).makespan
        for runtime in ("eager", "compiled", "graphs")
    ]
    assert seconds == sorted(seconds, reverse=True)
    assert seconds[1] < lm.place(name, one, "single").makespan


@pytest.mark.parametrize("costs", [None, "roofline"])
def test_what_a_plan_says_that_a_runtime_gains_is_what_it_gains(costs, tmp_path):
    options = {"target": "fsdp", "replicas": 8, "reshard": False, "recompute": False}
    options["costs"] = costs
    plan = lm.place("example:gpt3-330m", "8xH100-NVLink", **options)
    said = document(plan)["runtime_gains"]
    other = lm.place("example:gpt3-330m", "8xH100-NVLink", runtime="compiled", **options)
    assert said["compiled"] == pytest.approx(plan.makespan / other.makespan, rel=0.03)
    assert f"--runtime compiled: {said['compiled']:.2f} x" in str(plan.summary())
    other.save(tmp_path / "plan.json")
    loaded = lm.Plan.load(tmp_path / "plan.json")
    assert (loaded.runtime, plan.runtime) == ("compiled", None)
    assert loaded.makespan == other.makespan


def test_a_system_refuses_a_runtime_that_it_has_not():
    with pytest.raises(lm.InputError, match=r"'ddp' has eager or compiled: leave out .*'graphs'"):
        lm.place("example:lenet", "8xH100-NVLink", target="ddp", runtime="graphs")
    with pytest.raises(lm.InputError, match="runtime"):
        lm.place("example:lenet", "8xH100-NVLink", runtime="fast")


@given(sizes=st.lists(st.integers(1, 64), min_size=1, max_size=70))
@settings(max_examples=20, deadline=None)
def test_a_fused_update_reads_and_writes_each_tensor_once(sizes):
    # A parameter, its gradient and its momentum; the update decays the one and moves the other.
    names, kinds, outputs, touched, src, dst = [], [], [], [], [], []
    for i, size in enumerate(sizes):
        p, g, m, decayed, moved = (5 * i + j for j in range(5))
        names += [f"{word}{i}" for word in ("p", "g", "m", "decayed", "moved")]
        kinds += ["parameter", "input", "buffer", "aten.lerp_.Scalar", "aten.add_.Tensor"]
        outputs += [f"f32[{size}]"] * 5
        touched += [0, 0, 0, 12 * size, 12 * size]
        src, dst = [*src, g, m, p, decayed], [*dst, decayed, decayed, moved, moved]
    columns = {"name": names, "kind": kinds, "output": outputs, "bytes_accessed": touched}
    columns |= {"phase": ["", "", "", "o", "o"] * len(sizes)}
    columns |= {"output_bytes": [4 * size for size in sizes for _ in range(5)]}
    edges = {"src": src, "dst": dst, "bytes": [4 * sizes[op // 5] for op in src]}
    plain, fused = (lm.OpGraph(columns, edges, meta={FUSED_UPDATES: f}) for f in (False, True))
    before, after = at_runtime(plain, "eager"), at_runtime(fused, "eager")
    assert before.bytes_accessed.sum() == 24 * sum(sizes)
    # The momentum that the update reads is in registers, and what it leaves is written.
    assert after.bytes_accessed.sum() < before.bytes_accessed.sum()
    kernels = -(-len(sizes) // eager.FOREACH)
    assert before.launches[before.updates].sum() == 2 * kernels
    assert after.launches[after.updates].sum() == kernels
