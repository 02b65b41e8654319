"""Fit: placements that prove it, footprints that add up, and remedies that help and are least."""

from __future__ import annotations

import json
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import clusters, graph_of, ms_mesh, op_graphs, v100_mesh
from trained import linears

import loadmaster as lm
from loadmaster.base.errors import InputError
from loadmaster.cli import main
from loadmaster.model.batch import scaled_batch
from loadmaster.plans.footprint import footprints, largest_op
from loadmaster.tasks.fit import METHODS

#: Four ops that keep 60 bytes each.
FOUR = graph_of({x: 1 for x in "abcd"}, param_bytes=[60] * 4)


def some_method_fits(graph: lm.OpGraph, cluster: lm.Cluster, **asked) -> bool:
    for method in METHODS:
        try:
            if lm.place(graph, cluster, method, **asked).fits:
                return True
        except lm.InfeasibleError:
            continue
    return False


# -- fits, and on how few -----------------------------------------------------------------------


@pytest.mark.parametrize(("memory", "fewest"), [(240, 1), (239, 2), (120, 2), (119, 4), (60, 4)])
def test_the_fewest_devices_by_hand(memory, fewest):
    found = lm.fit(FOUR, ms_mesh(4, memory=memory))
    assert found.fits
    assert found.fewest == fewest
    assert found.at_least == -(-240 // memory)
    assert found.remedies == ()
    assert len(np.unique(found.plan.devices)) <= fewest
    assert sum(f.parameters for f in found.footprints) == 240


def test_the_largest_devices_count_first_and_pins_before_them():
    devices = [lm.Device("s", "t", 60), lm.Device("m", "t", 120), lm.Device("l", "t", 240)]
    links = [lm.Link(a.name, b.name, 1e3) for a in devices for b in devices if a != b]
    cluster = lm.Cluster(devices, links)
    found = lm.fit(FOUR, cluster)
    assert found.fewest == 1
    assert set(found.plan.devices.tolist()) == {2}
    pinned = lm.fit(FOUR, cluster, constraints=lm.Constraints(pin={"a": "s"}))
    assert pinned.fewest == 2
    assert pinned.plan.device("a") == "s"
    assert {pinned.plan.device(x) for x in "bcd"} == {"l"}
    kept = lm.fit(FOUR, cluster, constraints=lm.Constraints(reserve={"l": 1}))
    assert kept.fewest == 2
    assert [f.capacity for f in kept.footprints] == [60, 120, 239]


@given(data=st.data())
@settings(max_examples=10)
def test_what_fits_is_proved_and_remedies_help(data):
    graph = data.draw(op_graphs())
    cluster = data.draw(clusters(max_devices=3, memory=data.draw(st.sampled_from([6, 12, 20, 40]))))
    found = lm.fit(graph, cluster)
    assert found.plan.fits == found.fits
    for f, peak in zip(found.footprints, found.plan.memory.peak.tolist(), strict=True):
        assert f.used == peak
    if found.fits:
        assert found.at_least <= found.fewest <= cluster.n_devices
        used = np.unique(found.plan.assignment.devices)
        assert len(used) <= found.fewest
        return
    assert not some_method_fits(graph, cluster)
    memory, devices, _ = found.remedies
    larger = cluster
    for d, size in enumerate(cluster.memory):
        larger = larger.with_memory(size + memory.amount, d)
    assert some_method_fits(graph, larger)
    if devices.amount is not None:
        more = cluster
        for _ in range(devices.amount):
            more = more.with_device(max(range(cluster.n_devices), key=lambda d: cluster.memory[d]))
        assert some_method_fits(graph, more)


# -- what would help, by hand ---------------------------------------------------------------------


def test_remedies_by_hand():
    found = lm.fit(FOUR, ms_mesh(2, memory=60))
    assert not found.fits
    assert found.at_least == 3  # one more than there are: what stays alone is too much
    memory, devices, batch = found.remedies
    assert (memory.amount, devices.amount, batch.amount) == (60, 2, None)
    assert "no placement that fits can be found" in str(found)
    assert "gpu0    60 B" in str(found)
    assert "60 B SHORT" in str(found)


def test_an_op_that_no_device_holds():
    graph = graph_of({"a": 1, "b": 1}, [("a", "b", 30)], output_bytes=[30, 20], workspace=[0, 60])
    assert largest_op(graph) == (1, 110)
    found = lm.fit(graph, ms_mesh(2, memory=100))
    assert not found.fits
    assert found.at_least == 3
    memory, devices, _ = found.remedies
    assert memory.amount == 10
    assert devices.amount is None
    assert "no number would do: 'b' alone needs 110 B (110 bytes) at once" in devices.text


def test_a_batch_that_fits():
    """Of 5 inputs' 100 bytes each and their outputs' 100: two batches of the five fit 400."""
    graph = lm.OpGraph(
        {
            "name": ["x", "w", "y"],
            "kind": ["input", "parameter", "mm"],
            "output_bytes": [500, 0, 500],
            "param_bytes": [0, 100, 0],
            "time": {"*": [0, 0, 1e-3]},
        },
        {"src": [0, 1], "dst": [2, 2], "bytes": [500, 100]},
        meta={"batch": 5},
    )
    found = lm.fit(graph, ms_mesh(1, memory=500))
    memory, devices, batch = found.remedies
    # 100 + 200 a sample: 2 samples take 500 bytes, all 5 take 1100.
    assert (memory.amount, devices.amount, batch.amount) == (600, None, 2)
    assert batch.text.startswith("batch: 2 instead of 5, if inputs, activations")
    nameless = graph.with_columns({})
    nameless.meta.clear()
    share = lm.fit(nameless, ms_mesh(1, memory=500)).remedies[2].amount
    assert share == 25 / 64
    assert 200 * 5 * share + 100 <= 500 < 200 * 5 * (share + 1 / 64) + 100


def test_a_smaller_batch_leaves_parameters_and_their_gradients(lenet):
    half = scaled_batch(lenet, Fraction(1, 2))
    at = lenet.index
    for name in ("convolution", "relu", "input0"):
        assert int(half.output_bytes[at(name)]) * 2 == int(lenet.output_bytes[at(name)])
    assert half.param_bytes.tolist() == lenet.param_bytes.tolist()
    updates = [i for i, p in enumerate(lenet.phases) if p == "o" and not lenet.view[i]]
    assert half.output_bytes[updates].tolist() == lenet.output_bytes[updates].tolist()
    # The gradient of a weight, which the optimizer reads, is as large as before.
    grown = np.flatnonzero(half.bytes != lenet.bytes)
    read_by_optimizer = np.isin(lenet.dst, updates)
    assert not read_by_optimizer[grown].any()
    assert (half.bytes <= lenet.bytes).all()
    whole = scaled_batch(lenet, Fraction(1))
    assert whole.digest == lenet.digest
    a, b, c = (lm.place(g, v100_mesh(1), "single").memory.peak[0] for g in (half, lenet, whole))
    assert a < b == c


# -- footprints ----------------------------------------------------------------------------------


def test_a_footprint_by_hand():
    """f reads w (70) and x (40), makes y (50) with 7 of workspace; b makes w's gradient (70)."""
    graph = lm.OpGraph(
        {
            "name": ["w", "m", "x", "f", "b", "o"],
            "kind": ["parameter", "buffer", "input", "mm", "mm", "sgd"],
            "module": ["l", "optim.l", "", "l", "l", "l"],
            "phase": ["f", "f", "f", "f", "b", "o"],
            "output_bytes": [70, 70, 40, 50, 70, 0],
            "param_bytes": [70, 70, 0, 0, 0, 0],
            "workspace": [0, 0, 0, 7, 9, 0],
            "flops": [0, 0, 0, 5, 5, 1],
            "alias_of": [-1, -1, -1, -1, -1, 0],
            "time": {"*": [0, 0, 0, 1e-3, 1e-3, 1e-3]},
        },
        {
            "src": [0, 2, 3, 2, 4, 1, 0],
            "dst": [3, 3, 4, 4, 5, 5, 5],
            "bytes": [70, 40, 50, 40, 70, 70, 70],
        },
    )
    [f] = footprints(lm.place(graph, ms_mesh(1), "single"))
    # While b runs: w, x, y, the slot m, the gradient, b's workspace.
    assert (f.parameters, f.optimizer, f.activations, f.workspace) == (70, 70 + 70, 40 + 50, 9)
    assert f.used == 309
    plan = lm.place(
        graph, ms_mesh(2), "heft", constraints=lm.Constraints(pin={"f": 0, "b": 1, "o": 1})
    )
    first, second = footprints(plan)
    assert second.optimizer == 70 + 70
    for f, peak in zip((first, second), plan.memory.peak.tolist(), strict=True):
        assert f.used == peak
    # w is at home where it is updated, and a copy of it, with x, where f reads it.
    at_home = plan.device("w")
    assert at_home == "gpu1"
    assert first.parameters == 70
    assert second.parameters == 70


@given(data=st.data())
@settings(max_examples=30)
def test_footprints_add_up_to_the_peaks(data):
    graph, cluster = data.draw(op_graphs()), data.draw(clusters())
    plan = lm.place(graph, cluster, "random", seed=data.draw(st.integers(0, 9)))
    op, alone = largest_op(graph)
    assert alone <= plan.memory.peak[plan.devices[op]]
    for f, peak in zip(footprints(plan), plan.memory.peak.tolist(), strict=True):
        assert f.used == peak
        assert min(f.parameters, f.optimizer, f.activations, f.workspace) >= 0


@pytest.mark.parametrize("name", ["lenet", "alexnet", "mixtral"])
def test_footprints_of_examples(name):
    graph = lm.read(f"example:{name}")
    plan = lm.place(graph, v100_mesh(4), "m-topo")
    for f, peak in zip(footprints(plan), plan.memory.peak.tolist(), strict=True):
        assert f.used == peak
    everything = sum(f.parameters for f in footprints(plan))
    weights = [i for i, kind in enumerate(graph.kinds) if kind == "parameter"]
    own = [i for i in weights if not graph.modules[i].startswith("optim")]
    assert everything >= int(graph.param_bytes[own].sum())


# -- the command line ----------------------------------------------------------------------------


def test_fit_on_the_command_line(tmp_path, capsys):
    assert main(["fit", "example:lenet", "--cluster", "4xV100-PCIe", "--reserve", "1GiB"]) == 0
    assert "fits 1 of 4 devices; no fewer can hold it" in capsys.readouterr().out
    cluster = tmp_path / "small.toml"
    v100_mesh(2, "8MiB").write(cluster)
    assert main(["fit", "example:lenet", "--cluster", str(cluster), "--json"]) == 3
    output = capsys.readouterr()
    seen = json.loads(output.out)
    assert seen["fits"] is False
    asked = [remedy["what"] for remedy in seen["remedies"]]
    assert asked == ["replicas", "memory", "devices", "batch"]
    assert 0 < seen["remedies"][3]["amount"] < 256
    assert "no placement that fits was found" in output.err


def test_bad_input_is_refused_before_anything_is_tried(lenet):
    with pytest.raises(InputError, match="no op or module matches 'nothing'"):
        lm.fit(lenet, v100_mesh(2), constraints=lm.Constraints(pin={"nothing": 0}))


def test_what_replicas_lack_is_among_the_remedies():
    graph, cluster = lm.read("example:alexnet"), lm.Cluster.preset("2xV100-PCIe")
    little = cluster.with_memory("600MiB")
    found = lm.fit(graph, little)
    replicas = found.remedies[0]
    assert not found.fits
    assert replicas.what == "replicas"
    assert "optimizer sharded flat" in replicas.text
    enough = cluster.with_memory(600 * 2**20 + replicas.amount)
    sharded = {"aggregation": "reduce-scatter", "shards": "flat"}
    assert lm.place(graph, enough, "data-parallel", **sharded).fits


def test_a_refusal_says_what_replicas_and_shards_lack():
    graph, cluster = linears([64] * 4, 8), lm.Cluster.preset("2xV100-PCIe").with_memory("32KiB")
    with pytest.raises(lm.InfeasibleError, match="Replicas and shards do not fit either: "):
        lm.place(graph, cluster)


def test_replicas_of_one_sample_are_no_remedy():
    ops = {"name": ["x", "a"], "kind": ["input", "mm"], "output": ["f32[1,4]", "f32[1,4]"]}
    sizes = {"output_bytes": [16, 2**30], "flops": [0, 8]}
    graph = lm.OpGraph(ops | sizes, {"src": [0], "dst": [1], "bytes": [16]}, meta={"batch": 1})
    cluster = lm.Cluster.preset("2xV100-NVLink").with_memory("1MiB")
    assert lm.fit(graph, cluster).remedies[0].what == "memory"


# -- for a target --------------------------------------------------------------------------------


def test_a_target_fits_the_fewest_devices_on_which_its_plan_does():
    graph, cluster = lm.read("example:alexnet"), lm.Cluster.preset("4xV100-PCIe")
    peak = int(lm.place(graph, cluster.subset(range(2)), target="fsdp").memory.peak.max())
    found = lm.fit(graph, cluster.with_memory(peak), target="fsdp")
    # One device shards nothing: no FSDP.
    assert (found.fewest, found.plan.target) == (2, "fsdp")
    assert found.plan.fits
    assert len(set(found.plan.running_devices.tolist())) == 2
    assert "planned by target fsdp" in str(found)
    assert "per step" in str(found)
    document = found.to_document()
    assert (document["target"], document["makespan"]) == ("fsdp", found.plan.makespan)


def test_remedies_of_a_target_make_its_plan_fit():
    graph, cluster = lm.read("example:lenet"), lm.Cluster.preset("2xV100-NVLink")
    peak = int(lm.place(graph, cluster, target="ddp").memory.peak.max())
    little = cluster.with_memory(peak // 2)
    found = lm.fit(graph, little, target="ddp")
    assert not found.fits
    assert "no placement for target ddp that fits was found" in str(found)
    memory = next(one for one in found.remedies if one.what == "memory")
    enough = peak // 2 + memory.amount
    assert lm.place(graph, cluster.with_memory(enough), target="ddp").fits
    with pytest.raises(lm.InfeasibleError):
        lm.place(graph, cluster.with_memory(int(enough * 0.95)), target="ddp")
    assert "replicas" not in [one.what for one in found.remedies]


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"target": "dpp"}, "did you mean 'ddp'"),
        ({"target": "vllm"}, "takes the inference of a transformer"),
        ({"target": "ddp", "tp": 2}, "has no option 'tp'"),
        ({"tp": 2}, "name the target too"),
    ],
)
def test_what_a_target_does_not_take_is_one_refusal(asked, why):
    with pytest.raises(InputError, match=why):
        lm.fit("example:lenet", "2xV100-NVLink", **asked)


def test_a_target_on_the_command_line(capsys):
    words = ["fit", "example:lenet", "--cluster", "2xV100-NVLink", "--target", "ddp"]
    assert main([*words, "--option", "bucket_mb=1"]) == 0
    assert "planned by target ddp" in capsys.readouterr().out
