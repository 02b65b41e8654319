"""The bench of real plans: its figures, on runs that take exactly what they should."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
from folders import BENCHES
from ran import measured, pretended
from strategies import graph_of

import loadmaster as lm

sys.path.insert(0, str(BENCHES))
import truth_real

BRANCHES = graph_of(
    {"a": 1, **{f"{side}{i}": 3 for side in "lr" for i in range(3)}, "z": 1},
    [
        ("a", "l0", 100),
        ("a", "r0", 100),
        *((f"{side}{i}", f"{side}{i + 1}", 1000) for side in "lr" for i in range(2)),
        ("l2", "z", 5000),
        ("r2", "z", 5000),
    ],
)


def slowed(times, cluster, by):
    """A runner whose steps take so many times what the ops in them say."""
    spread = pretended(times, cluster)

    @contextmanager
    def ready(plan):
        with spread(plan) as session:

            def run(steps):
                seen = session(steps)
                return replace(seen, steps=replace(seen.steps, seconds=by * seen.steps.seconds))

            yield run

    return ready


@pytest.fixture(autouse=True)
def few_draws(monkeypatch):
    monkeypatch.setattr(truth_real, "DRAWS", 5)


def test_a_world_that_is_as_the_judge_has_it_is_predicted_exactly():
    truly, links = BRANCHES.time["*"], truth_real.cpus(2)
    case = truth_real.measure("exact", BRANCHES, pretended(truly, links), 4)
    assert case.plans == ("single", *truth_real.METHODS)
    assert truth_real.medians([case], "alone") == pytest.approx(np.zeros(6), abs=1e-4)
    assert case.predicted["alone"] == pytest.approx(case.measured)
    assert truth_real.tau(case.predicted["alone"], case.measured) == 1.0
    promised, kept = truth_real.kept_promises([case], "alone")
    assert promised == kept > 0
    text = truth_real.report([case])
    assert "| exact | auto |" in text
    assert "measured" in case.causes


def test_a_world_whose_senders_copy_is_predicted_with_what_that_costs():
    truly, links = BRANCHES.time["*"], truth_real.copying(truth_real.cpus(2))
    case = truth_real.measure("copying", BRANCHES, pretended(truly, links), 4)
    for source in ("single", "others"):
        assert truth_real.medians([case], source) == pytest.approx(np.zeros(6), abs=1e-3)
        assert case.predicted[source] == pytest.approx(case.measured, rel=1e-3)


def test_ops_that_take_longer_beside_a_busy_core_are_predicted_by_one_device_beside_itself():
    truly, links = BRANCHES.time["*"], truth_real.copying(truth_real.cpus(2))
    alone, beside = pretended(truly, links), pretended(1.25 * truly, links)

    def ready(plan):
        used = len(set(plan.devices.tolist()))
        return (alone if used == 1 and plan.cluster.n_devices == 2 else beside)(plan)

    case = truth_real.measure("beside", BRANCHES, ready, 4)
    assert case.predicted["single"] == pytest.approx(case.measured, rel=1e-3)
    spread = [i for i, plan in enumerate(case.plans) if plan in ("heft", "etf", "round-robin")]
    for i in spread:
        assert case.predicted["alone"][i] < 0.9 * case.measured[i]


def test_steps_that_take_longer_than_their_ops_say_are_off_by_that():
    truly, links = BRANCHES.time["*"], truth_real.cpus(2)
    case = truth_real.measure("slow", BRANCHES, slowed(truly, links, 1.25), 4)
    assert truth_real.medians([case], "alone") == pytest.approx(np.full(6, 0.2), abs=1e-4)


def test_a_busy_machine_is_refused_and_counts_in_no_figure():
    plans = {"single": lm.place(BRANCHES, truth_real.cpus(2), "single")}
    seen = measured(plans["single"], [0.1])
    late = replace(seen, steps=replace(seen.steps, delay=np.array([0.05])))
    truth_real.refuse_if_busy([seen, seen])
    with pytest.raises(truth_real.BusyError, match=r"50.0% of the time.*\(1 run of 2\)"):
        truth_real.refuse_if_busy([seen, late])
    case = truth_real.Case("late", 1, late.busy)
    assert "1 refused" in truth_real.report([case])
    assert "50.0% of the time" in truth_real.report([case])


def test_tau_counts_pairs_that_are_predicted_apart():
    assert truth_real.tau([1.0, 2.0, 4.0], [1.0, 3.0, 2.0]) == pytest.approx(1 / 3)
    assert truth_real.tau([1.0, 1.05, 2.0], [2.0, 1.0, 3.0]) == 1.0
    assert truth_real.tau([1.0, 1.05], [2.0, 1.0]) is None
