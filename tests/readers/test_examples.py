"""Real graphs: the packaged ones, and all those of the project's data where they are at hand."""

from __future__ import annotations

import numpy as np
import pytest
from folders import DATA, traced_graphs
from strategies import tried, v100_mesh
from traced import every_traced_graph

import loadmaster as lm
from loadmaster.model.arguments import tensors
from loadmaster.model.graph import PLACEHOLDERS
from loadmaster.readers.examples import EXAMPLES, load

HETEROGENEOUS = sorted((DATA / "heterogeneous").glob("*.json.gz"))

#: Ops, views and placeholders included.
SIZES = {
    "alexnet": 199,
    "bert-large": 8469,
    "gpt3-330m": 6372,
    "inception-v3": 3762,
    "lenet": 104,
    "mixtral": 8179,
    "rnnlm": 4241,
    "vgg19": 416,
}


def test_the_packaged_graphs():
    for name, size in SIZES.items():
        assert lm.read(f"example:{name}").n_ops == size
    assert set(EXAMPLES) == {*SIZES, "googlenet"}


def test_examples_are_whole(any_example):
    assert any_example.name
    assert set(any_example.phases) <= {"f", "b", "o", ""}
    if not any_example.time:
        weights = [i for i, k in enumerate(any_example.kinds) if k in PLACEHOLDERS]
        assert any_example.param_bytes[weights].sum() == any_example.param_bytes.sum() > 0


def test_calls_of_the_examples_take_what_their_edges_say(any_example):
    if any_example.name == "moirai-googlenet":
        assert any_example.args is None
        return
    data = any_example.tensor >= 0
    read: list[list[int]] = [[] for _ in range(any_example.n_ops)]
    for src, dst in zip(
        any_example.src[data].tolist(), any_example.dst[data].tolist(), strict=True
    ):
        read[dst].append(src)
    for op, call in enumerate(any_example.args):
        assert (call is None) == any_example.placeholder[op]
        assert call is None or list(dict.fromkeys(tensors(call))) == read[op]


def test_an_example_may_be_given_as_an_option_less_name():
    assert lm.read("example:lenet").digest == load.__wrapped__("lenet").digest


@pytest.mark.large_data
def test_all_the_graphs_are_there():
    assert len(traced_graphs()) == 30


def test_the_heterogeneous_graphs_are_there():
    assert len(HETEROGENEOUS) == 2


@every_traced_graph
def test_traced_graphs_are_placed_on_v100s(path):
    graph = lm.read(path)
    sim = None
    for n_devices in (2, 4, 8):
        cluster = v100_mesh(n_devices)
        plan, error = tried(lambda cluster=cluster: lm.place(graph, cluster, "celeritas"))
        if error is not None:
            assert error.shortfall
            assert set(error.shortfall) <= {d.name for d in cluster.devices}
            continue
        sim = lm.simulate(graph, cluster, plan.devices, plan.priority)
        assert sim.fits
        assert (sim.memory.peak <= 32 * 2**30).all()
        assert sim.makespan == plan.makespan
        assert plan.lower_bound <= plan.makespan * (1 + 1e-9)
        assert (sim.finish <= sim.makespan).all()
        assert sim.device_busy.sum() == pytest.approx(plan.costs.time.sum())
        if plan.single is not None:
            # Whatever fits on one device is not made slower than leaving it there.
            assert plan.makespan <= plan.single * (1 + 1e-9)
    assert sim is not None, "on eight devices every graph fits"


@pytest.mark.parametrize("path", HETEROGENEOUS, ids=lambda p: p.name.split(".")[0])
def test_heterogeneous_graphs_are_placed_on_their_clusters(path):
    graph = lm.read(path)
    cluster = lm.Cluster.read(path.with_name(path.name.replace(".json.gz", ".cluster.toml")))
    for method in ("celeritas", "order-place", "m-topo", "round-robin", "single"):
        plan = lm.place(graph, cluster, method)
        sim = lm.simulate(graph, cluster, plan.devices, plan.priority)
        assert sim.fits
        assert sim.makespan == plan.makespan >= plan.lower_bound * (1 - 1e-9)
        assert plan.provenance == {"measured": pytest.approx(1.0)}
        op = plan.problem.reduced.op_of
        kinds = np.array(cluster.device_types)[plan.devices[op]]
        spent = plan.costs.time[op, kinds]
        assert sim.device_busy.sum() == pytest.approx(spent.sum())
