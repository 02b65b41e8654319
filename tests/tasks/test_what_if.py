"""What-if: changed clusters are what they say, plans start from the old one, and gains are fair."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import clusters, graph_of, ms_mesh, op_graphs, v100_mesh

import loadmaster as lm
from loadmaster.base.errors import InfeasibleError, InputError
from loadmaster.cli import main
from loadmaster.judge.assignment import Assignment
from loadmaster.judge.problem import Problem
from loadmaster.strategies.warm import NOWHERE, as_candidates, carried_over
from loadmaster.tasks.what_if import CHANGES

PCIE = lm.Cluster.preset("4xV100-PCIe")

#: Four ops of 4 ms side by side.
SIDE = graph_of({x: 4 for x in "abcd"}, output_bytes=[2] * 4)


# -- clusters --------------------------------------------------------------------------------


def test_a_copied_device_has_links_and_channels_of_its_own():
    larger = PCIE.with_device("gpu1")
    assert [d.name for d in larger.devices] == ["gpu0", "gpu1", "gpu2", "gpu3", "gpu4"]
    assert larger.memory[4] == PCIE.memory[1]
    assert larger.devices[4].type == PCIE.devices[1].type
    for peer in ("gpu0", "gpu2", "gpu3"):
        old, new = PCIE.route("gpu1", peer), larger.route("gpu4", peer)
        assert (new.latency, new.bandwidth) == (old.latency, old.bandwidth)
        assert new.channels == ("gpu4.tx", f"{peer}.rx")
        assert larger.route(peer, "gpu4").channels == (f"{peer}.tx", "gpu4.rx")
    assert larger.route("gpu1", "gpu4").channels == ("gpu1.tx", "gpu4.rx")
    assert larger.route("gpu4", "gpu1").bandwidth == PCIE.route("gpu1", "gpu0").bandwidth
    assert PCIE.n_devices == 4
    again = larger.with_device("gpu4")
    assert again.devices[5].name == "gpu5"
    assert again.route("gpu4", "gpu5").channels == ("gpu4.tx", "gpu5.rx")


def test_a_bridge_stays_shared_and_names_are_whole_words():
    devices = [lm.Device(f"gpu{i}", "t", 10) for i in (1, 10)]
    links = [
        lm.Link("gpu1", "gpu10", 1e3, 0.0, ("bridge", "gpu1.out", "gpu10.in")),
        lm.Link("gpu10", "gpu1", 1e3, 0.0, ("bridge", "gpu10.out", "gpu1.in")),
    ]
    larger = lm.Cluster(devices, links).with_device("gpu1")
    assert larger.devices[2].name == "gpu2"
    assert larger.route("gpu2", "gpu10").channels == ("bridge", "gpu2.out", "gpu10.in")
    assert larger.route("gpu1", "gpu2").channels == ("bridge", "gpu1.out", "gpu2.in")


def test_links_memory_and_speed():
    cluster = v100_mesh(3)
    wide = cluster.with_link_speed(2.5)
    assert [k.bandwidth for k in wide.links] == [30e9] * 6
    assert [k.latency for k in wide.links] == [k.latency for k in cluster.links]
    one = cluster.with_link_speed(2, ("gpu2", 0))
    assert {(k.src, k.dst) for k in one.links if k.bandwidth == 24e9} == {
        ("gpu0", "gpu2"),
        ("gpu2", "gpu0"),
    }
    assert cluster.with_memory("1GiB").memory == [2**30] * 3
    assert cluster.with_memory(5, "gpu1").memory == [2**35, 5, 2**35]
    fast = cluster.with_speed(2.5, "gpu1")
    assert [t.name for t in fast.types] == ["V100-32GB", "V100-32GB x2.5"]
    assert fast.types[1].peak["f32"] == 2.5 * 15.7e12
    assert fast.types[1].memory_bandwidth == 2.5 * 900e9
    assert fast.types[1].launch == 5e-6 / 2.5
    assert fast.devices[1].memory == cluster.devices[1].memory
    assert len(cluster.with_speed(3).types) == 1
    assert cluster.without_device("gpu1").memory == [2**35] * 2


def test_a_name_of_a_faster_type_that_is_taken_is_refused():
    types = [lm.DeviceType("t", {"f32": 1e12}, 1e9), lm.DeviceType("t x2", {"f32": 5e12}, 1e9)]
    devices = [lm.Device("a", "t", 1), lm.Device("b", "t x2", 1)]
    cluster = lm.Cluster(devices, [lm.Link("a", "b", 1.0), lm.Link("b", "a", 1.0)], types)
    with pytest.raises(InputError, match="already named 't x2'"):
        cluster.with_speed(2, "a")


@given(data=st.data())
@settings(max_examples=20)
def test_a_larger_cluster_routes_the_old_pairs_as_before(data):
    cluster = data.draw(clusters())
    if cluster.n_devices == 1:
        with pytest.raises(InputError, match="no direct link"):
            cluster.with_device(0)
        return
    larger = cluster.with_device(data.draw(st.integers(0, cluster.n_devices - 1)))
    assert larger.n_devices == cluster.n_devices + 1
    for a in range(cluster.n_devices):
        for b in range(cluster.n_devices):
            if a != b:
                assert larger.route(a, b).bandwidth >= cluster.route(a, b).bandwidth


# -- warm starts -----------------------------------------------------------------------------


@given(data=st.data())
@settings(max_examples=20)
def test_auto_is_never_worse_than_the_plan_it_starts_from(data):
    graph = data.draw(op_graphs())
    cluster = data.draw(clusters())
    plan = lm.place(graph, cluster, "random", seed=data.draw(st.integers(0, 9)))
    again = lm.place(graph, cluster, "auto", effort=0, warm_start=plan)
    assert again.makespan <= plan.makespan
    assert again.notes[-1].startswith("warm start: a plan of")


@given(data=st.data())
@settings(max_examples=20)
def test_a_start_on_fewer_devices_obeys_all_rules(data):
    graph = data.draw(op_graphs())
    cluster = data.draw(clusters())
    plan = lm.place(graph, cluster, "random")
    if cluster.n_devices == 1:
        return
    fewer = cluster.subset(range(cluster.n_devices - 1))
    problem = Problem.make(graph, fewer, lm.costs.estimate(graph, fewer))
    placement = carried_over(plan, problem)
    [start] = as_candidates(problem, placement)
    sets = problem.graph.colocation
    assert all(
        len(set(start.assignment.devices[sets == s].tolist())) == 1 for s in set(sets.tolist())
    )
    stays = placement.devices != NOWHERE
    whole = np.array([stays[sets == s].all() for s in sets])
    assert (start.assignment.devices[whole] == placement.devices[whole]).all()


def test_what_lost_its_device_goes_where_it_fits_best():
    # d's 8 bytes fit beside b's 4, not beside a's 8.
    graph = graph_of({"a": 4, "b": 4, "d": 4}, param_bytes=[8, 4, 8])
    plan = lm.place(graph, ms_mesh(3, memory=12), "round-robin")
    assert plan.devices.tolist() == [0, 1, 2]
    fewer = plan.cluster.without_device("gpu2")
    problem = Problem.make(graph, fewer, lm.costs.estimate(graph, fewer))
    [start] = as_candidates(problem, carried_over(plan, problem))
    assert start.assignment.devices.tolist() == [0, 1, 1]
    small = Problem.make(graph, fewer.with_memory(11), plan.costs)
    assert as_candidates(small, carried_over(plan, small)) == []
    assert as_candidates(small, None) == []


def test_a_start_that_does_not_fit_is_no_plan():
    plan = lm.place(SIDE, ms_mesh(2), "round-robin")
    with pytest.raises(InfeasibleError):
        lm.place(SIDE, ms_mesh(2, memory=1), "auto", effort=0.01, warm_start=plan)


def test_a_plan_for_other_ops_is_refused():
    plan = lm.place(SIDE, ms_mesh(2))
    other = graph_of({"x": 1})
    with pytest.raises(InputError, match="places other ops"):
        lm.place(other, ms_mesh(2), "auto", warm_start=plan)


def test_a_warm_start_is_one_more_seed():
    problem = Problem.make(SIDE, ms_mesh(2), lm.costs.estimate(SIDE, ms_mesh(2)))
    placement = Assignment(np.array([0, 1, 0, 1], dtype=np.int32), np.arange(4, dtype=np.int32))
    [start] = as_candidates(problem, placement)
    assert start.schedule.makespan == pytest.approx(8e-3)


# -- what if ---------------------------------------------------------------------------------


def test_worth_is_what_can_be_worked_out_by_hand():
    plan = lm.place(SIDE, ms_mesh(2), "round-robin")
    seen = lm.what_if(
        plan,
        {"add_device": {"gpu1": 2}, "scale_device": 2},
        add_device={"gpu0": 2},
        scale_device=[4, {"gpu1": 3}],
        remove_device="gpu1",
        memory=1,
        effort=0.1,
    )
    found = {p.name: p for p in seen.prospects}
    assert list(found) == [
        "today",
        "add_device=gpu1=2, scale_device=2",
        "add_device=gpu0=2",
        "remove_device=gpu1",
        "scale_device=4",
        "scale_device=gpu1=3",
        "memory=1",
    ]
    steps = [None if p.plan is None else p.plan.makespan * 1e3 for p in seen.prospects]
    # Three ops on the device that is three times as fast, one on the other.
    assert steps == [pytest.approx(s) for s in (8, 2, 4, 16, 2, 4)] + [None]
    gains = [seen.gain(p) for p in seen.prospects]
    assert gains == [pytest.approx(g) for g in (1, 4, 2, 0.5, 4, 2)] + [None]
    kept = [p.kept for p in seen.prospects]
    assert kept[:3] == [pytest.approx(k) for k in (8e-3, 4e-3, 8e-3)]
    assert kept[3] is None
    assert kept[5] == pytest.approx(8e-3)
    assert kept[6] is None
    assert "short" in found["memory=1"].why_not
    assert seen.moved_ops(seen.today) == 0
    assert seen.moved_ops(found["remove_device=gpu1"]) == 0.5
    assert seen.moved_ops(found["memory=1"]) is None
    text = str(seen)
    assert text.count("\n") == 9
    assert "does not fit" in text


def test_nothing_changes_times_but_the_device():
    """Times given by hand hold on: a faster device divides them, a roofline is never taken."""
    plan = lm.place(SIDE, ms_mesh(2), "heft", costs=[1e-3, 2e-3, 3e-3, 4e-3])
    seen = lm.what_if(plan, scale_device={"gpu1": 2}, effort=0.02)
    costs = seen.prospects[1].plan.costs
    assert costs.time[:, 0].tolist() == plan.costs.time[:, 0].tolist()
    assert costs.time[:, 1].tolist() == (plan.costs.time[:, 0] / 2).tolist()
    assert costs.shares() == {"given": 1.0}


def test_ops_bound_to_a_type_may_run_on_its_faster_copies():
    graph = graph_of({"a": 4, "b": 4}, device_types=["gpu", "gpu"], output_bytes=[2, 2])
    plan = lm.place(graph, ms_mesh(2), "round-robin")
    seen = lm.what_if(plan, scale_device=[2, {"gpu1": 4}], effort=0.02)
    assert [p.plan.makespan for p in seen.prospects] == [
        pytest.approx(4e-3),
        pytest.approx(2e-3),
        pytest.approx(2e-3),
    ]


def test_more_hardware_is_never_found_to_be_worse():
    """Whatever the luck of a search: what runs on less runs on more."""
    plan = lm.place(lm.read("example:alexnet"), PCIE, "celeritas")
    seen = lm.what_if(
        plan, remove_device="gpu3", add_device="gpu3", memory="64GiB", scale_link=2, effort=0.02
    )
    by_name = {p.name: p.plan.makespan for p in seen.prospects}
    assert by_name["today"] <= by_name["remove_device=gpu3"]
    assert by_name["add_device=gpu3"] <= by_name["today"]
    assert by_name["memory=64GiB"] <= by_name["today"]
    for prospect in seen.prospects:
        assert prospect.plan.makespan == prospect.plan.schedule.makespan
        assert prospect.kept is None or prospect.plan.makespan <= prospect.kept


def test_the_same_on_every_run():
    plan = lm.place(lm.read("example:alexnet"), PCIE)
    one, other = (lm.what_if(plan, scale_link=2, effort=0.02) for _ in range(2))
    assert one.prospects[1].plan.devices.tolist() == other.prospects[1].plan.devices.tolist()


def test_a_plan_of_a_split_graph_is_kept_where_nothing_better_is_found():
    plan = lm.place(lm.read("example:alexnet"), v100_mesh(2), "os-dpos", costs="roofline")
    assert not plan.program.is_plain
    seen = lm.what_if(plan, scale_link=4, effort=0.02)
    assert seen.prospects[1].plan.graph is plan.graph
    assert seen.prospects[1].kept < plan.makespan
    assert seen.prospects[1].plan.makespan <= seen.prospects[1].kept
    assert seen.prospects[1].plan.single == pytest.approx(plan.single, rel=1e-9)
    assert seen.prospects[1].plan.makespan <= plan.makespan


@pytest.mark.parametrize(
    ("scenarios", "changes", "message"),
    [
        ((), {}, "no scenario: give at least one of add_device, remove_device"),
        (({},), {}, "a scenario is {}"),
        (("gpu0",), {}, "a scenario is 'gpu0'"),
        (({"colour": "red"},), {}, "no change is named 'colour'; there are add_device"),
        ((), {"add_device": "gpu9"}, "add_device=gpu9: no device 'gpu9'"),
        ((), {"add_device": {"gpu0": 0}}, "0 copies of 'gpu0'"),
        ((), {"remove_device": 7}, "no device 7"),
        ((), {"scale_link": 0}, "link speed: factor is 0"),
        ((), {"scale_link": {"gpu0": 2}}, "'gpu0' is no pair of devices"),
        ((), {"scale_link": {("gpu0", "gpu0"): 2}}, "no direct link joins gpu0"),
        ((), {"scale_device": -1}, "device speed: factor is -1"),
        ((), {"scale_device": {"gpu0": float("nan")}}, "factor is nan"),
        ((), {"memory": "much"}, "memory is 'much'"),
        ((), {"memory": {"gpu9": "1GiB"}}, "no device 'gpu9'"),
        (({"remove_device": "gpu0", "memory": {"gpu0": 1}},), {}, "no device 'gpu0'"),
    ],
)
def test_what_cannot_be_changed_is_named(scenarios, changes, message):
    plan = lm.place(SIDE, ms_mesh(2))
    with pytest.raises(InputError, match=message):
        lm.what_if(plan, *scenarios, **changes, effort=0.01)


def test_the_last_device_stays():
    plan = lm.place(SIDE, ms_mesh(1), "single")
    with pytest.raises(InputError, match="only device"):
        lm.what_if(plan, remove_device=0)


# -- the command line ------------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "plan.json"
    lm.place(SIDE, ms_mesh(2), "round-robin").save(path)
    return str(path)


def test_the_command_prints_a_table_and_json(saved, capsys):
    words = ["what-if", saved, "--time-limit", "50ms", "--add-device", "gpu1=2"]
    words += ["--scale-device", "gpu1=3", "--memory", "gpu0=1KiB", "--memory", "64"]
    words += ["--scale-link", "gpu0:gpu1=2", "--remove-device", "gpu0"]
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert "add_device=gpu1=2" in printed
    assert "scale_link=gpu0:gpu1=2.0" in printed
    assert main([*words, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    rows = {row["scenario"]: row for row in document["scenarios"]}
    assert len(rows) == 7
    assert rows["add_device=gpu1=2"]["gain"] == pytest.approx(2)
    assert rows["add_device=gpu1=2"]["devices"] == 4
    assert len(rows["add_device=gpu1=2"]["plan"]["devices"]) == 4
    assert rows["today"]["plan"]["makespan"] == pytest.approx(8e-3)


def test_a_saved_plan_is_a_warm_start(saved, tmp_path, capsys):
    graph = tmp_path / "graph.json"
    graph.write_text(json.dumps(SIDE.to_document()))
    cluster = tmp_path / "cluster.toml"
    ms_mesh(3).write(cluster)
    words = ["place", str(graph), "--cluster", str(cluster), "--warm-start", saved]
    whole = [*words, "--method", "auto", "--option", "effort=0.02", "--option", "split=none"]
    assert main([*whole, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["makespan"] == pytest.approx(8e-3)
    assert main([*words, "--method", "single", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["makespan"] == pytest.approx(8e-3)


def test_changes_together_are_one_scenario(saved, capsys):
    words = ["what-if", saved, "--time-limit", "50ms", "--together", "--json"]
    changes = ["--scale-device", "gpu0=2", "--scale-device", "gpu1=4", "--memory", "1KiB"]
    assert main([*words, *changes]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [row["scenario"] for row in document["scenarios"]] == [
        "today",
        "scale_device=gpu0=2.0 gpu1=4.0, memory=1KiB",
    ]
    assert document["scenarios"][1]["plan"]["makespan"] == pytest.approx(3e-3)
    assert main([*words, "--memory", "1", "--memory", "2"]) == 2
    assert "--memory is given twice" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "give at least one of --add-device"),
        (["--scale-link", "fast"], "'fast' is no number"),
        (["--scale-device", "gpu0=x"], "'x' is no number"),
        (["--add-device", "gpu0=many"], "'many' is no number"),
        (["--memory", "gpu0="], "memory is ''"),
        (["--scale-link", "gpu0=2"], "is no pair of devices"),
    ],
)
def test_what_the_command_refuses(saved, words, message, capsys):
    assert main(["what-if", saved, *words]) == 2
    assert message in capsys.readouterr().err


def test_every_change_has_a_flag():
    from loadmaster.cli.what_if import CHANGES as FLAGS

    assert {flag.removeprefix("--").replace("-", "_") for flag, *_ in FLAGS} == set(CHANGES)
