"""PyTorch's own schedules run what is written for them, on four processes of gloo.

Needs torch (no GPU): without it these tests are skipped.
"""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch 2.5 or later")

from drawn_steps import DrawnStep, drawn_steps, gradients  # noqa: E402
from gloo_steps import on_processes  # noqa: E402
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from runs_pipelining import assert_steps, in_one_process, joined, step_of  # noqa: E402
from target_models import graph_of  # noqa: E402

import loadmaster as lm  # noqa: E402
from loadmaster.model.micro import NAMED  # noqa: E402
from loadmaster.strategies.pipelines.schedules import actions, windows  # noqa: E402
from loadmaster.systems.pipelining.write import SCHEDULES  # noqa: E402

GPUS = lm.Cluster.preset("4xV100-PCIe")


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


@settings(max_examples=12)
@given(drawn_steps(), st.integers(2, 4))
def test_stages_of_drawn_models_have_the_gradients_of_the_whole(step, stages):
    graph = lm.capture(**step.captured)
    options = {"stages": stages, "micro_batches": 2}
    plan = lm.place(graph, GPUS, target="pipelining", **options)
    expected = step.whole()
    module = step.module()
    losses, _ = in_one_process(lm.writers.pipelining(plan), module, step.batch, step.loss_of)
    loss = torch.stack(losses).mean()
    loss.backward()
    torch.testing.assert_close((loss.detach(), gradients(module)), expected, rtol=1e-4, atol=1e-6)


#: Experts, a checkpoint and skips behind frozen layers; names, dictionaries, a loss of its own.
FROZEN = DrawnStep(("plain", "custom", "experts", "checkpoint", "named"), *[True] * 5, frozen=2)
TRAINED = DrawnStep(("scaled", "dictionary", "experts", "custom", "named"), *[True] * 5, frozen=0)


@pytest.mark.parametrize(("step", "schedule"), [(FROZEN, "1f1b"), (TRAINED, "zero-bubble")])
def test_stages_of_modules_as_people_write_them_run_on_processes(step, schedule):
    graph = lm.capture(**step.captured)
    options = {"stages": 4, "micro_batches": 4, "schedule": schedule}
    plan = lm.place(graph, GPUS, target="pipelining", **options)
    written = lm.writers.pipelining(plan)
    found = joined(on_processes(4, step_of, written, step))
    loss, expected = step.whole()
    torch.testing.assert_close((found["loss"], found["gradients"]), (loss, expected))


def test_zero_bubble_schedules_are_refused_where_something_is_recomputed():
    graph = lm.capture(**FROZEN.captured)
    with pytest.raises(lm.InfeasibleError, match=r"zero-bubble schedules .* recomputed"):
        lm.place(graph, GPUS, target="pipelining", schedule="zb-v")
