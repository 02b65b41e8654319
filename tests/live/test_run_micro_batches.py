"""Micro-batches that run, piece by piece and in stages: the loss and gradients of the whole batch.

Needs torch (no GPU): without it these tests are skipped.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch 2.5 or later")

from labels import drawn  # noqa: E402
from pipelined import plan_of  # noqa: E402
from steps import differing  # noqa: E402
from test_run_replicas import off, one_thread, taped  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812

import loadmaster as lm  # noqa: E402
from loadmaster.dimensions.dimensions import Dimensions  # noqa: E402
from loadmaster.judge.problem import Problem  # noqa: E402
from loadmaster.model.micro import Micro  # noqa: E402
from loadmaster.model.recipe import DeviceMesh, MeshAxis  # noqa: E402
from loadmaster.running.parallel.one_micro_batch import MicroBatches  # noqa: E402
from loadmaster.running.parallel.transformed import transformed  # noqa: E402
from loadmaster.running.run import started  # noqa: E402
from loadmaster.running.tape.replay import Replay  # noqa: E402
from loadmaster.strategies.pipelines.lines import lines  # noqa: E402
from loadmaster.strategies.pipelines.piped import piped  # noqa: E402
from loadmaster.strategies.simple.data_parallel import in_best_order  # noqa: E402
from loadmaster.strategies.simple.homes import where_allowed  # noqa: E402
from loadmaster.transforms import micro_batches, replicate  # noqa: E402
from loadmaster.transforms.layout import Layout  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore:devices share a core"),
    pytest.mark.filterwarnings("ignore:the machine was too busy"),
]

__all__ = ["one_thread"]


def check(found, alone, tolerance=1e-4):
    """The loss, all gradients and all updated parameters are those of the whole batch."""
    assert {"loss", *(name for name in alone if name.startswith(("gradient", "parameter")))} <= set(
        found
    )
    for name in alone:
        assert off(found[name], alone[name]) < tolerance, name


@pytest.mark.parametrize("rows", [(2, 2, 2, 2), (3, 3, 2)])
@pytest.mark.parametrize("name", ["tied", "BERT-mini", "LSTM", "cells", "experts"])
def test_micro_batches_have_the_loss_and_the_gradients_of_the_batch(name, rows):
    tape, _ = taped(name)
    program = micro_batches(tape.graph, len(rows), rows)
    check(transformed(program, tape).replay(2), tape.replay(2))


def test_other_inputs_than_those_recorded():
    tape, (_, inputs, targets) = taped("tied")
    given = (inputs + 1) % 50, (targets + 1) % 50
    program = micro_batches(tape.graph, 4)
    found = transformed(program, tape, tape.given(*given)).replay(1)
    check(found, tape.replay(1, given[0], targets=given[1]))


class Convolutions(nn.Module):
    """A small convolutional net with batch norms, which the head does not wait for in eval mode."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.c, self.o = nn.Conv2d(8, 8, 3, 2), nn.Linear(8, 10)

    def forward(self, x):
        y = torch.relu(self.b(self.a(x)))
        return self.o(torch.relu(self.c(y)).mean((2, 3)))


def images(batch=8):
    torch.manual_seed(3)
    return torch.randn(batch, 3, 8, 8), torch.arange(batch) % 10


def recorded(model, inputs, targets):
    sgd = partial(torch.optim.SGD, lr=0.1, momentum=0.9)
    return lm.record(
        model, inputs, loss=F.cross_entropy, targets=targets, optimizer=lambda p: sgd(p)
    )


def frozen(model):
    """The batch norms of a model are as in inference."""
    for each in model.modules():
        if isinstance(each, nn.BatchNorm2d):
            each.track_running_stats, each.momentum = True, 0.0
            each.forward = partial(_in_inference, each)
    return model


def _in_inference(norm, x):
    return F.batch_norm(x, norm.running_mean, norm.running_var, norm.weight, norm.bias)


def test_convolutions_with_the_statistics_of_inference():
    tape = recorded(frozen(Convolutions()), *images())
    check(transformed(micro_batches(tape.graph, 4), tape).replay(2), tape.replay(2))


def test_a_batch_norm_in_training_has_its_micro_batchs_statistics_as_pytorch_would():
    inputs, targets = images()
    torch.manual_seed(0)
    model = Convolutions().train()
    tape = recorded(model, inputs, targets)
    program = micro_batches(tape.graph, 2)
    assert any("statistics of a micro-batch" in note for note in program.notes)
    found = transformed(program, tape).replay(1)
    for part in (slice(0, 4), slice(4, 8)):
        (F.cross_entropy(model(inputs[part]), targets[part]) / 2).backward()
    for name, parameter in model.named_parameters():
        assert off(found[f"gradient.{name}"], parameter.grad) < 1e-4, name
    alone = tape.replay(1)
    assert off(found["gradient.a.weight"], alone["gradient.a.weight"]) > 1e-3


def with_draws_of(tape, batch):
    """The tape, whose recordings at a share of the batch draw what the whole batch draws there."""
    replay, drawn, taken = Replay(tape, {}), {}, [0]

    def look(call):
        if call.random:
            drawn[call.op] = [replay.values[slot].clone() for slot in call.results]

    def again(tensors):
        of = slice(taken[0], taken[0] + len(tensors[0]))
        taken[0] = of.stop
        found = tape.again(tensors)

        def draw(call, *args, **_):
            parts = [value[of] if len(value) == batch else value for value in drawn[call.op]]
            if call.writes:
                return args[0].copy_(parts[0])
            return parts if call.several else parts[0]

        calls = [
            replace(call, function=partial(draw, call)) if call.random else call
            for call in found.calls
        ]
        return replace(found, calls=tuple(calls))

    replay.step(look)
    return replace(tape, again=again)


def test_dropout_with_the_draws_of_the_batch():
    tape, _ = taped("dropout")
    assert any(call.random for call in tape.calls)
    program = micro_batches(tape.graph, 4)
    check(transformed(program, with_draws_of(tape, 8)).replay(1), tape.replay(1))


def cluster(k):
    return lm.Cluster.preset("4xV100-PCIe").subset(range(k))


def plan_of_program(program, k):
    """A plan of a program of replicas or shards: each on a device of its own."""
    devices = cluster(k)
    graph = program.source
    placed = Problem.make(graph, devices, lm.costs.estimate(graph, devices)).transformed(program)
    place = np.maximum(program.rank, program.replica)[placed.reduced.op_of]
    return plan_of(in_best_order(placed, where_allowed(placed, np.maximum(place, 0))))


def sharded(method, k):
    """Programs of the recipe that a method makes of a graph."""
    return lambda graph: lm.place(graph, cluster(k), method).program


#: What the model is, on how many devices, and what is cut into micro-batches.
OF_PROGRAMS = {
    "replicas": ("tied", 2, lambda graph: replicate(graph, 2, bucket_bytes=5000)),
    "unequal replicas": ("tied", 2, lambda graph: replicate(graph, 2, rows=[8, 4])),
    "replicas that share the optimizer": (
        "convolutions",
        2,
        lambda graph: replicate(graph, 2, shards="parameters", bucket_bytes=5000),
    ),
    "a parameter server": (
        "tied",
        2,
        lambda graph: replicate(graph, 2, aggregation="parameter-server"),
    ),
    "megatron": ("tied", 4, sharded("megatron", 4)),
    "fsdp": ("experts", 2, sharded("fsdp", 2)),
    "sharded": ("cells", 2, sharded("sharded", 2)),
}


@pytest.mark.parametrize("case", OF_PROGRAMS)
def test_micro_batches_of_replicas_and_of_shards_have_the_numbers_of_the_batch(case):
    name, k, made = OF_PROGRAMS[case]
    batch = 12 if "unequal" in case else 8
    if name == "convolutions":
        tape = recorded(frozen(Convolutions()), *images())
    else:
        tape, _ = taped(name, batch)
    plan = plan_of_program(micro_batches(made(tape.graph), 2), k)
    alone = tape.replay(2)
    of_batch = {name for name in alone if name.startswith(("gradient", "parameter"))}
    joined = transformed(plan.program, tape).replay(2)
    assert of_batch <= joined.keys()
    for output in alone.keys() & joined.keys():
        assert off(joined[output], alone[output]) < 1e-4, output
    if "replicas" in case:
        losses = [float(joined[f"loss@r{r}"]) for r in range(k)]
        weights = (2, 1) if "unequal" in case else (1, 1)
        assert np.average(losses, weights=weights) == pytest.approx(float(alone["loss"]), rel=1e-4)
    with started(plan, tape) as devices:
        devices.run(2)
        assert differing(joined, devices.fetch()) == []


def test_a_micro_batch_is_a_program_of_its_own():
    tape, _ = taped("tied", 12)
    before = replicate(tape.graph, 2, rows=[8, 4], bucket_bytes=5000)
    parts = MicroBatches.of(micro_batches(before, 3), 12)
    assert parts.program.graph.names == before.graph.names
    for column in ("src", "dst", "alias_of", "view"):
        assert np.array_equal(getattr(parts.program.graph, column), getattr(before.graph, column))
    assert parts.program.graph.collectives[-1] == before.graph.collectives[-1]
    assert [parts.samples(j).tolist() for j in range(3)] == [
        [0, 1, 2, 8, 9],
        [3, 4, 5, 10],
        [6, 7, 11],
    ]
    assert parts.weight(int((before.replica == 0).argmax()), 0) == pytest.approx(3 / 8)


def test_stages_that_recompute_have_the_numbers_of_the_batch(tmp_path):
    tape, _ = taped("tied", 16)
    alone = tape.replay(2)
    recipe = lm.place(tape.graph, cluster(2), "gpipe").program.recipe
    recipe = replace(recipe, recompute=("layers.*",))
    plan = lm.place(tape.graph, cluster(2), recipe=recipe)
    assert any("@again@m1" in name for name in plan.program.graph.names)
    plan.save(tmp_path / "plan.json")
    joined = transformed(plan.program, tape).replay(2)
    check(joined, alone)
    with started(lm.Plan.load(tmp_path / "plan.json"), tape) as devices:
        devices.run(2)
        assert differing(joined, devices.fetch()) == []


@pytest.mark.parametrize(
    ("name", "p", "method"),
    [("tied", 2, "gpipe"), ("tied", 4, "pipeline"), ("LSTM", 2, "gpipe"), ("LSTM", 2, "pipeline")],
)
def test_stages_on_processes_have_the_numbers_of_the_batch(name, p, method):
    # One sample has ops of its own in PyTorch: each of p, 2p or 4p micro-batches has two.
    tape, _ = taped(name, 8 * p)
    plan = lm.place(tape.graph, cluster(p), method)
    assert plan.program.micro.max() > 0
    assert len(np.unique(plan.running_devices)) == p
    with started(plan, tape) as devices:
        devices.run(1)
        check(devices.fetch(), tape.replay(1))
        devices.run(2)
        later = devices.fetch()
    assert differing(transformed(plan.program, tape).replay(3), later) == []


def test_look_ups_where_the_tied_weight_is_have_the_numbers_of_the_batch():
    """The table, its look-up, its gradients and its update are on the last of four stages."""
    tape, _ = taped("tied", 16)
    devices = cluster(4)
    problem = Problem.make(tape.graph, devices, lm.costs.estimate(tape.graph, devices))
    line = lines(problem)[0]
    stage = 4 * line.gathered // len(line.is_open)
    plan = plan_of(piped(problem, stage, range(4), Micro(4, "zero-bubble")))
    table = int(tape.graph.param_bytes[tape.graph.index("emb.weight")])
    assert table not in plan.schedule.transfers.bytes
    alone, joined = tape.replay(2), transformed(plan.program, tape).replay(2)
    check(joined, alone)
    with started(plan, tape) as devices:
        devices.run(2)
        assert differing(joined, devices.fetch()) == []


def in_two_stages(tape, said, n=2):
    """A plan of two stages of two devices, with the labels of a recipe inside of them."""
    options = {"micro_batches": n, "stages": 2, "schedule": "1f1b"}
    whole = lm.place(tape.graph, cluster(4), "pipeline", devices_per_stage=1, **options).recipe
    mesh = DeviceMesh((MeshAxis("pp", 2), *said.mesh.axes))
    recipe = replace(said, mesh=mesh, stages=whole.stages, micro=whole.micro)
    return lm.place(tape.graph, cluster(4), recipe=recipe)


REPLICAS = lm.Recipe({"dp": 2}, {"dp": {"**": "batch"}})
LAYERS = {"layers.*.up aten.addmm.default": "column", "layers.*.down aten.addmm.default": "row"}
#: What the ops of a stage are shared by.
INSIDE = {
    "replicas": REPLICAS,
    "sharded updates": replace(REPLICAS, shard_state={"**": "parameters"}),
    "columns and rows": lm.Recipe({"tp": 2}, {"tp": LAYERS}),
}


@pytest.mark.parametrize("inside", INSIDE)
def test_stages_of_two_devices_have_the_numbers_of_the_batch(inside):
    """The embedding's table is tied to the head, on the other stage."""
    tape, _ = taped("tied", 16)
    plan = in_two_stages(tape, INSIDE[inside], 4 if inside == "replicas" else 2)
    assert len(np.unique(plan.running_devices)) == 4
    assert len(plan.schedule.collectives)
    alone, joined = tape.replay(2), transformed(plan.program, tape).replay(2)
    check(joined, alone)
    with started(plan, tape) as devices:
        devices.run(2)
        assert differing(joined, devices.fetch()) == []


@pytest.mark.parametrize(("name", "seed"), [("tied", 1), ("tied", 3), ("LSTM", 2)])
def test_stages_of_drawn_shards_have_the_numbers_of_the_batch(name, seed):
    tape, _ = taped(name, 16)
    dimensions, mesh = Dimensions.of(tape.graph), DeviceMesh.of({"x": 2})
    labels = drawn(dimensions, mesh, seed)
    plan = in_two_stages(tape, Layout(dimensions, mesh, labels, batch_norm="synchronised").recipe())
    check(transformed(plan.program, tape).replay(2), tape.replay(2))
