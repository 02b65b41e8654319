"""What fits is placed: peaks by hand, orders of one device, and every assignment enumerated."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import brief, clusters, graph_of, op_graphs

import loadmaster as lm
from loadmaster import fast
from loadmaster.judge.allowed import allowed_devices
from loadmaster.judge.assignment import Assignment
from loadmaster.judge.problem import Problem, ranks
from loadmaster.model.orders import frugal_order, program_order
from loadmaster.rules.binding import bind
from loadmaster.rules.constraints import EVERY
from loadmaster.strategies import least_overflow
from loadmaster.strategies.auto.seeds import LAST_RESORTS

LISTS = ["heft", "cpop", "peft", "etf", "getf", "m-etf", "m-sct", "dpos"]
GREEDY = [*LISTS, "celeritas", "order-place", "m-topo", "layers", "round-robin", "lc", "dsc", "glb"]


def mesh(*memory: int) -> lm.Cluster:
    devices = [lm.Device(f"d{i}", "t", m) for i, m in enumerate(memory)]
    links = [lm.Link(a.name, b.name, 1e3) for a in devices for b in devices if a != b]
    return lm.Cluster(devices, links)


#: ``a`` makes 2 bytes from the first parameter, ``b`` reads them and the second and makes 10.
TWO_OPS = lm.OpGraph(
    {
        "name": ["v", "w", "a", "b"],
        "kind": ["parameter", "parameter", "mm", "mm"],
        "param_bytes": [15, 9, 0, 0],
        "output_bytes": [0, 0, 2, 10],
        "time": {"*": [0, 0, 1.0, 1.0]},
    },
    {"src": [0, 2, 1], "dst": [2, 3, 3], "bytes": [15, 2, 9]},
)

#: Two layers; the first would take the only device that holds the second.
TWO_LAYERS = graph_of({"a": 1, "b": 1}, [("a", "b", 1)], param_bytes=[14, 20])

#: Eight branches of 8 bytes, each of which comes down to 1. Kahn's order holds all 64 at once.
BRANCHES = graph_of(
    {f"{kind}{i}": 1 for kind in "mr" for i in range(8)} | {"sum": 1},
    [(f"m{i}", f"r{i}", 8) for i in range(8)] + [(f"r{i}", "sum", 1) for i in range(8)],
)


@pytest.mark.parametrize("method", [*GREEDY, "auto", "mcmc", "pesto", "moirai", "ilp", "cpsat"])
def test_two_ops_that_fit_are_placed(method):
    if method == "cpsat":
        pytest.importorskip("ortools")
    plan = lm.place(TWO_OPS, mesh(24, 16, 18), method, **brief(method))
    if method == "auto":
        # It may cut ops, too.
        assert plan.fits
        assert plan.makespan <= lm.place(TWO_OPS, mesh(24, 16, 18), "heft").makespan
        return
    assert plan.devices.tolist() == [2, 0, 2, 0]
    assert plan.memory.peak.tolist() == [21, 0, 17]
    # What starts where auto ends has a placement by the dice among its seeds.
    assert (least_overflow.NOTE in plan.notes) == (method not in ("auto", "ilp", "cpsat"))


@pytest.mark.parametrize("method", [*GREEDY, "auto"])
def test_the_larger_of_two_layers_has_the_larger_device(method):
    plan = lm.place(TWO_LAYERS, mesh(24, 16), method, **brief(method))
    assert plan.devices.tolist() == [1, 0]


@pytest.mark.parametrize("method", ["ilp", "cpsat"])
def test_exact_methods_need_no_start_that_fits(method, monkeypatch):
    if method == "cpsat":
        pytest.importorskip("ortools")

    def nothing(_problem):
        raise lm.InfeasibleError("switched off")

    monkeypatch.setitem(LAST_RESORTS, "least overflow", nothing)
    plan = lm.place(TWO_OPS, mesh(24, 16, 18), method, time_limit=10)
    assert plan.memory.peak.tolist() == [21, 0, 17]
    assert least_overflow.NOTE not in plan.notes


def test_fit_finds_what_no_greedy_pass_does():
    found = lm.fit(TWO_OPS, mesh(24, 16, 18))
    assert found.fewest == 2
    assert found.remedies == ()


def test_a_refusal_says_what_is_proved():
    with pytest.raises(lm.InfeasibleError, match=r"proved: 34 B .*in memory for the whole step"):
        lm.place(TWO_LAYERS, mesh(17, 16), "heft")
    with pytest.raises(lm.InfeasibleError, match=r"proved: op 'b' .* needs 20 B at once"):
        lm.place(TWO_LAYERS, mesh(19, 19), "heft")
    # Resident bytes fit; no order does, but that takes more than a bound to see.
    with pytest.raises(lm.InfeasibleError) as error:
        lm.place(TWO_OPS, mesh(24, 16), "heft")
    assert str(error.value).startswith("no placement that fits was found")
    assert "Tried: heft, the same with best effort, a search" in str(error.value)


# -- orders of one device ---------------------------------------------------------------------


def test_orders_hold_what_they_hold_by_hand():
    graph = BRANCHES.reduced.graph
    orders = fast.m_topo(graph), program_order(graph), frugal_order(graph)
    # All eight and the first result; in turn, seven results, the last branch and its result.
    assert [fast.peak_bytes(graph, order)[0] for order in orders] == [65, 65, 16]


@pytest.mark.parametrize("method", ["single", *GREEDY, "auto"])
@pytest.mark.parametrize("n_devices", [1, 2])
def test_one_device_is_asked_in_every_order(method, n_devices):
    plan = lm.place(BRANCHES, mesh(*[16] * n_devices), method, **brief(method))
    assert plan.fits
    assert plan.single == pytest.approx(17e-3)
    assert "found none" not in plan.summary()


def test_an_order_that_fits_before_is_the_one_it_was():
    problem = lm.place(BRANCHES, mesh(65), "single").problem
    assert np.array_equal(problem.reduced.order_within(65), fast.m_topo(problem.graph))
    assert np.array_equal(problem.reduced.order_within(64), frugal_order(problem.graph))
    # Where none fits, the one that holds least.
    assert np.array_equal(problem.reduced.order_within(1), frugal_order(problem.graph))


# -- m-topo and pins --------------------------------------------------------------------------


def test_an_equal_share_is_no_limit_where_pins_leave_one_device():
    graph = graph_of({x: 1 for x in "abcd"}, param_bytes=[10] * 4)
    pins = lm.Constraints(pin={EVERY: "d0"})
    plan = lm.place(graph, mesh(100, 100), "m-topo", constraints=pins)
    assert plan.devices.tolist() == [0] * 4
    assert least_overflow.NOTE not in plan.notes
    with pytest.raises(lm.InfeasibleError, match="proved: 40 B of ops that only d0 may run"):
        lm.place(graph, mesh(39, 100), "m-topo", constraints=pins)


# -- all assignments --------------------------------------------------------------------------


def some_assignment_fits(problem: Problem) -> bool:
    """Whether any assignment fits in the program's order."""
    allowed, sets = allowed_devices(problem), problem.graph.colocation
    priority = ranks(program_order(problem.graph))
    return any(
        problem.verdict(Assignment(np.array(row, dtype=np.int32)[sets], priority)).fits
        for row in product(*map(np.flatnonzero, allowed))
    )


@given(data=st.data())
@settings(max_examples=30)
def test_what_some_assignment_fits_is_placed(data):
    graph = data.draw(op_graphs(max_ops=7))
    cluster = data.draw(clusters(max_devices=3))
    for d in range(cluster.n_devices):
        cluster = cluster.with_memory(data.draw(st.integers(8, 32)), d)
    names = st.sampled_from([device.name for device in cluster.devices])
    pin = data.draw(st.just({}) | st.fixed_dictionaries({"op0": names}))
    given_ = Problem.make(graph, cluster, lm.costs.estimate(graph, cluster))
    rules = lm.Constraints(pin=pin)
    if not some_assignment_fits(bind(given_, rules).problem):
        return
    method = data.draw(st.sampled_from(["auto", *GREEDY]))
    assert lm.place(graph, cluster, method, constraints=rules, **brief(method)).fits


@given(data=st.data())
@settings(max_examples=20)
def test_a_walk_holds_no_more_than_where_it_began_and_is_the_same_every_time(data):
    graph, cluster = data.draw(op_graphs(max_ops=8)), data.draw(clusters(max_devices=3, memory=16))
    problem = Problem.make(
        graph, cluster, lm.costs.estimate(graph, cluster), best_effort=True, seed=3
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(least_overflow, "FEW", 0)
        patch.setattr(least_overflow, "SIMULATIONS", 200)
        found, again = least_overflow.place(problem), least_overflow.place(problem)
    assert found.verdict.excess == again.verdict.excess
    assert np.array_equal(found.assignment.devices, again.assignment.devices)
    alone = lm.place(graph, cluster, "m-topo", on_oom="best_effort")
    assert found.verdict.excess <= max(alone.verdict.excess, 0) or cluster.n_devices == 1


def test_auto_looks_where_the_methods_look_before_it_says_no():
    graph, roomy = lm.read("example:rnnlm"), lm.Cluster.preset("4xV100-PCIe")
    peak, _ = lm.fast.peak_bytes(graph.reduced.graph)
    cluster = roomy.with_memory(math.ceil(1.5 * peak / 4))
    best = lm.place(graph, cluster, "auto", effort=0.02)
    assert best.memory.overflow is None
    assert best.makespan <= lm.place(graph, cluster, "layers").makespan
