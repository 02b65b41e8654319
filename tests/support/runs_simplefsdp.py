"""What is written for SimpleFSDP, run on processes of gloo."""

from __future__ import annotations

from gloo_steps import assert_same, functions, on_processes, whole_step
from runs_fsdp import step
from target_models import built


def run(case, plan, written):
    """A step by the written file is that of the model as it is."""
    expected = whole_step(built(case["model"]))
    for one in on_processes(functions(written)["PROCESSES"], step, written, case["model"]):
        assert_same(one, expected)
