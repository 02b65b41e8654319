"""The bench of targets: its figures, on answers that are written by hand. Needs torch (no GPU)."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from folders import BENCHES

import loadmaster as lm

pytest.importorskip("torch", reason="needs PyTorch 2.5 or later")

sys.path.insert(0, str(BENCHES))
import truth_targets
from truth_targets import ADDED, SIZES, WAYS, Row, factors, in_order, measured, placed


def test_figures_of_cores_are_the_least_of_what_processes_answer():
    answers = {
        (kind, size): [] for kind in ("all_reduce", "all_gather", "message") for size in SIZES
    }
    for (_, size), steps in answers.items():
        seconds = 1e-3 + size / 1e9
        steps += [[(seconds, 0.5 * seconds), (seconds, 9.0)], [(9.0, seconds), (seconds, 9.0)]]
    answers["add", ADDED] = [[(1e-3, 1e-3), (2e-3, 1e-3)]]
    found = measured(answers)
    size = SIZES[-1]
    [sums] = [times for times in found.collectives if times.kind == "all_reduce"]
    assert sums.seconds[-1] == pytest.approx(1e-3 + size / 1e9)
    assert sums.busy[-1] == pytest.approx(sums.seconds[-1] / 2)
    cost = found.types[0].send_cost
    assert cost.latency + size / cost.bandwidth == pytest.approx(sums.busy[-1], rel=0.01)
    assert found.types[0].memory_bandwidth == pytest.approx(3 * ADDED / 2e-3)


def test_ops_add_up_to_the_bare_step_of_each_process():
    way = WAYS[1]
    cluster, graph = truth_targets.cpus(2), lm.read("example:lenet")
    times = np.where(graph.reduced.runs, 1e-5, 0.0)
    plan = placed(way, lm.place(graph, cluster, "single", times), times, cluster)
    grown = placed(way, plan, factors(plan, [1.0, 1.0]) * times, cluster)
    assert grown.schedule.device_busy == pytest.approx([1.0, 1.0])


@pytest.mark.parametrize(("least", "ordered"), [(12.0, 1), (9.0, 0)])
def test_only_pairs_that_are_predicted_apart_count(least, ordered):
    rows = [Row(WAYS[0], predicted, 1.0, (seen, seen)) for predicted, seen in ((10, 10), (10.5, 1))]
    assert in_order(rows) == (0, 0)
    assert in_order([rows[0], Row(WAYS[0], 11.5, 1.0, (least, least))]) == (ordered, 1)
    assert rows[1].error == pytest.approx(9.5)
