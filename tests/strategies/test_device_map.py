"""Plans for a device map: whole modules, inputs first, and weights that are streamed."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stacks import stack

import loadmaster as lm
from loadmaster.base.errors import InfeasibleError, InputError
from loadmaster.base.units import format_bytes
from loadmaster.cli import main
from loadmaster.transforms.weight_streaming import stream_weights, streamed


def beside_a_cpu(memory, gpus=1, bandwidth=1e5):
    """A CPU with room for everything, GPUs of so many bytes, and links of 1 ms per 100 bytes."""
    names = ["cpu", *(f"gpu{i}" for i in range(gpus))]
    devices = [lm.Device("cpu", "EPYC", "1GiB")]
    devices += [lm.Device(name, "V100", memory) for name in names[1:]]
    return lm.Cluster(devices, [lm.Mesh(tuple(names), tuple(names), bandwidth)])


def test_streaming_is_what_it_computes_and_what_it_copies():
    graph = stack(4)
    computing = sum(graph.time["*"])
    whole = lm.place(graph, beside_a_cpu("1MiB"), target="device-map")
    assert whole.makespan == pytest.approx(computing)
    assert lm.writers.device_map(whole) == {"": 0}
    weights = int(graph.param_bytes.sum())
    plan = lm.place(graph, beside_a_cpu(weights), target="device-map")
    loads = int(streamed(plan.program).sum())
    assert plan.fits
    assert loads > 0
    # 100 bytes take 1 ms on the link, and nothing overlaps with that.
    assert plan.makespan == pytest.approx(computing + loads * 1e-3)
    found = lm.writers.device_map(plan)
    assert set(found.values()) == {0, "cpu"}
    on_cpu = [op for op in np.flatnonzero(streamed(plan.program)) if plan.device(int(op)) == "cpu"]
    assert len(on_cpu) == loads
    # What is stored, and what is being handed on.
    assert plan.memory.peak[0] == 100 * (loads + 1)


@given(memory=st.integers(500, 2000), gpus=st.integers(1, 3), tied=st.booleans())
def test_what_fits_exports_and_less_memory_is_never_faster(memory, gpus, tied):
    graph, steps = stack(5, tied=tied), []
    for size in (memory, 4 * memory):
        try:
            plan = lm.place(graph, beside_a_cpu(size, gpus), target="device-map")
        except InfeasibleError:
            steps.append(float("inf"))
            continue
        assert plan.fits
        assert plan.lower_bound <= plan.makespan * (1 + 1e-9)
        found = lm.writers.device_map(plan)
        assert tied is False or found.get("emb", found.get("")) == found.get("head", found.get(""))
        again = lm.Plan.from_document(json.loads(json.dumps(plan.to_document())))
        assert lm.writers.device_map(again) == found
        steps.append(plan.makespan)
    assert steps[1] <= steps[0]


def test_training_is_not_streamed():
    with pytest.raises(InfeasibleError, match="Weights are streamed in inference only"):
        lm.place(stack(4, train=True), beside_a_cpu(500), target="device-map")
    graph = stack(2, train=True)
    with pytest.raises(InputError, match="'grad' is of a training step"):
        stream_weights(graph, [graph.index("emb.weight")])


def test_a_block_that_joins_what_it_is_given_stays_whole():
    rows = stack(3).to_document()
    graph = lm.OpGraph.from_document(rows)
    # The residual connection goes around the whole block.
    for i in range(3):
        before = graph.index("embedding" if i == 0 else f"add{i - 1}")
        at = rows["edges"]["dst"].index(graph.index(f"add{i}"))
        rows["edges"]["src"][at] = before
    graph = lm.OpGraph.from_document(rows)
    cluster = lm.Cluster.mesh(3, memory=1000, bandwidth=1e10)
    found = lm.writers.device_map(lm.place(graph, cluster, target="device-map"))
    assert {key for key in found if key.startswith("layers.")} <= {f"layers.{i}" for i in range(3)}
    assert len(set(found.values())) > 1


def test_the_root_is_remembered():
    plan = lm.place(stack(4, prefix="m."), beside_a_cpu(500, gpus=3), target="device-map", root="m")
    assert plan.options == {"root": "m"}
    assert "layers.0" in lm.writers.device_map(plan)


def test_a_graph_without_modules_is_refused_by_kind():
    graph = lm.OpGraph({"name": ["a"], "time": {"*": [1.0]}}, {"src": [], "dst": []})
    with pytest.raises(InputError, match="takes models whose ops know their modules"):
        lm.place(graph, beside_a_cpu(500), target="device-map")


def test_what_if_plans_for_the_target_again():
    plan = lm.place(stack(4), beside_a_cpu(600), target="device-map")
    seen = lm.what_if(plan, memory={"gpu0": "1MiB"})
    today, larger = seen.prospects
    assert today.plan.target == larger.plan.target == "device-map"
    assert larger.plan.makespan < today.plan.makespan == pytest.approx(plan.makespan)
    assert lm.writers.device_map(larger.plan) == {"": 0}
    with pytest.raises(InputError, match="has no option 'effort'"):
        lm.what_if(plan, memory="1MiB", effort=0.1)


def test_place_and_export_without_a_word_more(tmp_path, capsys):
    (tmp_path / "model.json").write_text(json.dumps(stack(4).to_document()))
    (tmp_path / "laptop.toml").write_text(beside_a_cpu(600).to_toml())
    plan = str(tmp_path / "plan.json")
    asked = ["--cluster", str(tmp_path / "laptop.toml"), "--target", "device-map", "-o", plan]
    assert main(["place", str(tmp_path / "model.json"), *asked]) == 0
    out = capsys.readouterr().out
    assert "by target device-map" in out
    assert "copied to gpu0 whenever they run" in out
    assert main(["export", plan]) == 0
    assert "cpu" in json.loads(capsys.readouterr().out).values()


def brim(n, memory):
    """GPUs whose links take next to no time."""
    return lm.Cluster.mesh(n, memory=memory, bandwidth=1e12)


@given(layers=st.integers(4, 9), gpus=st.integers(2, 4), room=st.floats(1.02, 4.0))
def test_where_the_step_is_equal_no_device_is_filled_while_others_are_empty(layers, gpus, room):
    graph = stack(layers)
    alone = lm.place(graph, brim(1, "1MiB"), target="device-map").memory.peak[0]
    memory = int(alone * room / gpus) + 300
    plan = lm.place(graph, brim(gpus, memory), target="device-map")
    peak = plan.memory.peak.tolist()
    # A unit of a layer has 400 bytes of weights and tensors at most.
    assert max(peak) <= 0.9 * memory or max(peak) - min(peak) <= 900
    left = format_bytes(memory - max(peak))
    assert any("the fullest device" in note and left in note for note in plan.notes)
