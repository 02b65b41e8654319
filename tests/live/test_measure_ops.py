"""lm.measure_ops: what ops take while every device runs the whole step.

Needs torch (no GPU): without it these tests are skipped.
"""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch 2.5 or later")

from steps import made  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812

import loadmaster as lm  # noqa: E402
from loadmaster.running.measured.together import together  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore:devices share a core"),
    pytest.mark.filterwarnings("ignore:the machine was too busy"),
]

TWO = lm.Cluster.mesh(2, memory="1GiB", bandwidth=1e10, type="cpu")


@pytest.fixture(scope="module")
def tape():
    model, inputs, targets = made("experts")
    return lm.record(
        model, inputs, loss=F.cross_entropy, targets=targets, optimizer=torch.optim.Adam
    )


def test_every_op_that_runs_has_a_time_that_place_takes(tape):
    model = lm.measure_ops(tape, TWO, steps=2)
    graph, known = tape.graph, model.entries("cpu")
    assert set(known) == {
        name for name, is_free in zip(graph.names, graph.placeholder, strict=True) if not is_free
    }
    costs = model.costs(graph, TWO)
    assert (costs.time[~graph.placeholder & ~graph.view, 0] > 0).all()
    assert lm.place(graph, TWO, "heft", costs).makespan <= costs.time.sum() * 1.001


def test_devices_run_as_many_steps_at_the_same_time(tape):
    with together(tape, TWO) as run:
        first, second = run(3)
        more, _ = run(1)
    assert len(first.steps) == len(second.steps) == 3
    assert len(more.steps) == 1
    for seen in (first, second):
        assert seen.plan.cluster.n_devices == 1
        assert len(seen.plan.schedule.transfers) == 0
        # All that a step does on a device that sends nothing are its ops.
        assert (seen.op_seconds.sum(axis=1) <= seen.steps.seconds * (1 + 1e-9)).all()


def test_a_type_of_device_has_times_of_its_own(tape):
    kinds = [lm.DeviceType("fast"), lm.DeviceType("slow")]
    devices = [lm.Device("a", "fast", 1 << 30), lm.Device("b", "slow", 1 << 30)]
    links = [lm.Link("a", "b", 1e10, 0.0), lm.Link("b", "a", 1e10, 0.0)]
    model = lm.measure_ops(tape, lm.Cluster(devices, links, kinds), steps=1)
    assert set(model.device_types) == {"fast", "slow"}
    assert np.isfinite([e.mean for e in model.entries("slow").values()]).all()


def test_threads_and_bad_steps_are_refused(tape):
    with pytest.raises(lm.InputError, match="worker processes, not on thread:0"):
        lm.measure_ops(tape, TWO, on={"gpu0": "thread:0", "gpu1": "thread:0"})
    with pytest.raises(lm.InputError, match="steps"):
        lm.measure_ops(tape, TWO, steps=0)
