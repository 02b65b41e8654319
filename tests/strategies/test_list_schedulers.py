"""List schedulers and cluster schedulers: the papers' example, the rules, memory and contention."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from conftest import example
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import clusters, graph_of, ms_mesh, op_graphs, tried, v100_mesh

import loadmaster as lm
from loadmaster import fast
from loadmaster.base.errors import InfeasibleError, InputError
from loadmaster.judge.assignment import Assignment
from loadmaster.judge.problem import Problem
from loadmaster.judge.simulation import as_costs
from loadmaster.strategies import METHODS
from loadmaster.strategies.attempts import Outcome
from loadmaster.strategies.candidate import judged
from loadmaster.strategies.groups.mapping import guided_load_balancing
from loadmaster.strategies.lists import cpop, etf, heft, peft
from loadmaster.strategies.lists.listing import no_slower_than_one

#: Those that take ``contention``, and those that map groups.
LISTED = ["heft", "cpop", "peft", "etf", "m-etf", "dpos"]
MAPPED = ["lc", "dsc", "glb"]


def problem_of(graph: lm.OpGraph, cluster: lm.Cluster) -> Problem:
    return Problem.make(graph, cluster, as_costs(None, graph, cluster))


# -- the example of Topcuoglu, Hariri and Wu (2002), Fig. 2 ------------------------------------

COSTS = [
    [14, 16, 9],
    [13, 19, 18],
    [11, 13, 19],
    [13, 8, 17],
    [12, 13, 10],
    [13, 16, 9],
    [7, 15, 11],
    [5, 11, 14],
    [18, 12, 20],
    [21, 7, 16],
]
SENT = {
    (1, 2): 18,
    (1, 3): 12,
    (1, 4): 9,
    (1, 5): 11,
    (1, 6): 14,
    (2, 8): 19,
    (2, 9): 16,
    (3, 7): 23,
    (4, 8): 27,
    (4, 9): 23,
    (5, 9): 13,
    (6, 8): 15,
    (7, 10): 17,
    (8, 10): 11,
    (9, 10): 13,
}


@pytest.fixture(scope="module")
def classic() -> Problem:
    """Ten tasks, a device of its own type per processor, a byte per ms and a tensor per edge."""
    ops = {
        "name": [f"n{i}" for i in range(1, 11)],
        "time": {f"p{k + 1}": [row[k] * 1e-3 for row in COSTS] for k in range(3)},
    }
    edges = {
        "src": [u - 1 for u, _ in SENT],
        "dst": [v - 1 for _, v in SENT],
        "bytes": list(SENT.values()),
        "tensor": list(range(len(SENT))),
    }
    devices = [lm.Device(f"P{k}", f"p{k}", 10**6) for k in (1, 2, 3)]
    links = [lm.Link(a.name, b.name, 1000.0) for a in devices for b in devices if a != b]
    return problem_of(lm.OpGraph(ops, edges), lm.Cluster(devices, links))


def test_heft_takes_80_for_the_example_of_its_paper(classic):
    found = heft.place(classic, rounds=1, contention=False)
    assert found.assignment.estimate == pytest.approx(80e-3)
    # The paper's Fig. 3 (a).
    assert (found.assignment.devices + 1).tolist() == [3, 1, 3, 2, 3, 2, 3, 1, 2, 2]


def test_cpop_takes_86_for_the_example_of_its_paper(classic):
    found = cpop.place(classic, contention=False)
    assert found.assignment.estimate == pytest.approx(86e-3)
    # Fig. 3 (b): the critical path 1, 2, 9, 10 on P2.
    assert (found.assignment.devices[[0, 1, 8, 9]] + 1).tolist() == [2, 2, 2, 2]


@pytest.mark.parametrize("place", [heft.place, cpop.place, peft.place, etf.place])
def test_without_contention_the_estimate_is_what_the_simulator_finds(classic, place):
    found = place(classic, contention=False)
    seen = classic.simulate(
        found.assignment.devices, found.assignment.priority, policy="fixed", contention=False
    )
    assert seen.makespan == found.assignment.estimate


def test_more_rounds_are_no_slower(classic):
    one, six = (heft.place(classic, rounds=r).schedule.makespan for r in (1, 6))
    assert six <= one


# -- contention ------------------------------------------------------------------------------


def one_port(n_devices: int) -> lm.Cluster:
    """V100s of which each sends or receives one tensor at a time."""
    mesh = v100_mesh(n_devices)
    links = [
        lm.Link(a.name, b.name, 12e9, 1e-5, (f"port {a.name}", f"port {b.name}"))
        for a in mesh.devices
        for b in mesh.devices
        if a != b
    ]
    return lm.Cluster(mesh.devices, links, types=mesh.types)


def mixed(graph: lm.OpGraph) -> tuple[lm.Cluster, np.ndarray]:
    """Two devices of each of two types, the second twice as slow; and costs on them."""
    devices = [lm.Device(f"d{i}", ("quick", "slow")[i // 2], 2**40) for i in range(4)]
    links = [lm.Link(a.name, b.name, 12e9, 1e-5) for a in devices for b in devices if a != b]
    seconds = as_costs(None, graph, v100_mesh(1)).time[:, :1]
    return lm.Cluster(devices, links), seconds * np.array([1.0, 2.0])


@pytest.mark.parametrize("kind", ["equal", "one-port", "mixed"])
@pytest.mark.parametrize("name", ["lenet", "alexnet", "rnnlm"])
def test_plans_are_valid_steady_and_no_slower_than_one_device(name, kind):
    graph = example(name)
    costs = None
    if kind == "mixed":
        cluster, costs = mixed(graph)
    else:
        cluster = v100_mesh(4) if kind == "equal" else one_port(4)
    alone = lm.place(graph, cluster, "single", costs)
    for method in [*LISTED, *MAPPED]:
        plan = lm.place(graph, cluster, method, costs)
        assert plan.fits
        assert plan.lower_bound <= plan.makespan * (1 + 1e-9)
        assert plan.makespan <= alone.makespan
        if any(note.startswith("everything is on ") for note in plan.notes):
            assert plan.makespan == alone.makespan
            assert plan.devices.tolist() == alone.devices.tolist()
        again = lm.place(graph, cluster, method, costs)
        assert again.devices.tolist() == plan.devices.tolist()
        assert again.priority.tolist() == plan.priority.tolist()


def test_where_sending_is_dear_everything_is_on_one_device_and_the_plan_says_so():
    # Two chains that would share two devices, did 1000 ms of sending not stand against 2 of work.
    graph = graph_of(
        {"a": 1, "b": 1, "c": 1, "d": 1},
        [("a", "b", 1000), ("a", "c", 1000), ("b", "d", 1000), ("c", "d", 1000)],
    )
    for method in [*LISTED, *MAPPED]:
        plan = lm.place(graph, ms_mesh(2), method)
        assert plan.makespan == pytest.approx(4e-3)
        assert set(plan.devices.tolist()) == {0}


def test_a_split_slower_than_one_device_gives_way_to_it_and_the_plan_says_so():
    graph = graph_of({"a": 1, "b": 1}, [("a", "b", 4)])
    problem = problem_of(graph, ms_mesh(2))
    split = judged(problem, Assignment(np.array([0, 1], np.int32), np.array([0, 1], np.int32)))
    found = no_slower_than_one(problem, Outcome(split, 1.0))
    assert found.assignment.devices.tolist() == [0, 0]
    assert found.notes == ("everything is on gpu0: the best split found takes 3 times as long",)
    nothing = no_slower_than_one(problem, Outcome(None, 0.2, InfeasibleError("no room")))
    assert nothing.notes == ("everything is on gpu0: no split that fits was found",)


def test_best_effort_takes_the_split_that_fits_before_one_device_that_does_not():
    graph = graph_of({"a": 1, "b": 1}, [("a", "b", 4)], param_bytes=[6, 6])
    problem = replace(problem_of(graph, ms_mesh(2, memory=10)), best_effort=True)
    split = judged(problem, Assignment(np.array([0, 1], np.int32), np.array([0, 1], np.int32)))
    assert split.fits
    assert no_slower_than_one(problem, Outcome(split, 1.0)) is split


@pytest.mark.parametrize("method", LISTED)
def test_the_papers_model_may_be_slower_than_one_device(method):
    """Eight ops read 10 bytes each of one op: unlimited channels hide that they queue."""
    ops = {"a": 1} | {f"r{i}": 12 for i in range(8)}
    edges = [("a", f"r{i}", 10, i) for i in range(8)]
    devices = [lm.Device(f"d{i}", "gpu", 10**6) for i in range(8)]
    # All that leaves d0 goes through one port.
    links = [
        lm.Link(a.name, b.name, 1000.0, 0.0, (f"port {a.name}",))
        for a in devices
        for b in devices
        if a != b
    ]
    cluster = lm.Cluster(devices, links)
    graph = graph_of(ops, edges)
    blind = lm.place(graph, cluster, method, contention=False)
    aware = lm.place(graph, cluster, method)
    assert aware.makespan <= blind.makespan


# -- memory ----------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [1.05, 1.2])
@pytest.mark.parametrize("name", ["lenet", "alexnet", "vgg19"])
def test_in_tight_memory_plans_fit_or_say_op_device_and_bytes(name, share):
    graph = example(name)
    reduced = graph.reduced.graph
    needed, _ = fast.peak_bytes(reduced, fast.m_topo(reduced))
    cluster = v100_mesh(4, int(needed * share / 4))
    for method in [*LISTED, *MAPPED]:
        plan, error = tried(partial(lm.place, graph, cluster, method))
        if error is not None:
            ((device, short), *_) = error.shortfall.items()
            assert device in str(error)
            assert f"{short} byte" in str(error)
            assert any(f'"{op}"' in str(error) or f"'{op}'" in str(error) for op in graph.names)
        else:
            assert plan.fits
        effort = lm.place(graph, cluster, method, on_oom="best_effort")
        assert effort.devices.shape == (graph.n_ops,)


@pytest.mark.parametrize("memory", ["dynamic", "static"])
@pytest.mark.parametrize("method", [*LISTED, *MAPPED])
@given(data=st.data())
@settings(max_examples=25)
def test_drawn_plans_fit_and_keep_sets_together_and_ops_on_types_they_allow(method, memory, data):
    graph = data.draw(op_graphs())
    cluster = data.draw(clusters(memory=data.draw(st.sampled_from([10, 16, 24, 48, 10**6]))))
    plan, error = tried(lambda: lm.place(graph, cluster, method, memory=memory))
    if error is not None:
        assert all(short > 0 for short in error.shortfall.values())
        plan = lm.place(graph, cluster, method, memory=memory, on_oom="best_effort")
    else:
        assert plan.fits
        assert (plan.memory.peak <= plan.memory.capacity).all()
    # In place ops and views included: the simulator takes no placement that breaks a rule.
    again = lm.simulate(graph, cluster, plan.devices, plan.priority, plan.policy, costs=plan.costs)
    assert again.makespan == plan.makespan
    for label in set(graph.colocation) - {"", None}:
        used = {
            d
            for d, own in zip(plan.devices.tolist(), graph.colocation, strict=True)
            if own == label
        }
        assert len(used) == 1


def balanced(group: list[int], memory: int, taken: int = 0) -> list[int]:
    """Devices of four ops of 4, 3, 2 and 1 ms apart from each other, in groups, on two devices."""
    problem = problem_of(graph_of({"a": 4, "b": 3, "c": 2, "d": 1}), ms_mesh(2))
    bytes_ = np.full(4, taken, dtype=np.uint64)
    capacity = np.full(2, memory, dtype=np.uint64)
    lead = np.arange(4, dtype=np.int32)
    return guided_load_balancing(
        problem, np.array(group, np.int32), lead, bytes_, capacity
    ).tolist()


def test_groups_go_where_their_load_is_done_first():
    # 4 against 3; 2 is done at 5 on the second, then 1 at 5 on the first.
    assert balanced([0, 1, 2, 3], 10) == [0, 1, 1, 0]
    # 4 + 1 first, then 3 and 2 elsewhere.
    assert balanced([0, 1, 1, 0], 10) == [0, 1, 1, 0]
    assert balanced([0, 0, 0, 0], 10) == [0, 0, 0, 0]


def test_a_group_without_room_is_taken_apart():
    # 12 of 10 bytes together; op by op 4 + 1 and 3 + 2.
    assert balanced([0, 0, 0, 0], 10, taken=3) == [0, 1, 1, 0]
    # Where two fill a device, the others stay whole.
    assert balanced([0, 0, 1, 1], 6, taken=3) == [0, 0, 1, 1]
    with pytest.raises(InfeasibleError, match=r"op 'c'.* needs 3 bytes.* 2 bytes, on gpu0: 1 byte"):
        balanced([0, 0, 0, 0], 5, taken=3)


# -- options ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("heft", {"rounds": 0}, "rounds is 0"),
        ("heft", {"rounds": 1.5}, "rounds is 1.5"),
        ("heft", {"rounds": "2"}, "rounds is '2'"),
        ("cpop", {"rounds": 1}, "'cpop' has no option 'rounds'; there are memory, contention"),
        ("lc", {"contention": False}, "'lc' has no option 'contention'; there are memory"),
        ("glb", {"max_ops": 0}, "max_ops"),
        *((m, {"memory": "x"}, "memory is 'x': wants one of") for m in [*LISTED, *MAPPED]),
    ],
)
def test_options_of_list_schedulers_are_checked(method, options, message):
    graph = graph_of({"a": 1, "b": 1}, [("a", "b", 4)])
    with pytest.raises(InputError, match=message):
        lm.place(graph, ms_mesh(2), method, **options)


def test_every_method_here_is_listed():
    assert {*LISTED, *MAPPED} <= set(METHODS)
