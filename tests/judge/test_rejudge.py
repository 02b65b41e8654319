"""The second judge of fuzzing notices what is wrong with a step."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rejudge import Meaning, Step, WrongError

import loadmaster as lm
from loadmaster.judge.problem import Problem
from loadmaster.judge.timeline import Transfers

#: ``a`` on d0 feeds ``b`` there and ``c`` on d1, which reads the parameter of ``b`` as well.
GRAPH = lm.OpGraph(
    {
        "name": ["w", "a", "b", "c"],
        "kind": ["parameter", "mm", "mm", "mm"],
        "param_bytes": [4, 0, 0, 0],
        "output_bytes": [0, 3, 2, 1],
        "workspace": [0, 0, 5, 0],
        "time": {"*": [0, 1e-3, 2e-3, 1e-3]},
    },
    {"src": [0, 1, 1, 0], "dst": [2, 2, 3, 3], "tensor": [0, 1, 1, 0], "bytes": [4, 3, 3, 4]},
)
CLUSTER = lm.Cluster.mesh(2, memory=100, bandwidth=1000.0)
PROBLEM = Problem.make(GRAPH, CLUSTER, lm.costs.estimate(GRAPH, CLUSTER))
SEEN = lm.simulate(GRAPH, CLUSTER, [0, 0, 0, 1])


def check(memory=SEEN.memory, **changed):
    line = replace(SEEN.timeline, **changed)
    Step(Meaning(GRAPH), CLUSTER, lm.Simulation(PROBLEM, line, memory)).check()


def test_what_the_simulator_saw_is_right():
    check()
    # The parameter, the output of a, that of b and its workspace; two copies and the output of c.
    assert SEEN.memory.peak.tolist() == [4 + 3 + 2 + 5, 4 + 3 + 1]


def shifted(column, at, by):
    moved = column.copy()
    moved[at] += by
    return moved


@pytest.mark.parametrize(
    ("wrong", "changed"),
    [
        ("does not take", {"finish": shifted(SEEN.finish, 3, 1e-3)}),
        ("late", {"start": shifted(SEEN.start, 3, -1e-3),
                  "finish": shifted(SEEN.finish, 3, -1e-3)}),
        ("two ops at once", {"start": shifted(SEEN.start, 2, -1e-3),
                             "finish": shifted(SEEN.finish, 2, -1e-3)}),
        ("starts before", {"start": shifted(SEEN.start, [1, 2], [2e-3, -1e-3]),
                           "finish": shifted(SEEN.finish, [1, 2], [2e-3, -1e-3])}),
        ("never sent", {"transfers": Transfers.none()}),
        ("nobody needs it", {"device": shifted(SEEN.devices, 3, -1)}),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(wrong, changed):
    with pytest.raises(WrongError, match=wrong):
        check(**changed)


def test_what_a_runtime_costs_is_judged_too():
    types = [lm.DeviceType("gpu", send_cost=lm.SendCost(1e-3, 1000.0))]
    cluster = lm.Cluster(CLUSTER.devices, CLUSTER.wiring, types, dispatch=lm.Dispatch(2e-3))
    problem = Problem.make(GRAPH, cluster, lm.costs.estimate(GRAPH, cluster))
    seen = lm.simulate(GRAPH, cluster, [0, 0, 0, 1])

    def judged(**changed):
        line = replace(seen.timeline, **changed)
        Step(Meaning(GRAPH), cluster, lm.Simulation(problem, line, seen.memory)).check()

    judged()
    sent, launched = seen.transfers, seen.timeline.launched
    early = replace(sent, copied=shifted(sent.copied, 1, 1e-3))
    for wrong, changed in (
        ("copied in", {"transfers": early}),
        ("launches, or none", {"launched": None}),
        ("at once", {"launched": shifted(launched, 2, -1e-3)}),
        ("launched before", {"launched": launched[[0, 2, 1, 3]]}),
        ("waits", {"launched": shifted(launched, 3, 1e-3)}),
    ):
        with pytest.raises(WrongError, match=wrong):
            judged(**changed)


def test_wrong_peaks_are_named():
    with pytest.raises(WrongError, match="peaks are"):
        check(replace(SEEN.memory, peak=shifted(SEEN.memory.peak, 1, 1)))
