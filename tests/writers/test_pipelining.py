"""PyTorch's own schedules run what is written for them, on four processes of gloo.

Needs torch (no GPU): without it these tests are skipped.
"""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch 2.5 or later")

from runs_pipelining import assert_steps  # noqa: E402
from target_models import graph_of  # noqa: E402

import loadmaster as lm  # noqa: E402
from loadmaster.model.micro import NAMED  # noqa: E402
from loadmaster.writers.targets.torch_pipelining import SCHEDULES  # noqa: E402


def test_a_step_by_each_schedule_has_the_numbers_of_the_whole_model():
    files = []
    for schedule in NAMED:
        plan = lm.place(
            graph_of("tower", train=True),
            lm.Cluster.preset("4xV100-PCIe"),
            target="pipelining",
            stages=4,
            micro_batches=4,
            schedule=schedule,
        )
        files.append(lm.writers.pipelining(plan))
        assert f"import {SCHEDULES[schedule]}," in files[-1]
    assert_steps(files, "tower")
