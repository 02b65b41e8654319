"""The memory of a step in PyTorch's order: all gradients are held until the optimizer's step."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import v100_mesh
from trained import linears

import loadmaster as lm
from loadmaster.plans.gradients_held import in_words, peaks_held


def in_order_of_torch(graph):
    """The same step, in which every update waits for every op of the backward pass."""
    rows = graph.to_document()
    phases = rows["ops"]["phase"]
    backward = [op for op, phase in enumerate(phases) if phase == "b"]
    updates = [op for op, phase in enumerate(phases) if phase == "o"]
    more = [(b, u) for u in updates for b in backward]
    edges = rows["edges"]
    for column, values in {
        "src": [b for b, _ in more],
        "dst": [u for _, u in more],
        "bytes": [0] * len(more),
        "tensor": [-1] * len(more),
    }.items():
        edges[column] = [*edges[column], *values]
    return lm.OpGraph.from_document(rows)


@given(st.lists(st.integers(1, 200), min_size=2, max_size=8), st.integers(1, 300))
@settings(max_examples=20, deadline=None)
def test_the_peak_is_that_of_a_step_whose_updates_wait(widths, batch):
    graph, cluster = linears(widths, batch), v100_mesh(1)
    plan = lm.place(graph, cluster, "single")
    held = peaks_held(plan)
    waiting = lm.simulate(in_order_of_torch(graph), cluster, plan.devices, plan.priority)
    assert held.tolist() == waiting.memory.peak.tolist()
    weights = sum(4 * a * b for a, b in pairwise(widths))
    assert held[0] >= 3 * weights, "weights, momenta and gradients"


@given(st.integers(2, 4), st.sampled_from(["heft", "round-robin", "m-topo", "data-parallel"]))
@settings(max_examples=12, deadline=None)
def test_a_step_on_several_devices_ends_in_this_order_too(devices, method):
    plan = lm.place(linears((64,) * 6, 24), v100_mesh(devices), method)
    held = peaks_held(plan)
    assert held.shape == plan.memory.peak.shape
    assert held.sum() >= 3 * 5 * 64 * 64 * 4


def test_the_verdict_on_memory_says_both_where_they_differ():
    """A step of which one order fits, and the other does not, says so; in place and in fit."""
    graph = linears((512,) * 13, 8)
    plan = lm.place(graph, v100_mesh(2), "single")
    own, held = int(plan.memory.peak[0]), int(peaks_held(plan)[0])
    assert own < 0.9 * held
    between, enough = (v100_mesh(2).with_memory(m) for m in ((own + held) // 2, 2 * held))
    short = lm.place(graph, between, "single")
    assert short.fits
    assert "DOES NOT FIT" in in_words(short)
    assert in_words(short) in str(short)
    assert "holds all gradients" in in_words(lm.place(graph, enough, "single"))
    assert "DOES NOT FIT" not in str(lm.place(graph, enough, "single"))
    said = str(lm.fit(graph, between))
    assert "fits 1 of 2 devices if each parameter is updated in the backward pass" in said
    assert in_words(lm.fit(graph, between).plan) in said
    assert "if each parameter" not in str(lm.fit(graph, enough))
    several = str(lm.place(graph, between, "m-topo"))
    assert "fits, but not with all gradients held until PyTorch's optimizer.step()" in several


def test_where_there_is_one_order_one_memory_is_said():
    graph = linears((64,) * 4, 8)
    assert peaks_held(lm.place(linears((64,) * 4, 8, train=False), v100_mesh(1), "single")) is None
    assert peaks_held(lm.place(graph, v100_mesh(2), target="ddp")) is None
    assert in_words(lm.place(graph, v100_mesh(2), target="ddp")) == ""
    alike = lm.place(in_order_of_torch(graph), v100_mesh(1), "single")
    assert np.array_equal(peaks_held(alike), alike.memory.peak)
    assert in_words(alike) == ""


@pytest.mark.parametrize("target", ["ddp", "fsdp", "deepspeed", "graph", "device-map"])
def test_no_step_that_is_told_is_below_the_bound_beside_it(target):
    """A target has other launches than the cluster: a bound speaks of those."""
    told = []
    graph, cluster = lm.read("example:lenet"), lm.Cluster.preset("8xH100-NVLink")
    plan = lm.place(graph, cluster, target=target, progress=lambda stage, best: told.append(best))
    seen = [best for best in told if best]
    assert seen
    assert all(best.lower_bound <= best * (1 + 1e-9) for best in seen)
    words = "no launches" if target == "graph" else "5 us a launch"
    assert f"{plan.bound_source}, {words}" in str(plan)
