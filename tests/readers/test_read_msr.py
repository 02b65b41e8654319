"""The msr-fiddle benchmark: a file by hand, its units, its machine, bad files."""

from __future__ import annotations

import json
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

import loadmaster as lm
from loadmaster.base.errors import InputError, LoadmasterError
from loadmaster.cli import main
from loadmaster.readers.planners import msr

UNITS = {"time_unit": "ms", "size_unit": "B"}


def node(key, cpu, fpga, size=0.0, **more):
    return {
        **{"id": key, "name": f"n{key}", "supportedOnFpga": True, "cpuLatency": cpu},
        **{"fpgaLatency": fpga, "isBackwardNode": 0, "size": size, **more},
    }


def edge(src, dst, cost, **more):
    return {"sourceId": src, "destId": dst, "cost": cost, **more}


def benchmark():
    """Four nodes whose ids are not their places; 1 MB takes 0.5 ms, which is 2 GB/s."""
    return {
        "maxSizePerFPGA": 1e9,
        "maxFPGAs": 2,
        "maxCPUs": 1,
        "nodes": [
            node(7, 0, 0, 4e6, colorClass=3),
            node(2, 30.0, 3.0, 1e6, colorClass=3),
            node(5, 20, 2),
            node(4, 10, 99, supportedOnFpga=0, isBackwardNode=True),
        ],
        "edges": [
            edge(7, 2, 2.0, size=4e6),
            edge(2, 5, 0.5, size=1e6),
            edge(2, 4, 0.5, size=3e6),  # of one output: the size is not to be trusted
            edge(5, 4, 0.25, size=5e5),
        ],
    }


def written(path, document):
    path.write_text(json.dumps(document))
    return path


@pytest.fixture
def path(tmp_path):
    return written(tmp_path / "model.json", benchmark())


def test_by_hand(path):
    graph = lm.read(path, **UNITS)
    assert graph.names == ["n7", "n2", "n5", "n4"]
    assert graph.time["cpu"].tolist() == pytest.approx([0, 0.03, 0.02, 0.01])
    # What no accelerator can run is held to the core, and never free on paper.
    assert graph.time["fpga"].tolist() == pytest.approx([0, 0.003, 0.002, 0.01])
    assert graph.device_types == ["", "", "", "cpu"]
    assert graph.colocation == ["colour 3", "colour 3", "", ""]
    assert graph.phases == ["f", "f", "f", "b"]
    assert graph.param_bytes.tolist() == [4_000_000, 1_000_000, 0, 0]
    assert graph.src.tolist() == [0, 1, 1, 2]
    assert graph.dst.tolist() == [1, 2, 3, 3]
    assert graph.bytes.tolist() == [4_000_000, 1_000_000, 1_000_000, 500_000]
    assert graph.tensor.tolist() == [0, 1, 1, 2]
    assert graph.meta["mode"] == "train"
    assert graph.meta["bandwidth"] == pytest.approx(2e9)


def test_units_are_the_callers(path):
    graph = lm.read(path, time_unit="us", size_unit="KiB", cost_unit="s")
    assert graph.time["cpu"].tolist() == pytest.approx([0, 30e-6, 20e-6, 10e-6])
    assert graph.param_bytes.tolist() == [4_000_000 * 1024, 1_000_000 * 1024, 0, 0]
    assert graph.meta["bandwidth"] == pytest.approx(2e6 * 1024)
    with pytest.raises(InputError, match=r"does not say its units: give time_unit= .* size_unit="):
        lm.read(path)
    with pytest.raises(InputError, match="does not say its units"):
        lm.read(path, time_unit="ms")
    with pytest.raises(InputError, match="time_unit is '1fortnight'"):
        lm.read(path, time_unit="fortnight", size_unit="B")
    with pytest.raises(InputError, match="size_unit is '1stone'"):
        lm.read(path, time_unit="ms", size_unit="stone")


def test_the_machine_takes_the_time_that_edges_say(path):
    graph, cluster = lm.read(path, **UNITS), msr.cluster(path, **UNITS)
    assert [d.name for d in cluster.devices] == ["fpga0", "fpga1", "cpu0"]
    assert [t.name for t in cluster.types] == ["fpga", "cpu"]
    assert cluster.memory[0] == 1_000_000_000
    # n7 and n2 on an accelerator, n5 on the other, n4 on the core.
    seen = lm.simulate(graph, cluster, [0, 0, 1, 2])
    start = dict(zip(graph.names, seen.start.tolist(), strict=True))
    finish = dict(zip(graph.names, seen.finish.tolist(), strict=True))
    # To the other accelerator 0.5 ms out and 0.5 in, behind what goes to the core, or not.
    waited = (start["n5"] - finish["n2"]) * 1e3
    assert waited == pytest.approx(1.0) or waited == pytest.approx(1.5)
    assert start["n4"] == pytest.approx(finish["n5"] + 0.25e-3)
    plan = lm.place(graph, cluster, "heft")
    assert plan.device("n4") == "cpu0"
    assert plan.device("n7") == plan.device("n2")


def test_costs_without_sizes(tmp_path):
    document = benchmark()
    for row in document["edges"]:
        del row["size"]
    path = written(tmp_path / "m.json", document)
    graph, cluster = lm.read(path, **UNITS), msr.cluster(path, **UNITS)
    assert graph.bytes[0] / next(iter(cluster.links)).bandwidth == pytest.approx(2e-3)


def test_names_that_are_not_unique_get_their_ids(tmp_path):
    document = benchmark()
    document["nodes"][0]["name"] = document["nodes"][1]["name"] = "matmul"
    del document["nodes"][2]["name"]
    graph = lm.read(written(tmp_path / "m.json", document), **UNITS)
    assert graph.names == ["matmul#7", "matmul#2", "node5#5", "n4#4"]


def test_the_command_line_asks_for_units(path, capsys):
    assert main(["info", str(path)]) == 2
    assert "does not say its units" in capsys.readouterr().err
    words = ["--time-unit", "ms", "--size-unit", "B", "--json"]
    assert main(["info", str(path), *words]) == 0
    assert json.loads(capsys.readouterr().out)["parameter_bytes"] == 5_000_000


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d["nodes"][1].update(id=7), "two nodes have the id 7"),
        (lambda d: d["nodes"][1].update(id="2"), "node 1 has the id '2': wants an integer"),
        (lambda d: d["nodes"][1].update(cpuLatency=-1), "node 2: cpuLatency is -1"),
        (lambda d: d["nodes"][1].pop("fpgaLatency"), "node 2: fpgaLatency is None"),
        (lambda d: d["nodes"][1].update(size="big"), "node 2: size is 'big'"),
        (lambda d: d["nodes"][1].update(supportedOnFpga="yes"), "supportedOnFpga 'yes'"),
        (lambda d: d["edges"][1].update(destId=9), "edge 1 joins 2 and 9: no such node"),
        (lambda d: d["edges"][1].pop("cost"), "edge 1: cost is None"),
        (lambda d: d["edges"].append(edge(4, 7, 1)), "cycle"),
        (lambda d: d.update(nodes={}), "nodes is no list of objects"),
        (lambda d: d.update(edges=[3]), "edges is no list of objects"),
    ],
)
def test_bad_files(tmp_path, change, message):
    document = benchmark()
    change(document)
    with pytest.raises(InputError, match=message):
        lm.read(written(tmp_path / "m.json", document), **UNITS)


@pytest.mark.parametrize(("key", "value"), [("maxFPGAs", -1), ("maxCPUs", 1e9), ("maxCPUs", None)])
def test_bad_machines(tmp_path, key, value):
    path = written(tmp_path / "m.json", {**benchmark(), key: value})
    with pytest.raises(InputError, match=f"{key} is"):
        msr.cluster(path, **UNITS)


anything = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4)


@given(st.data(), anything)
def test_any_value_anywhere_is_read_or_refused(tmp_path_factory, data, value):
    document = benchmark()
    where = data.draw(st.sampled_from([document, *document["nodes"], *document["edges"]]))
    where[data.draw(st.sampled_from(sorted(where)))] = value
    path = written(tmp_path_factory.mktemp("m") / "m.json", document)
    for run in (lm.read, msr.cluster):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                run(path, **UNITS)
        except LoadmasterError:
            pass
