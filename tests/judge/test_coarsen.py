"""Coarsening from Python: one interface, a graph that places, a report that is true, pictures."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import numpy as np
import pytest
from conftest import example
from hypothesis import given
from hypothesis import strategies as st
from strategies import clusters, graph_of, ms_mesh, op_graphs

import loadmaster as lm
from loadmaster import fast
from loadmaster.cli import main
from loadmaster.judge.assignment import Assignment
from loadmaster.judge.coarsening import Coarsener, default_rules, read_rules
from loadmaster.judge.problem import Problem
from loadmaster.judge.simulation import as_costs
from loadmaster.strategies.auto.passes import by_passes, near_levels, repeats_levels
from loadmaster.strategies.auto.tuning import TUNING
from loadmaster.strategies.auto.v_cycle import polished
from loadmaster.strategies.candidate import judged
from loadmaster.writers.pictures.coarse import to_dot, to_graphml, write

METHODS: tuple[Coarsener, ...] = ("sequential", "batch", "rules", "parallel", "multilevel")


@given(
    graph=op_graphs(max_ops=12),
    cluster=clusters(),
    method=st.sampled_from(METHODS),
    groups=st.integers(1, 8),
    balance=st.sampled_from([None, 1.0, 1.5]),
    max_bytes=st.sampled_from([None, 0, 20]),
)
def test_every_coarsening_is_a_graph_that_places(
    graph, cluster, method, groups, balance, max_bytes
):
    coarse = lm.coarsen(
        graph, method, groups, cluster=cluster, balance=balance, max_bytes=max_bytes
    )
    report, fine = coarse.report, coarse.problem
    n = report.groups
    assert report.acyclic
    assert n >= min(groups, fine.graph.n_ops)
    assert (report.note == "") == (n <= groups)
    assert coarse.mapping.shape == (graph.n_ops,)
    assert sorted(set(coarse.mapping.tolist())) == list(range(n))

    # The coarse graph, reduced again, is the quotient: nothing lost, tensors once per group.
    again, quotient = coarse.graph.reduced_for(fine.costs.types).graph, coarse.contracted
    assert again.n_ops == n
    flows = [sorted(zip(*(c.tolist() for c in g.flows()), strict=True)) for g in (again, quotient)]
    assert flows[0] == flows[1]
    assert int(coarse.graph.param_bytes.sum()) == int(fine.graph.resident.sum())
    static = int(fine.graph.static_bytes.sum())
    assert int(coarse.graph.output_bytes.sum() + coarse.graph.param_bytes.sum()) == static
    for k, name in enumerate(fine.costs.types):
        assert coarse.graph.time[name].sum() == pytest.approx(fine.time[:, k].sum())
    # Where nothing is sent, groups take as long as their ops.
    alone = lm.place(coarse.graph, cluster, "single", on_oom="best_effort")
    (device,) = set(alone.devices.tolist())
    order = np.arange(fine.graph.n_ops, dtype=np.int32)
    whole = fine.simulate(np.full(fine.graph.n_ops, device, dtype=np.int32), order)
    assert alone.makespan == pytest.approx(whole.makespan)
    plan = lm.place(coarse.graph, cluster, on_oom="best_effort")
    assert plan.fits >= alone.fits
    assert plan.makespan <= alone.makespan or not alone.fits

    # What the report says of the cut.
    _, _, _, sizes, _ = fast.edges(quotient)
    assert report.cut_bytes == int(sizes.sum())
    assert report.parallelism <= report.parallelism_before + 1e-9


@pytest.mark.parametrize("method", METHODS)
def test_the_same_twice(method):
    one, two = (lm.coarsen(example("inception-v3"), method, 100) for _ in range(2))
    assert np.array_equal(one.mapping, two.mapping)
    assert one.report == two.report


def test_parallel_keeps_what_the_others_lose():
    graph = example("inception-v3")
    kept = {m: lm.coarsen(graph, m, 200).report.parallelism for m in ("sequential", "parallel")}
    assert kept["parallel"] >= 0.99 * lm.coarsen(graph, "parallel").report.parallelism_before
    assert kept["sequential"] < kept["parallel"]


def test_the_best_order_is_the_cheapest():
    graph = example("bert-large")
    found = {}
    for order in ("best", "program", "m-topo", "dfs", "cpd"):
        report = lm.coarsen(graph, "sequential", 100, order=order).report
        found[order] = (report.groups, report.cut_share)
    assert found["best"] == min(found.values())


def test_rules_fuse_what_they_name_and_say_when_none_is_left():
    graph = lm.OpGraph(
        {
            "name": ["c", "b", "r", "c2"],
            "kind": ["Conv", "BatchNormalization", "Relu", "Conv"],
            "time": {"*": [1e-3] * 4},
        },
        {"src": [0, 1, 2], "dst": [1, 2, 3]},
    )
    coarse = lm.coarsen(graph, "rules", 1, cluster=ms_mesh(2))
    assert coarse.mapping.tolist() == [0, 0, 0, 1]
    assert coarse.report.note == "2 groups, not 1: no other rule matches"
    own = lm.coarsen(graph, "rules", 1, cluster=ms_mesh(2), rules=[["Relu|Clip", "Conv"]])
    assert own.mapping.tolist() == [0, 1, 2, 2]


def test_rules_from_a_file(tmp_path):
    path = tmp_path / "rules.toml"
    path.write_text('rules = [["Conv", "Relu|Clip"]]')
    assert read_rules(path) == (("Conv", "Relu|Clip"),)
    for text, message in [
        ("rules = 3", "wants a list of lists"),
        ("rules = [['Conv']]", "at least two kinds"),
        ("rules = [['Conv', 3]]", "wants kinds"),
        ("rules = [['Conv', 'a||b']]", "wants kinds"),
        ("no = 1", "no list 'rules'"),
        ("= broken", "is not valid TOML"),
    ]:
        path.write_text(text)
        with pytest.raises(lm.InputError, match=message):
            read_rules(path)
    assert len(default_rules()) > 20


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "fastest"}, "no coarsening method is named 'fastest'"),
        ({"groups": 0}, "groups is 0"),
        ({"groups": 1.5}, "groups is 1.5"),
        ({"balance": 0.5}, "balance is 0.5"),
        ({"balance": float("nan")}, "balance is nan"),
        ({"max_bytes": -1}, "max_bytes is -1"),
        ({"order": "random"}, "no order is named 'random'"),
    ],
)
def test_bad_arguments_are_named(options, message, lenet):
    with pytest.raises(lm.InputError, match=message):
        lm.coarsen(lenet, **options)


def test_why_there_are_more_groups_than_asked_for():
    chain = graph_of({f"o{i}": 2 for i in range(6)}, [(f"o{i}", f"o{i + 1}", 9) for i in range(5)])
    cluster = ms_mesh(2)
    note = lm.coarsen(chain, "batch", 2, cluster=cluster, max_bytes=9).report.note
    assert note == "5 groups, not 2: a group may hold 9 B at most (4 pairs)"
    apart = graph_of({"a": 1, "b": 1})
    note = lm.coarsen(apart, "batch", 1, cluster=cluster).report.note
    assert note == "2 groups, not 1: no two of them are joined"


def test_pictures(tmp_path):
    coarse = lm.coarsen(example("lenet"), "parallel", 6)
    dot = to_dot(coarse, devices=[0, 1, 2, 0, 1, 2])
    assert dot.count(" -> ") == len(coarse.contracted.flows()[0])
    assert dot.count("#56b4e9") == 2
    root = ET.fromstring(to_graphml(coarse))
    assert sum(tag.tag.endswith("node") for tag in root.iter()) == 6
    write(coarse, tmp_path / "a.dot")
    write(coarse, tmp_path / "a.graphml")
    nx = pytest.importorskip("networkx")
    read = nx.read_graphml(tmp_path / "a.graphml")
    assert len(read) == 6
    assert nx.is_directed_acyclic_graph(read)
    with pytest.raises(lm.InputError, match="ends in"):
        write(coarse, tmp_path / "a.png")
    with pytest.raises(lm.InputError, match="6 device indices"):
        to_dot(coarse, devices=[0])


def test_the_command_line(tmp_path, capsys):
    out = str(tmp_path / "g.dot")
    assert main(["coarsen", "example:lenet", "--groups", "9", "-o", out]) == 0
    assert "-> 9 groups, no cycle" in capsys.readouterr().out
    assert main(["coarsen", "example:lenet", "--method", "x"]) == 2
    assert main(["coarsen", "example:lenet", "--option", "speed=3"]) == 2


@given(graph=op_graphs(max_ops=10), cluster=clusters(), data=st.data())
def test_refinement_never_makes_a_plan_worse(graph, cluster, data):
    problem = Problem.make(graph, cluster, as_costs(None, graph, cluster))
    sets = problem.graph.colocation
    device = st.integers(0, cluster.n_devices - 1)
    n_sets = int(sets.max()) + 1
    drawn = data.draw(st.lists(device, min_size=n_sets, max_size=n_sets))
    devices = np.array(drawn, dtype=np.int32)[sets]
    order = np.arange(problem.graph.n_ops, dtype=np.int32)
    before = judged(problem, Assignment(devices, order))
    after = polished(problem, before)
    assert after.schedule.makespan <= before.schedule.makespan or not before.fits
    assert after.fits or not before.fits


def test_what_repeats_is_grouped_in_all_layers():
    """Four layers of three ops: the heavy pair of each in one group, whatever layer it is in."""
    layers = np.arange(12)
    graph = fast.Graph(12, layers[:-1], layers[1:])
    op_time, sent = np.tile([1.0, 2.0, 3.0], 4), np.tile([1.0, 9.0, 1.0], 4)
    *joined, colors = fast.repeated_groups(fast.Weights(graph, op_time, sent), 1, [24.0, 17.0, 0.0])
    # The first op reads nothing, and nothing reads the last: colors of their own.
    inner = [colors[layer : 9 + layer : 3].tolist() for layer in (3, 4)]
    assert [len(set(group)) for group in inner] == [1, 1]
    assert len(set(colors.tolist())) == 5
    assert [len(set(level.tolist())) for level in joined] == [1, 4, 5]
    assert joined[1][4] == joined[1][5] == joined[1][7] != joined[1][3]


@given(graph=op_graphs(), cluster=clusters(), rounds=st.integers(0, 5))
def test_groups_of_what_repeats_get_finer_and_keep_to_their_limit(graph, cluster, rounds):
    problem = Problem.make(graph, cluster, as_costs(None, graph, cluster))
    levels = repeats_levels(problem, rounds)
    finer = repeats_levels(problem, rounds + 1)[-1]
    op_time, colors = problem.op_time, levels[-1]
    for share, level in zip(TUNING.repeats_shares, levels, strict=False):
        # A color is never split; a group of several keeps to the limit.
        assert len(set(zip(colors.tolist(), level.tolist(), strict=True))) == len(set(colors))
        for group in set(level.tolist()):
            inside = level == group
            if len(set(colors[inside])) > 1:
                assert op_time[inside].sum() <= share * op_time.sum() * (1 + 1e-9)
    assert len(set(zip(finer.tolist(), colors.tolist(), strict=True))) == len(set(finer))
    for color in set(colors.tolist()):
        assert len(set(op_time[colors == color])) == 1


def test_a_refinement_counts_its_visits():
    graph, cluster = example("lenet"), lm.Cluster.preset("4xV100-PCIe")
    plan = lm.place(graph, cluster, "round-robin")
    problem = plan.problem
    before = judged(problem, Assignment(plan.assignment.devices, plan.assignment.priority))
    levels = near_levels(problem)
    n_ops = problem.graph.n_ops
    none, few, many = (
        by_passes(problem, before, levels, per_op * n_ops) for per_op in (0, 100, 10**4)
    )
    assert none[0] is before
    assert none[1] == 0
    # The last pass is done with the op, and what comes after, that spend its budget.
    assert 0 < few[1] <= (100 + TUNING.around_pass + 2) * n_ops
    assert few[1] < many[1] < 10**4 * n_ops
    assert many[0].schedule.makespan <= few[0].schedule.makespan < before.schedule.makespan


def test_refine_is_an_option_of_every_method(tmp_path):
    graph, cluster = example("lenet"), lm.Cluster.preset("4xV100-PCIe")
    for method in ("celeritas", "round-robin", "m-topo"):
        plain = lm.place(graph, cluster, method)
        plan = lm.place(graph, cluster, method, refine=True)
        assert plan.makespan <= plain.makespan
        plan.save(tmp_path / "plan.json")
        again = lm.Plan.load(tmp_path / "plan.json")
        assert again.makespan == plan.makespan
        assert again.options["refine"] is True
    with pytest.raises(lm.InputError, match="refine is 'yes'"):
        lm.place(graph, cluster, refine="yes")


def test_coarseners_give_the_same_from_several_threads():
    from concurrent.futures import ThreadPoolExecutor

    graph = example("inception-v3")
    for method in METHODS:
        with ThreadPoolExecutor(4) as pool:
            run = pool.map(lambda _, m=method: lm.coarsen(graph, m, 150).mapping.tolist(), range(4))
            first, *others = run
        assert all(other == first for other in others)
