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
from loadmaster.strategies.pipelines.schedules import actions, windows  # noqa: E402
from loadmaster.systems.pipelining.write import SCHEDULES  # noqa: E402


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
        assert f"import PipelineStage, {SCHEDULES[schedule]}\n" in files[-1]
    assert_steps(files, "tower")


@pytest.mark.parametrize(("p", "m"), [(2, 8), (4, 4), (4, 12), (3, 7)])
def test_a_v_is_in_the_order_of_pytorch(p, m):
    from torch.distributed.pipelining.schedules import ScheduleZBVZeroBubble

    class Of(ScheduleZBVZeroBubble):
        def __init__(self):
            self.pp_group_size, self.num_stages, self._n_microbatches = p, 2 * p, m

    kinds = {"F": "F", "I": "B", "W": "W"}
    given = windows("zb-v", p, m, 2)
    for rank, device in enumerate(actions("zb-v", p, m, 2)):
        theirs = [a for a in Of()._calculate_single_rank_operations(rank) if a is not None]
        assert [(a.kind, given.stage(rank, a.virtual_stage), a.micro) for a in device] == [
            (kinds[a.computation_type.value], a.stage_index, a.microbatch_index) for a in theirs
        ]


def test_stages_in_a_v_come_back_to_the_rank_of_the_first():
    plan = lm.place(
        graph_of("tower", train=True),
        lm.Cluster.preset("2xV100-NVLink"),
        target="pipelining",
        micro_batches=4,
        schedule="zb-v",
    )
    stage, on = plan.recipe.stage_of(plan.graph), plan.running_devices
    of = dict(zip(stage[plan.program.serves].tolist(), on.tolist(), strict=True))
    assert of == {0: 0, 1: 1, 2: 1, 3: 0}
    file = lm.writers.pipelining(plan)
    assert "for index in (rank, STAGES - 1 - rank):" in file
    assert_steps([file], "tower")
