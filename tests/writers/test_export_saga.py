"""SAGA: what it saved is read and written with the same numbers; schedules are the simulator's."""

from __future__ import annotations

import copy
import json
import math
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from folders import ROOT
from hypothesis import given, settings
from hypothesis import strategies as st

import loadmaster as lm
from loadmaster.base.errors import InputError
from loadmaster.cli import inputs, main
from loadmaster.cli.parser import parsed
from loadmaster.readers.planners import saga

#: A problem instance that SAGA 2.1 generated and saved: an out-tree of 15 tasks on 5 nodes.
SAVED = ROOT / "tests" / "readers" / "data" / "saga_out_tree.json"


def numbers(document):
    """Tasks, dependencies, nodes and links, in any order; SAGA writes null for infinity."""
    graph, network = document["task_graph"], document["network"]
    return (
        {row["name"]: row["cost"] for row in graph["tasks"]},
        {(row["source"], row["target"]): row["size"] for row in graph["dependencies"]},
        {row["name"]: row["speed"] for row in network["nodes"]},
        {
            tuple(sorted((row["source"], row["target"]))): math.inf
            if row["speed"] is None
            else row["speed"]
            for row in network["edges"]
        },
    )


def placed(path, method="heft"):
    return lm.place(lm.read(path), saga.cluster(path), method)


def write(document, tmp_path: Path, name="case.json"):
    path = tmp_path / name
    path.write_text(json.dumps(document))
    return path


def test_what_saga_saved_is_written_with_its_numbers(tmp_path):
    raw = json.loads(SAVED.read_text())
    again = tmp_path / "again.json"
    document = lm.writers.saga(placed(SAVED), again)
    assert numbers(document) == numbers(raw)
    assert document["name"] == raw["name"]
    assert lm.read(again).digest == lm.read(SAVED).digest
    assert saga.cluster(again).digest == saga.cluster(SAVED).digest


names = st.text("abcxyz0_", min_size=1, max_size=4)
speeds = st.floats(0.01, 100.0)


@st.composite
def instances(draw):
    """A document as SAGA has it: any order, sizes of any kind, links that are not there."""
    tasks = draw(st.lists(names, min_size=1, max_size=8, unique=True))
    nodes = draw(st.lists(names, min_size=1, max_size=4, unique=True))
    number = draw(st.sampled_from([st.floats(0.0, 50.0), st.integers(0, 99), st.just(0.0)]))
    pairs = [(a, b) for i, a in enumerate(tasks) for b in tasks[i + 1 :]]
    chosen = draw(st.lists(st.sampled_from(pairs), unique=True, max_size=12)) if pairs else []
    links = [(a, b) for i, a in enumerate(nodes) for b in nodes[i:]]
    return {
        "name": "drawn",
        "task_graph": {
            "tasks": [{"name": t, "cost": draw(st.floats(0.5, 9.0))} for t in tasks],
            "dependencies": [{"source": a, "target": b, "size": draw(number)} for a, b in chosen],
        },
        "network": {
            "nodes": [{"name": n, "speed": draw(speeds)} for n in nodes],
            "edges": [
                {
                    "source": a,
                    "target": b,
                    "speed": None if a == b else draw(st.one_of(speeds, st.just(math.inf))),
                }
                for a, b in draw(st.permutations(links))
            ],
        },
    }


@given(instances())
def test_any_instance_is_written_with_its_numbers(tmp_path_factory, document):
    path = write(document, tmp_path_factory.mktemp("saga"))
    tasks, pairs, nodes, links = numbers(document)
    for method in ("heft", "single"):
        found = numbers(lm.writers.saga(placed(path, method)))
        added = {saga.SUPER_SOURCE, saga.SUPER_SINK}
        assert {k: v for k, v in found[0].items() if k not in added} == tasks
        assert {k: v for k, v in found[1].items() if not added & {*k}} == pairs
        assert found[2:] == (nodes, links)


@settings(max_examples=15)
@given(instances())
def test_a_file_of_sagas_is_a_cluster_wherever_one_is_named(tmp_path_factory, document):
    path = write(document, tmp_path_factory.mktemp("saga"))
    arguments = parsed(["place", str(path)])
    assert inputs.cluster(arguments.cluster).digest == saga.cluster(path).digest
    assert lm.place(path, path, "heft").devices.tolist() == placed(path).devices.tolist()
    assert parsed(["place", str(path), "--cluster", "laptop"]).cluster == "laptop"


@given(instances())
def test_tasks_and_transfers_take_what_saga_says(tmp_path_factory, document):
    path = write(document, tmp_path_factory.mktemp("saga"))
    tasks, pairs, nodes, links = numbers(document)
    graph, cluster = lm.read(path), saga.cluster(path)
    for task, cost in tasks.items():
        for node, speed in nodes.items():
            kind = cluster.devices[cluster.index(node)].type
            assert graph.time[kind][graph.index(task)] == cost / speed
    for at, (a, b) in enumerate(zip(graph.src.tolist(), graph.dst.tolist(), strict=True)):
        size = pairs[graph.names[a], graph.names[b]]
        for (x, y), speed in links.items():
            if x != y:
                takes = int(graph.bytes[at]) / cluster.route(x, y).bandwidth
                longest = max(pairs.values()) / speed
                assert takes == pytest.approx(size / speed, rel=1e-9, abs=1e-11 * longest + 1e-200)


def test_saga_is_given_one_first_and_one_last_task(tmp_path):
    """As it adds them itself; they are gone when the file is read."""
    found = lm.instances.load("planted/100x4-ccr1-0")
    path = tmp_path / "planted.json"
    document = lm.writers.saga(lm.place(found.graph, found.cluster, "heft"), path)
    pairs = document["task_graph"]["dependencies"]
    tasks = {row["name"] for row in document["task_graph"]["tasks"]}
    assert tasks - {row["target"] for row in pairs} == {saga.SUPER_SOURCE}
    assert tasks - {row["source"] for row in pairs} == {saga.SUPER_SINK}
    graph = lm.read(path)
    assert sorted(graph.names) == sorted(found.graph.names)
    assert graph.n_edges == found.graph.n_edges


def test_a_schedule_has_every_task_once_and_in_order():
    plan = placed(SAVED)
    document = lm.writers.saga_schedule(plan)
    rows = [row for some in document["mapping"].values() for row in some]
    assert sorted(row["name"] for row in rows) == sorted(
        row["name"] for row in document["task_graph"]["tasks"]
    )
    assert max(row["end"] for row in rows) == pytest.approx(plan.makespan)
    costs, _, speeds_, _ = numbers(document)
    for node, some in document["mapping"].items():
        for row, later in pairwise(some):
            assert row["end"] <= later["start"] + 1e-9
        for row in some:
            assert row["node"] == node
            takes = costs[row["name"]] / speeds_[node]
            assert row["end"] - row["start"] == pytest.approx(takes, abs=1e-6)


def test_a_cluster_with_equal_links_is_written_with_its_latency_as_data():
    found = lm.instances.load("planted/100x4-ccr1-0")
    plan = lm.place(found.graph, found.cluster, "heft")
    costs, pairs, speeds_, links = numbers(lm.writers.saga(plan))
    assert set(speeds_.values()) == {1.0}
    assert costs["op3"] == found.graph.time["*"][3]
    route = found.cluster.route(0, 1)
    for a, b, size in zip(found.graph.src, found.graph.dst, found.graph.bytes, strict=True):
        takes = pairs[f"op{a}", f"op{b}"] / links["gpu0", "gpu1"]
        assert takes == pytest.approx(route.latency + int(size) / route.bandwidth)


def test_a_real_model_on_equal_gpus(tmp_path):
    cluster = lm.Cluster.preset("4xV100-PCIe")
    links = [
        lm.Link(a.name, b.name, 12e9) for a in cluster.devices for b in cluster.devices if a != b
    ]
    plan = lm.place("example:alexnet", lm.Cluster(cluster.devices, links, cluster.types), "heft")
    path = tmp_path / "alexnet.json"
    document = lm.writers.saga(plan, path)
    added = {saga.SUPER_SOURCE, saga.SUPER_SINK}
    runs = [row for row in document["task_graph"]["tasks"] if row["name"] not in added]
    assert len(runs) == plan.problem.graph.n_ops
    again = lm.place(lm.read(path), saga.cluster(path), "heft")
    # Tensors that several ops read are sent once per op there.
    assert again.lower_bound <= plan.makespan * (1 + 1e-9)


def test_what_saga_cannot_say_is_named():
    cases = [
        (lm.place("example:googlenet", lm.instances.load("measured/googlenet").cluster, "heft"),
         "one speed per node"),
        (lm.place("example:lenet", "2xV100-NVLink", "data-parallel"), "it splits ops"),
        (lm.place("example:lenet", "2x4xV100-25GbE", "heft"), "latencies and are not all equal"),
    ]  # fmt: skip
    for plan, words in cases:
        with pytest.raises(InputError, match="cannot be written as saga") as error:
            lm.writers.saga(plan)
        assert words in str(error.value)


def test_the_command_line(tmp_path, capsys):
    plan = tmp_path / "plan.json"
    placed(SAVED).save(plan)
    out = tmp_path / "out.json"
    assert main(["export", str(plan), "--to", "saga", "-o", str(out)]) == 0
    assert numbers(json.loads(out.read_text())) == numbers(json.loads(SAVED.read_text()))
    assert main(["instances", "--folder", str(SAVED.parent), "saga_*"]) == 0
    assert "saga_out_tree" in capsys.readouterr().out
    assert main(["leaderboard", "--folder", str(SAVED.parent), "--methods", "heft", "--json"]) == 0
    capsys.readouterr()
    assert main(["place", str(SAVED), "--method", "heft"]) == 0
    assert placed(SAVED).summary().partition(", planned")[0] in capsys.readouterr().out


def changed(change):
    document = json.loads(SAVED.read_text())
    change(document)
    return document


BAD = [
    (lambda d: d["task_graph"]["tasks"][0].pop("cost"), "task_graph.tasks: cost of"),
    (lambda d: d["task_graph"]["tasks"][0].update(cost=-1), "wants a number >= 0"),
    (lambda d: d["task_graph"]["tasks"][0].update(name=3), "task_graph.tasks[0] has the name 3"),
    (lambda d: d["network"]["nodes"].append(d["network"]["nodes"][0].copy()), "two are named"),
    (lambda d: d["task_graph"].update(tasks=[]), "task_graph.tasks is empty"),
    (lambda d: d["task_graph"].update(tasks={}), "task_graph.tasks is no list of objects"),
    (lambda d: d["task_graph"]["dependencies"][1].update(source="no"), "[1]: source is 'no'"),
    (lambda d: d["task_graph"]["dependencies"][0].update(size="3"), "[0]: size is '3'"),
    (lambda d: d["network"].update(nodes=[]), "network.nodes is empty"),
    (lambda d: d["network"]["nodes"][0].update(speed=0), "network.nodes: speed of"),
    (lambda d: d["network"]["edges"][0].update(target=[]), "network.edges[0]: target is []"),
    (lambda d: d.update(network=3), "it has no network"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "words"), BAD, ids=[words for _, words in BAD])
def test_bad_files(change, words, tmp_path):
    path = write(changed(change), tmp_path)
    with pytest.raises(InputError) as error:
        saga.read(path)
    assert words in str(error.value)
    assert str(path) in str(error.value)


def test_a_cycle_and_a_dependency_given_twice(tmp_path):
    document = changed(lambda d: None)
    first = document["task_graph"]["dependencies"][0]
    back = {"source": first["target"], "target": first["source"], "size": 1.0}
    for row, words in ((back, "cycle"), (first.copy(), "a second dependency")):
        other = copy.deepcopy(document)
        other["task_graph"]["dependencies"].append(row)
        with pytest.raises(InputError, match=words):
            lm.read(write(other, tmp_path))


def test_saga_itself_reads_what_is_written(tmp_path):
    pytest.importorskip("saga", reason="the package anrg-saga is not here")
    plan, paths = placed(SAVED), (tmp_path / "instance.json", tmp_path / "schedule.json")
    lm.writers.saga(plan, paths[0])
    lm.writers.saga_schedule(plan, paths[1])
    code = (
        "import sys; from saga import Schedule; from saga.schedulers import HeftScheduler\n"
        "from saga.schedulers.data import ProblemInstance as P\n"
        "a, b = (open(p).read() for p in sys.argv[1:])\n"
        "i, s = P.model_validate_json(a), Schedule.model_validate_json(b)\n"
        "HeftScheduler().schedule(i.network, i.task_graph); print(s.makespan)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, paths)], capture_output=True, text=True, check=True
    )
    assert float(done.stdout) == pytest.approx(plan.makespan)
