"""Plans on disk: what is loaded is what was saved, or an error that says what is wrong."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import clusters, graph_of, ms_mesh, op_graphs, v100_mesh

import loadmaster as lm
from loadmaster.base.errors import InputError
from loadmaster.judge.timeline import Timeline
from loadmaster.model.program import COLUMNS

GRAPH = graph_of(
    {"w": 0, "a": 1, "v": 0, "b": 2, "c": 3},
    [("w", "a", 8), ("a", "v", 4), ("v", "b", 4), ("a", "c", 4)],
    kind=["parameter", "", "", "", ""],
    view=[0, 0, 1, 0, 0],
    param_bytes=[8, 0, 0, 0, 0],
)
CLUSTER = ms_mesh(2)


def saved(plan: lm.Plan) -> dict:
    return json.loads(json.dumps(plan.to_document()))


def write(path, document) -> str:
    path.write_text(json.dumps(document))
    return str(path)


def check_same(plan: lm.Plan, again: lm.Plan) -> None:
    assert again.devices.tolist() == plan.devices.tolist()
    assert again.priority.tolist() == plan.priority.tolist()
    assert again.makespan == plan.makespan
    assert again.schedule.start.tolist() == plan.schedule.start.tolist()
    assert again.schedule.finish.tolist() == plan.schedule.finish.tolist()
    assert again.memory.peak.tolist() == plan.memory.peak.tolist()
    for attribute in (
        "method",
        "options",
        "lower_bound",
        "bound_source",
        "notes",
        "planning_seconds",
        "seed",
        "gap",
        "provenance",
        "fits",
    ):
        assert getattr(again, attribute) == getattr(plan, attribute), attribute
    assert again.graph.to_document() == plan.graph.to_document()
    assert again.cluster.digest == plan.cluster.digest
    assert again.costs.types == plan.costs.types
    assert (again.costs.time == plan.costs.time).all()


# -- round trip ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["plan.json", "plan.json.gz"])
def test_a_loaded_plan_simulates_to_the_same_schedule(tmp_path, alexnet, name):
    cluster = v100_mesh(4, "2GiB")
    plan = lm.place(alexnet, cluster, "m-topo", seed=5)
    path = tmp_path / name
    plan.save(path)
    assert (path.read_bytes()[:2] == b"\x1f\x8b") == name.endswith("gz")
    check_same(plan, lm.Plan.load(path))
    check_same(plan, lm.Plan.load(str(path), alexnet, cluster))
    assert [p.name for p in tmp_path.iterdir()] == [name]


@given(data=st.data())
@settings(max_examples=20)
def test_drawn_plans_survive(tmp_path_factory, data):
    graph, cluster = data.draw(op_graphs()), data.draw(clusters())
    method = data.draw(st.sampled_from(["celeritas", "m-topo", "round-robin", "single"]))
    plan = lm.place(graph, cluster, method, on_oom="best_effort")
    path = tmp_path_factory.mktemp("plans") / "plan.json.gz"
    plan.save(path)
    check_same(plan, lm.Plan.load(path, graph, cluster))


def test_a_plan_with_options_given_costs_and_overflow_survives(tmp_path):
    plan = lm.place(
        GRAPH, ms_mesh(2, memory=4), "celeritas", costs=[0.0, 0.5, 0.0, 0.25, 0.125],
        on_oom="best_effort", max_ops=2, max_time=0.5, memory="static",
    )  # fmt: skip
    assert not plan.fits
    plan.save(tmp_path / "p.json")
    again = lm.Plan.load(tmp_path / "p.json")
    check_same(plan, again)
    assert again.provenance == {"given": 1.0}
    assert again.options == {"max_ops": 2, "max_time": 0.5, "memory": "static"}


def test_presets_survive_in_plans(tmp_path):
    graph = lm.read("example:lenet")
    for name in lm.presets():
        cluster = lm.Cluster.preset(name)
        lm.place(graph, cluster, "celeritas").save(tmp_path / "p.json")
        lm.Plan.load(tmp_path / "p.json", graph, cluster)


def test_a_cluster_given_in_whole_numbers_survives(tmp_path):
    cluster = lm.Cluster.mesh(2, memory="1GiB", bandwidth=12_000_000_000)
    lm.place(GRAPH, cluster, "celeritas").save(tmp_path / "p.json")
    lm.Plan.load(tmp_path / "p.json")


def test_options_of_numpy_survive(tmp_path):
    lm.place(GRAPH, CLUSTER, "celeritas", max_ops=np.int64(3)).save(tmp_path / "p.json")


# -- for another graph or cluster ------------------------------------------------------------


def test_a_plan_for_another_graph_or_cluster_is_refused(tmp_path, lenet):
    plan = lm.place(GRAPH, CLUSTER, "celeritas")
    path = tmp_path / "mine.json"
    plan.save(path)
    with pytest.raises(
        InputError, match=r"mine\.json is a plan for another graph.*OpGraph\('lenet"
    ):
        lm.Plan.load(path, lenet)
    for other in (ms_mesh(3), ms_mesh(2, latency=1), ms_mesh(2, memory="2GiB")):
        with pytest.raises(InputError, match=r"mine\.json is a plan for another cluster"):
            lm.Plan.load(path, GRAPH, other)
    renamed = GRAPH.to_document() | {"name": "renamed", "meta": {"any": 1}}
    lm.Plan.load(path, lm.OpGraph.from_document(renamed), CLUSTER)


# -- damaged ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"[]", "is not a plan"),
        (b"3", "is not a plan"),
        (b'{"format": "opgraph", "version": 1}', "is not a plan"),
        (b'{"format": "loadmaster-plan"}', "plan version None"),
        (b'{"format": "loadmaster-plan", "version": 4}', "version 4.*reads version 1, 2 and 3"),
        (b'{"format": "loadmaster-plan", "version": 1}', "is a damaged plan.*graph"),
        (b"\x1f\x8b\x08\x00", "damaged or truncated gzip"),
        (
            gzip.compress(b'{"format": "loadmaster-plan"}' * 9, mtime=0)[:-9],
            "damaged or truncated gzip",
        ),
        (b"\xff\xfe{}", "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
    ],
)
def test_files_that_are_no_plans(tmp_path, content, message):
    path = tmp_path / "bad.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        lm.Plan.load(path)
    assert "bad.json" in str(caught.value)


def test_a_truncated_plan_at_any_length(tmp_path):
    path = tmp_path / "p.json.gz"
    lm.place(GRAPH, CLUSTER, "celeritas").save(path)
    whole = path.read_bytes()
    for cut in range(0, len(whole), 97):
        path.write_bytes(whole[:cut])
        with pytest.raises(InputError, match=r"p\.json\.gz"):
            lm.Plan.load(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(InputError, match=r"cannot read .*none\.json: No such file"):
        lm.Plan.load(tmp_path / "none.json")


def test_every_missing_field_is_named(tmp_path):
    document = saved(lm.place(GRAPH, CLUSTER, "celeritas"))
    figures = {"loadmaster", "makespan", "period", "peak", "excess", "format", "version"}
    figures.add("space")  # Documents of before spaces of plans have none.
    figures.add("left_out")  # Nor do those of before plans said what was not considered.
    # Nor do those of before there were plans for throughput; a plan for a step needs none of these.
    figures |= {"objective", "latency", "in_flight", "limit"}
    for field in set(document) - figures:
        rest = {k: v for k, v in document.items() if k != field}
        with pytest.raises(InputError) as caught:
            lm.Plan.load(write(tmp_path / "p.json", rest))
        assert "p.json" in str(caught.value)
        assert field.partition("_")[0] in str(caught.value)


@pytest.mark.parametrize("field", ["graph_sha256", "cluster_sha256"])
def test_a_wrong_hash_is_damage(tmp_path, field):
    document = saved(lm.place(GRAPH, CLUSTER, "celeritas")) | {field: "0" * 64}
    with pytest.raises(InputError, match=f"its {field[:5]}.* does not match its hash"):
        lm.Plan.load(write(tmp_path / "p.json", document))


def test_a_graph_or_cluster_changed_by_hand_is_damage(tmp_path):
    document = saved(lm.place(GRAPH, CLUSTER, "celeritas"))
    document["graph"]["ops"]["param_bytes"][0] = 9
    with pytest.raises(InputError, match="graph does not match its hash"):
        lm.Plan.load(write(tmp_path / "p.json", document))
    document = saved(lm.place(GRAPH, CLUSTER, "celeritas"))
    document["cluster"] = ms_mesh(2, memory="2GiB").to_toml()
    with pytest.raises(InputError, match="cluster does not match its hash"):
        lm.Plan.load(write(tmp_path / "p.json", document))


TAMPERED = {
    "a device that is not there": {"devices": [0, 0, 0, 0, 7]},
    "devices of another graph": {"devices": [0]},
    "devices that are text": {"devices": "gpu0"},
    "devices beyond 64 bits": {"devices": [10**30] * 5},
    "devices that are fractions": {"devices": [0.5] * 5},
    "priorities beyond 32 bits": {"priority": [2**40] * 5},
    "a seed that is text": {"seed": "one"},
    "costs that are missing": {"costs": {}},
    "costs that are a number": {"costs": 3},
    "a cluster that is a number": {"cluster": 3},
    "a cluster that is no TOML": {"cluster": "["},
    "a graph that is a number": {"graph": 3},
    "a bound that is a list": {"lower_bound": []},
    "notes that are a number": {"notes": 3},
}
TAMPERED_BUGS = {
    "priorities that are null": {"priority": None},
    "a bound that is text": {"lower_bound": "fast"},
    "a bound that is NaN": {"lower_bound": float("nan")},
    "a bound above the makespan": {"lower_bound": 1e9},
    "a seed below 0": {"seed": -1},
    "options that are a list": {"options": [1]},
    "a method that is a number": {"method": 3},
    "notes that are a text": {"notes": "all is well"},
    "notes that are no texts": {"notes": [1, None]},
    "a source of the bound that is a list": {"bound_source": [1]},
    "no seconds of planning": {"planning_seconds": float("nan")},
    "an unknown provenance": ("provenances", ["guessed"]),
    "a provenance out of range": ("provenance", [99] * 5),
    "a provenance below 0": ("provenance", [-1] * 5),
    "times that are text": ("time", "x"),
    "times of unlike length": ("time", [[1.0], [1.0, 2.0], [], [], []]),
    "costs for another type": ("types", ["tpu"]),
}


def tampered(change) -> dict:
    document = saved(lm.place(GRAPH, CLUSTER, "celeritas"))
    if isinstance(change, tuple):
        document["costs"][change[0]] = change[1]
    else:
        document |= change
    return document


@pytest.mark.parametrize("case", TAMPERED)
def test_a_plan_changed_by_hand_is_refused(tmp_path, case):
    with pytest.raises(InputError):
        lm.Plan.load(write(tmp_path / "p.json", tampered(TAMPERED[case])))


@pytest.mark.parametrize("case", TAMPERED_BUGS)
def test_a_plan_changed_by_hand_in_other_ways_is_refused(tmp_path, case):
    with pytest.raises(InputError):
        lm.Plan.load(write(tmp_path / "p.json", tampered(TAMPERED_BUGS[case])))


def test_devices_changed_by_hand_are_simulated_anew(tmp_path):
    """The makespan is never taken on trust."""
    plan = lm.place(GRAPH, CLUSTER, "single")
    document = saved(plan) | {"makespan": 1e-9, "devices": [0, 0, 0, 1, 0]}
    again = lm.Plan.load(write(tmp_path / "p.json", document))
    assert again.makespan == lm.simulate(GRAPH, CLUSTER, [0, 0, 0, 1, 0], plan.priority).makespan


# -- writing ---------------------------------------------------------------------------------


def test_nothing_is_half_written(tmp_path, monkeypatch):
    plan = lm.place(GRAPH, CLUSTER, "celeritas")
    path = tmp_path / "plan.json"
    path.write_text("before")

    def broken(*_):
        raise OSError(28, "No space left on device")

    for call in ("replace", "fdopen"):
        with monkeypatch.context() as patch:
            patch.setattr(os, call, broken)
            with pytest.raises(InputError, match=r"cannot write .*plan\.json.*No space left"):
                plan.save(path)
        assert path.read_text() == "before"
        assert [p.name for p in tmp_path.iterdir()] == ["plan.json"]

    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", interrupted)
        with pytest.raises(KeyboardInterrupt):
            plan.save(path)
    assert path.read_text() == "before"
    assert [p.name for p in tmp_path.iterdir()] == ["plan.json"]


def test_a_missing_directory_is_named(tmp_path):
    plan = lm.place(GRAPH, CLUSTER, "celeritas")
    with pytest.raises(InputError, match=r"cannot write .*nowhere.*plan\.json: No such file"):
        plan.save(tmp_path / "nowhere" / "plan.json")
    (tmp_path / "taken").mkdir()
    with pytest.raises(InputError, match=r"cannot write .*taken"):
        plan.save(tmp_path / "taken")
    assert [p.name for p in tmp_path.iterdir()] == ["taken"]


def test_what_json_cannot_hold_leaves_the_old_file(tmp_path):
    path = tmp_path / "plan.json"
    path.write_text("before")
    document = GRAPH.to_document() | {"meta": {"loss": float("nan")}}
    with pytest.raises(ValueError, match="JSON"):
        lm.place(lm.OpGraph.from_document(document), CLUSTER, "celeritas").save(path)
    assert path.read_text() == "before"
    assert [p.name for p in tmp_path.iterdir()] == ["plan.json"]


def test_saved_files_obey_the_umask(tmp_path):
    path = tmp_path / "plan.json"
    before = os.umask(0o027)
    try:
        lm.place(GRAPH, CLUSTER, "celeritas").save(path)
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o640


def test_equal_plans_are_equal_files_but_for_the_time_they_took(tmp_path):
    documents = [
        saved(lm.place(GRAPH, CLUSTER, "celeritas")) | {"planning_seconds": 0} for _ in range(2)
    ]
    assert documents[0] == documents[1]


# -- plans for transformed graphs ------------------------------------------------------------


def replicated() -> tuple[lm.OpGraph, lm.Plan]:
    graph = lm.read("example:lenet")
    return graph, lm.place(graph, lm.Cluster.preset("2xV100-NVLink"), "data-parallel")


def test_a_plan_of_a_program_is_for_the_users_graph(tmp_path):
    graph, plan = replicated()
    assert plan.graph is graph
    assert plan.program.graph.digest == lm.transforms.data_parallel(graph, 2).digest
    assert len(plan.devices) == len(plan.priority) == graph.n_ops
    plan.save(tmp_path / "p.json")
    for wanted in (None, graph):
        again = lm.Plan.load(tmp_path / "p.json", wanted)
        check_same(plan, again)
        assert again.program.graph.digest == plan.program.graph.digest
        for column in COLUMNS:
            assert getattr(again.program, column).tolist() == getattr(plan.program, column).tolist()
        assert again.program.splits == plan.program.splits
        assert again.single == plan.single == lm.place(graph, plan.cluster, "single").makespan
    for wanted in (GRAPH, plan.program.graph):
        with pytest.raises(InputError, match="a plan for another graph"):
            lm.Plan.load(tmp_path / "p.json", wanted)


@pytest.mark.parametrize(("method", "name"), [("data-parallel", "lenet"), ("os-dpos", "vgg19")])
def test_parts_do_all_the_work_of_an_op(method, name, tmp_path):
    graph = lm.read(f"example:{name}")
    plan = lm.place(graph, lm.Cluster.preset("4xV100-PCIe"), method)
    assert not plan.program.is_plain
    assert plan.single == lm.place(graph, plan.cluster, "single").makespan, "of the user's graph"
    assert (plan.devices >= -1).all()
    assert (plan.devices < 0).any()
    for op in range(graph.n_ops):
        parts = plan.parts(op)
        shares = sum(part.share for part in parts)
        # Parts share the work; what adds up gradients does all of it in every replica.
        assert shares == pytest.approx(1) or shares == len({part.replica for part in parts})
        assert (plan.devices[op] < 0) == (len(parts) > 1)
        if len(parts) == 1:
            assert parts[0].device == plan.device(op)
            assert plan.cluster.devices[plan.devices[op]].name == parts[0].device
    plan.save(tmp_path / "p.json.gz")
    check_same(plan, lm.Plan.load(tmp_path / "p.json.gz", graph))


def test_the_device_of_an_op_in_parts_is_asked_of_its_parts():
    _, plan = replicated()
    with pytest.raises(InputError, match=r"'convolution' has parts on gpu0, gpu1: .*plan\.parts"):
        plan.device("convolution")
    with pytest.raises(InputError, match="convolution@r0"):
        plan.parts("convolution@r0")


def test_what_is_said_of_a_plan_of_a_program_speaks_of_the_users_ops():
    graph, plan = replicated()
    assert "no plan, with ops whole, replicated or split, can be more than" in plan.summary()
    alone = lm.place(graph, plan.cluster, "single")
    seen = alone.diff(plan)
    assert seen.ops == len(graph.reduced.op_of)
    assert {move.target for move in seen.moves} >= {"gpu0 + gpu1"}
    assert {move.example for move in seen.moves} <= set(graph.names)
    assert plan.diff(plan).moved_ops == plan.diff(plan).reordered == 0
    why = plan.explain("convolution")
    assert why.op == "convolution"
    assert [part.op for part in why.parts] == ["convolution@r0", "convolution@r1"]
    assert why.device == "gpu0, gpu1"
    assert why.start == min(part.start for part in why.parts)
    assert "has 2 parts, on gpu0, gpu1" in str(why)
    assert len(why.to_document()["parts"]) == 2
    whole = plan.explain("p_conv1_weight" if "p_conv1_weight" in graph.names else 0)
    assert "parts" not in whole.to_document() or whole.parts
    said = [lm.check(plan, forbid=device).verdicts[1].found for device in ("gpu0", "gpu1")]
    running = len(graph.reduced.op_of)
    assert all(0 < int(found.split()[0]) <= running for found in said)


def test_no_bound_of_whole_ops_is_held_against_parts():
    """Beside a step of replicas, only the bound of the graph of replicas is told."""
    graph, cluster = lm.read("example:vgg19"), lm.Cluster.preset("4xV100-PCIe")
    told: list = []
    lm.place(graph, cluster, "data-parallel", progress=lambda stage, best: told.append(best))
    assert told[-1].lower_bound <= told[-1]


# -- versions 1 and 2 ------------------------------------------------------------------------

FOLDER = Path(__file__).parent / "data"


def document_of(name: str) -> dict:
    return json.loads(gzip.decompress((FOLDER / f"{name}.json.gz").read_bytes()))


@pytest.mark.parametrize("name", ["heft", "data_parallel", "os_dpos"])
def test_documents_of_version_1_are_read(name, tmp_path):
    old = document_of(f"version_1_{name}")
    assert old["version"] == 1
    plan = lm.Plan.load(FOLDER / f"version_1_{name}.json.gz")
    assert plan.makespan == old["makespan"]
    assert plan.running_devices.tolist() == plan.devices.tolist() == old["devices"]
    assert [[s.op, s.dimension, s.n] for s in plan.splits] == old.get("splits", [])
    assert plan.explain(len(old["devices"]) - 1).device in str(plan.cluster.devices)
    assert not lm.check(plan).to_document()["verdicts"][0]["found"].startswith("short")
    plan.save(tmp_path / "p.json")
    new = json.loads((tmp_path / "p.json").read_text())
    assert new["version"] == 3
    again = lm.Plan.load(tmp_path / "p.json")
    check_same(plan, again)
    assert (again.splits, again.constraints) == (plan.splits, plan.constraints)


@pytest.mark.parametrize("name", ["version_1_data_parallel", "version_2_of_version_1"])
def test_a_plan_of_version_1_is_for_the_graph_that_was_transformed(name):
    graph, path = lm.read("example:lenet"), FOLDER / f"{name}.json.gz"
    plan = lm.Plan.load(path, graph)
    digest = graph.with_columns({"args": None}).digest
    assert document_of(name)["original_sha256"] == digest
    served = lm.transforms.replicate(graph, 2, aggregation="parameter-server")
    assert plan.graph.digest == served.graph.digest
    assert lm.Plan.load(path, plan.graph).makespan == plan.makespan
    assert "pin convolution_1=gpu1" in plan.explain("convolution_1@r0").constraint.replace("@*", "")
    assert lm.check(plan).ok
    with pytest.raises(InputError, match=rf"another graph: .*made from .*{digest}, not"):
        lm.Plan.load(path, GRAPH)


@pytest.mark.parametrize("name", ["ddp", "pipeline", "sharded", "of_version_1"])
def test_documents_of_version_2_are_read(name, tmp_path):
    old = document_of(f"version_2_{name}")
    assert old["version"] == 2
    plan = lm.Plan.load(FOLDER / f"version_2_{name}.json.gz")
    assert plan.makespan == old["makespan"]
    assert plan.verdict.peak.tolist() == old["peak"]
    assert plan.running_devices.tolist() == old["devices"]
    assert plan.parallelism is None
    assert plan.target == old.get("target")
    assert plan.offers or not old["offers"]
    plan.save(tmp_path / "p.json")
    new = json.loads((tmp_path / "p.json").read_text())
    same = {"method", "options", "space", "bounds", "offers", "left_out", "recipe", "program"}
    assert {key: new.get(key) for key in same} == {key: old.get(key) for key in same}
    check_same(plan, lm.Plan.load(tmp_path / "p.json"))


def test_the_first_documents_of_version_2_said_less(tmp_path):
    old = document_of("version_2_ddp")
    for key in ("objective", "space", "bounds", "offers", "left_out"):
        del old[key]
    del old["program"]["batches"], old["program"]["columns"]["rank"]
    plan = lm.Plan.load(write(tmp_path / "p.json", old))
    assert plan.makespan == old["makespan"]
    assert plan.program.rank.tolist() == [-1] * plan.program.graph.n_ops


def test_the_digest_of_the_graph_of_version_1_is_a_text(tmp_path):
    damaged = document_of("version_2_of_version_1") | {"original_sha256": 3}
    with pytest.raises(InputError, match="original_sha256 is no text"):
        lm.Plan.load(write(tmp_path / "p.json", damaged))


def test_a_plan_for_the_users_graph_has_no_splits():
    plan = lm.place(GRAPH, CLUSTER, "celeritas")
    assert plan.splits == ()
    assert not {"splits", "original_sha256", "program"} & set(plan.to_document())


def _of_program(key, value):
    def change(document):
        document["program"][key] = value

    return change


def _of_column(name, value):
    def change(document):
        document["program"]["columns"][name][0] = value

    return change


@pytest.mark.parametrize(
    "change",
    [
        *(_of_program("splits", value) for value in ([["a", "batch"]], [["a", "batch", 1]], 3)),
        *(_of_program("splits", value) for value in ([["a", 2, 2]], [["a", "batch", "two"]])),
        *(_of_program(key, 3) for key in ("graph", "columns", "costs", "notes", "roles", "sha256")),
        *(_of_column("serves", value) for value in (-1, 10**6, 0.5, "a", None)),
        *(_of_column("share", value) for value in (-1, 2, float("nan"), "a")),
        *(_of_column(name, -2) for name in ("part", "parts", "replica", "micro", "role", "rank")),
        *(_of_column(name, 10**12) for name in ("part", "parts", "replica", "micro", "role")),
        _of_column("rank", 10**12),
        lambda document: document["program"]["columns"].pop("part"),
        lambda document: document["program"]["columns"]["part"].pop(),
        lambda document: document["program"]["graph"]["ops"]["flops"].reverse(),
        lambda document: document["program"]["columns"].update(
            serves=[0] * len(document["program"]["columns"]["serves"])
        ),
        lambda document: document.pop("program"),
        lambda document: document.update(parallelism=3),
        lambda document: document.update(parallelism={"tp": 0}),
        lambda document: document.update(parallelism={"gpus": 2}),
        lambda document: document.pop("objective"),
    ],
)
def test_damaged_programs_are_input_errors(tmp_path, change):
    _, plan = replicated()
    document = saved(plan)
    change(document)
    with pytest.raises(InputError, match=r"p\.json"):
        lm.Plan.load(write(tmp_path / "p.json", document))


# -- measured --------------------------------------------------------------------------------


def test_a_measured_step_is_what_a_plan_then_shows():
    plan = lm.place(GRAPH, CLUSTER, "single")
    seen = lm.Simulation(
        plan.problem, Timeline.measured(GRAPH, [0] * 5, [0, 0, 1, 1, 3], [0, 1, 1, 3, 6])
    )
    measured = plan.measured(seen)
    assert measured.makespan == measured.verdict.step_time == 6
    assert measured.schedule is seen
    assert "busy 100%" in measured.summary()
    assert measured.explain("c").waited == "the device, busy with 'b'"
    assert plan.diff(measured).gain == plan.makespan - 6
