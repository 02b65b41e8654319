"""Stages of several devices: shards and replicas inside of the stages of a pipeline."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import loadmaster as lm
from loadmaster.cli import main
from loadmaster.model.micro import Micro
from loadmaster.model.recipe import DeviceMesh
from loadmaster.plans.recipe_tables import module_rows
from loadmaster.plans.rejudged import whole_problem
from loadmaster.plans.relabel import relabelled
from loadmaster.plans.specs import recipe_in_words
from loadmaster.strategies.pipelines.piped import piped, with_recipe
from loadmaster.transforms.layout import Layout
from loadmaster.writers.pictures.blocks import Blocks

#: What is shared inside of a stage, by name.
INSIDE = {
    "replicas": {"labels": {"dp": {"**": "batch"}}},
    "sharded updates": {"labels": {"dp": {"**": "batch"}}, "shard_state": {"**": "parameters"}},
    "columns": {"labels": {"dp": {"h.*.fc aten.addmm.default": "column"}}},
}


@pytest.fixture(scope="module")
def graph() -> lm.OpGraph:
    return lm.read("example:gpt3-330m")


@pytest.fixture(scope="module")
def cluster() -> lm.Cluster:
    return lm.Cluster.preset("4xV100-PCIe")


@pytest.fixture(scope="module")
def whole(graph: lm.OpGraph, cluster: lm.Cluster) -> lm.Plan:
    """Two stages of one device each."""
    options = {"micro_batches": 4, "stages": 2, "schedule": "1f1b"}
    return lm.place(graph, cluster, "pipeline", devices_per_stage=1, **options)


@pytest.fixture(scope="module", params=INSIDE)
def plan(request, graph: lm.OpGraph, cluster: lm.Cluster, whole: lm.Plan) -> lm.Plan:
    names = ("gpu3", "gpu1", "gpu0", "gpu2")
    recipe = lm.Recipe(
        DeviceMesh.of({"pp": 2, "dp": 2}, names),
        stages=whole.recipe.stages,
        micro=Micro(4),
        **INSIDE[request.param],
    )
    return lm.place(graph, cluster, recipe=recipe)


def test_each_stage_is_on_its_slice_of_the_mesh(plan: lm.Plan) -> None:
    program = plan.program
    stage = plan.recipe.stage_of(plan.graph)[program.serves]
    slices = np.array([[3, 1], [0, 2]])
    of_mesh = program.rank >= 0
    assert of_mesh.all()
    assert (plan.running_devices == slices[stage, program.rank]).all()
    # Parameters weigh on the devices of their stage alone.
    held = np.bincount(plan.running_devices, program.graph.param_bytes.astype(float), 4)
    of_stage = np.bincount(
        plan.recipe.stage_of(plan.graph), plan.graph.param_bytes.astype(float), 2
    )
    share = 1 if "shard_state" in plan.recipe.to_document() else 2
    for at, devices in enumerate(slices):
        assert held[devices].sum() == pytest.approx(share * of_stage[at], rel=0.02 * (share == 1))


def test_all_of_every_op_is_done(plan: lm.Plan) -> None:
    program = plan.program
    mine = ~program.own
    done = np.bincount(program.serves[mine], program.share[mine], plan.graph.n_ops)
    copies = np.bincount(program.serves[mine], minlength=plan.graph.n_ops)
    labels = plan.layout.labels[0]
    many = np.bincount(program.serves[mine & (program.micro >= 0)], minlength=plan.graph.n_ops) > 0
    of_gradients = np.isclose(done, copies)
    cut = (labels > 0) & many & ~of_gradients
    assert cut.sum() > 20
    assert done[cut] == pytest.approx(1.0)
    flops = np.bincount(program.serves[mine], program.graph.flops[mine].astype(float))
    assert (flops[cut] == plan.graph.flops[cut]).all()


def test_collectives_are_among_the_devices_of_one_stage(plan: lm.Plan) -> None:
    together = plan.schedule.collectives
    assert len(together)
    assert {frozenset(devices) for devices in together.devices} <= {
        frozenset(together.devices[0]), frozenset({0, 2}), frozenset({1, 3})
    }  # fmt: skip
    assert all(set(devices) in ({0, 2}, {1, 3}) for devices in together.devices)


def test_a_device_holds_as_many_micro_batches_as_its_stage_may(plan: lm.Plan) -> None:
    alive = Blocks.of(plan).alive
    assert alive[[3, 1]].tolist() == [2, 2]
    assert alive[[0, 2]].tolist() == [1, 1]


def test_a_tied_gradient_crosses_once(plan: lm.Plan) -> None:
    """That of the table, from the stage of the head to the stage of the embedding."""
    graph, sent = plan.program.graph, plan.schedule.transfers
    of = plan.program.micro[sent.op] < 0
    is_gradient = np.array([graph.phases[op] == "b" for op in sent.op.tolist()])
    whole_table = plan.graph.param_bytes.max()
    crossing = sent.bytes[is_gradient & (of | plan.program.own[sent.op])]
    assert crossing.sum() <= 2 * whole_table


def test_the_recipe_comes_back_and_is_told(plan: lm.Plan, tmp_path: Path, capsys) -> None:
    recipe = plan.recipe
    assert lm.Recipe.from_toml(recipe.to_toml()) == recipe
    assert lm.Recipe.from_document(recipe.to_document()) == recipe
    plan.save(tmp_path / "plan.json")
    loaded = lm.Plan.load(tmp_path / "plan.json")
    assert loaded.recipe == recipe
    assert loaded.layout.labels.tolist() == plan.layout.labels.tolist()
    words = recipe_in_words(loaded)
    assert words.startswith("pp 2 x dp 2; pp: stage 0 ")
    assert "dp: " in words
    assert "4 micro-batches" in loaded.summary()
    head, rows = module_rows(loaded)
    assert head[3:] == ("pp (2)", "dp (2)")
    assert any("stage 1" in row[3] for row in rows)
    assert main(["recipe", str(tmp_path / "plan.json")]) == 0
    assert "stage 0" in capsys.readouterr().out


def test_an_op_is_explained_by_its_stage_and_its_label(plan: lm.Plan) -> None:
    ops = [op for op, kind in enumerate(plan.graph.kinds) if kind == "aten.addmm.default"]
    said = plan.explain(plan.graph.names[ops[2]])
    assert said.label[0].startswith("stage 0 of 2, with 4 micro-batches")
    assert said.label[1].startswith("on dp (2 devices): ")
    assert "of its stage" in said.constraint
    parts = {part.device for part in said.parts}
    assert parts == {"gpu3", "gpu1"}


def test_another_label_is_tried_in_the_pipeline(graph, cluster, whole) -> None:
    recipe = lm.Recipe(
        {"pp": 2, "dp": 2},
        {"dp": {"**": "batch"}},
        stages=whole.recipe.stages,
        micro=Micro(4),
    )
    plan = lm.place(graph, cluster, recipe=recipe)
    op = next(i for i, kind in enumerate(graph.kinds) if kind == "aten.addmm.default")
    found = {one.word: one for one in relabelled(plan, op)}
    wanted = found["whole"]
    labels = plan.layout.labels.copy()
    like = [i for i, m in enumerate(graph.modules) if m.endswith(graph.modules[op][3:])]
    assert wanted.ops <= len(like)
    assert wanted.seconds > 0
    assert labels.shape[0] == 1


def test_what_was_made_of_a_layout_has_its_recipe(graph, cluster, whole) -> None:
    recipe = lm.Recipe(
        {"pp": 2, "dp": 2}, {"dp": {"**": "batch"}}, stages=whole.recipe.stages, micro=Micro(4)
    )
    plan = lm.place(graph, cluster, recipe=recipe)
    layout = Layout.of(graph, recipe)
    made_of = recipe.stage_of(graph), np.array([[0, 1], [2, 3]]), recipe.micro, (), layout
    found = with_recipe(piped(whole_problem(plan), *made_of), *made_of)
    again = lm.place(graph, cluster, recipe=found.problem.program.recipe)
    assert found.verdict.step_time == again.makespan == plan.makespan


def test_buckets_are_of_one_stage(graph, whole) -> None:
    """Else gradients would be summed, and updates made, on devices of another stage."""
    recipe = lm.Recipe(
        {"pp": 2, "dp": 2},
        {"dp": {"**": "batch"}},
        shard_state={"**": "optimizer"},
        stages=whole.recipe.stages,
        micro=Micro(4),
        bucket_bytes="10GB",
    )
    program = lm.transforms.shard(graph, recipe)
    stage, made = recipe.stage_of(graph), program.graph
    buckets = [op for op in np.flatnonzero(made.is_member) if "gradients" in made.collectives[op]]
    assert buckets
    for op in buckets:
        read = {int(stage[program.serves[s]]) for s in made.src[made.dst == op].tolist()}
        assert read == {int(stage[program.serves[op]])}
    alone = lm.transforms.shard(graph, replace(recipe.inside))
    labels = {made.collectives[op] for op in buckets}
    assert len(labels) > sum("gradients" in c for c in set(alone.graph.collectives))


def test_more_micro_batches_than_a_replica_has_samples_are_refused(graph, cluster, whole) -> None:
    recipe = lm.Recipe(
        {"pp": 2, "dp": 2}, {"dp": {"**": "batch"}}, stages=whole.recipe.stages, micro=Micro(8)
    )
    with pytest.raises(lm.InputError, match="a replica with 4 samples"):
        lm.place(graph, cluster, recipe=recipe)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"labels": {"pp": {"**": "row"}}}, "labels has the axis 'pp', which is that of the"),
        ({"parameters": {"pp": {"**": "flat"}}}, "parameters has the axis 'pp'"),
        ({"labels": {"dp": {"**": "auto"}}}, "leaves labels to a solver"),
        ({"rest": "auto"}, "leaves labels to a solver"),
        ({"stages": {"**": 2}}, "stage"),
        ({"overrides": {"matmul": "gpu1"}}, "overrides has 'matmul', and the recipe has micro"),
        ({"mesh": {"axes": {"pp": 2, "dp": 2}, "shares": {"pp": [2, 1]}}}, "has shares"),
        ({"mesh": {"axes": {"pp": 2}}, "labels": {}, "shard_state": {"**": "optimizer"}}, "second"),
    ],
)
def test_recipes_that_cannot_be_are_refused(changes: dict, message: str) -> None:
    given = {
        "mesh": {"axes": {"pp": 2, "dp": 2}},
        "labels": {"dp": {"**": "row"}},
        "micro": {"n": 2},
        **changes,
    }
    with pytest.raises(lm.InputError, match=message):
        lm.Recipe.from_document(given)


def test_two_stages_of_a_device_take_micro_batches_in_turn(graph, cluster) -> None:
    options = {"micro_batches": 4, "stages": 2, "schedule": "interleaved-1f1b"}
    whole = lm.place(graph, cluster, "pipeline", devices_per_stage=1, **options)
    assert whole.recipe.micro.virtual == 2
    recipe = replace(
        whole.recipe, mesh=DeviceMesh.of({"pp": 2, "dp": 2}), labels={"dp": {"**": "batch"}}
    )
    plan = lm.place(graph, cluster, recipe=recipe)
    stage = recipe.stage_of(graph)[plan.program.serves]
    assert set(stage.tolist()) == {0, 1, 2, 3}
    assert (plan.running_devices == 2 * (stage % 2) + plan.program.rank).all()
    assert plan.makespan < whole.makespan
