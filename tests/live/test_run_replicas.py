"""Replicas that run: their gradients are those of the whole batch, and those of PyTorch's DDP.

Needs torch (no GPU): without it these tests are skipped.
"""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch 2.5 or later")

from steps import differing, made  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812

import loadmaster as lm  # noqa: E402
from loadmaster.base.errors import InputError  # noqa: E402
from loadmaster.running.parallel.replicas import replicated  # noqa: E402
from loadmaster.running.run import started  # noqa: E402
from loadmaster.running.tape.replay import Replay  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore:devices share a core"),
    pytest.mark.filterwarnings("ignore:the machine was too busy"),
]


@pytest.fixture(autouse=True)
def one_thread():
    """As many as each worker has."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def cluster(k):
    return lm.Cluster.preset("4xV100-PCIe").subset(range(k))


def momentum(parameters):
    return torch.optim.SGD(parameters, 0.1, momentum=0.9)


def taped(name, batch=8, optimizer=momentum):
    """A tape whose samples all differ."""
    model, inputs, targets = made(name)
    times = -(-batch // len(inputs))
    inputs = torch.cat([(inputs + 3 * i) % 50 for i in range(times)])[:batch]
    targets = torch.cat([(targets + 7 * i) % 10 for i in range(times)])[:batch]
    options = dict(loss=F.cross_entropy, targets=targets, optimizer=optimizer)
    return lm.record(model, inputs, **options), (model, inputs, targets)


def off(found, expected):
    """The largest difference of a tensor, over its largest number."""
    return float((found - expected).abs().max() / expected.abs().max())


@pytest.mark.parametrize(("name", "k"), [("tied", 2), ("BERT-mini", 4), ("LSTM", 2), ("cells", 2)])
def test_replicas_have_the_loss_and_the_gradients_of_the_whole_batch(name, k):
    tape, _ = taped(name)
    plan = lm.place(tape.graph, cluster(k), "data-parallel")
    alone = tape.replay(1)
    with started(plan, tape) as devices:
        devices.run(1)
        found = devices.fetch()
        losses = [float(found[f"loss@r{r}"]) for r in range(k)]
        assert np.mean(losses) == pytest.approx(float(alone["loss"]), rel=1e-4)
        for output in alone:
            if output.startswith(("gradient", "parameter")):
                assert off(found[output], alone[output]) < 1e-4, output
        devices.run(2)
        later = devices.fetch()
    assert differing(replicated(plan.program, tape).replay(3), later) == []


def test_unequal_shares_weight_gradients():
    tape, (_, inputs, targets) = taped("tied")
    given = (inputs + 1) % 50, (targets + 1) % 50
    alone = tape.replay(1, given[0], targets=given[1])
    program = lm.transforms.replicate(tape.graph, 2, rows=[5, 3], bucket_bytes=5000)
    assert len(set(program.graph.collectives)) > 3
    found = replicated(program, tape, tape.given(*given)).replay(1)
    loss = (5 * float(found["loss@r0"]) + 3 * float(found["loss@r1"])) / 8
    assert loss == pytest.approx(float(alone["loss"]), rel=1e-4)
    names = [name for name in alone if name.startswith("gradient")]
    assert len(names) == 25
    assert max(off(found[name], alone[name]) for name in names) < 1e-4


def test_unequal_devices_run_unequal_shares_of_other_inputs():
    tape, (_, inputs, targets) = taped("ResNet-18", 5)
    unequal = lm.Cluster.preset("moirai-intra").subset(["A", "C"])
    plan = lm.place(tape.graph, unequal, "data-parallel")
    shares = {float(plan.program.share[plan.program.replica == r].min()) for r in range(2)}
    assert len(shares) == 2
    with started(plan, tape, inputs / 2, targets=targets) as devices:
        devices.run(2)
        found = devices.fetch()
    joined = replicated(plan.program, tape, tape.given(inputs / 2))
    assert differing(joined.replay(2), found) == []


def test_dropout_differs_between_replicas():
    tape, _ = taped("dropout")
    plan = lm.place(tape.graph, cluster(2), "data-parallel")
    joined = replicated(plan.program, tape)
    ops = [call.op for call in joined.calls if call.random]
    assert len(set(ops)) == 4
    with started(plan, tape) as devices:
        devices.run(2)
        assert differing(joined.replay(2), devices.fetch()) == []


def test_a_run_of_replicas_is_measured():
    tape, _ = taped("ResNet-18", 4)
    plan = lm.place(tape.graph, cluster(2), "data-parallel")
    found = lm.run(plan, tape, steps=2)
    together = plan.schedule.collectives
    assert len(together) == 1
    assert found.timeline.collectives.kind == together.kind
    began, ended = found.steps.gathered_start, found.steps.gathered_finish
    for i, members in enumerate(together.members):
        sources = np.isin(plan.program.graph.dst, members)
        made_at = found.steps.finish[:, plan.program.graph.src[sources]].max(axis=1)
        assert (made_at <= ended[:, i]).all()
        assert (began[:, i] < ended[:, i]).all()
    assert (found.steps.peaks > 0).all()


DDP = """
import os, sys, torch
from torch import distributed
from torch.nn import functional as F
from test_run_replicas import momentum, taped

rank, port = int(sys.argv[1]), sys.argv[2]
os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
distributed.init_process_group("gloo", rank=rank, world_size=2)
torch.set_num_threads(1)
_, (model, inputs, targets) = taped("ResNet-18", 4)
copies = torch.nn.parallel.DistributedDataParallel(model)
optimizer = momentum(model.parameters())
half = slice(2 * rank, 2 * rank + 2)
for step in range(2):
    optimizer.zero_grad()
    F.cross_entropy(copies(inputs[half]), targets[half]).backward()
    optimizer.step()
if rank == 0:
    torch.save({name: (p.detach(), p.grad) for name, p in model.named_parameters()}, sys.argv[3])
distributed.barrier()
os._exit(0)  # at a normal exit gloo's threads sometimes end Python by an abort
"""


def test_replicas_are_those_of_distributed_data_parallel(tmp_path, free_port):
    """With batch norms, whose statistics are of each replica's samples."""
    tape, _ = taped("ResNet-18", 4)
    plan = lm.place(tape.graph, cluster(2), "data-parallel")
    with started(plan, tape) as devices:
        devices.run(2)
        found = devices.fetch()
    saved = tmp_path / "ddp.pt"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", DDP, str(rank), str(free_port), str(saved)], env=environment
        )
        for rank in range(2)
    ]
    assert [rank.wait(120) for rank in ranks] == [0, 0]
    for name, (parameter, gradient) in torch.load(saved).items():
        assert off(found[f"parameter.{name}"], parameter) < 1e-4
        assert off(found[f"gradient.{name}"], gradient) < 1e-4


@pytest.fixture
def free_port():
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_what_replicas_cannot_run_is_refused():
    tape, _ = taped("ResNet-18", 4)
    other, _ = taped("tied", 4)
    plan = lm.place(tape.graph, cluster(2), "data-parallel")
    with pytest.raises(InputError, match="another graph"):
        lm.run(plan, other)


def normed(parameters):
    """An optimizer that looks at whole gradients."""
    return NormedSgd(parameters)


class NormedSgd(torch.optim.Optimizer):
    def __init__(self, parameters):
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                p.add_(p.grad / (p.grad.norm() + 1), alpha=-0.1)


def test_an_optimizer_that_looks_at_whole_gradients_has_no_flat_shards():
    tape, _ = taped("tied", optimizer=normed)
    options = {"aggregation": "reduce-scatter"}
    plan = lm.place(tape.graph, cluster(2), "data-parallel", **options)
    with pytest.raises(InputError, match=r"linalg_vector_norm.*shards=.parameters"):
        replicated(plan.program, tape)
    plan = lm.place(tape.graph, cluster(2), "data-parallel", shards="parameters", **options)
    alone, found = tape.replay(2), replicated(plan.program, tape).replay(2)
    assert max(off(found[name], alone[name]) for name in alone if name.startswith("p")) < 1e-4


def test_batch_norms_have_the_statistics_of_the_whole_batch():
    tape, _ = taped("ResNet-18", 4)
    alone = tape.replay(1)
    for options in ({}, {"aggregation": "reduce-scatter"}):
        options |= {"batch_norm": "synchronised"}
        plan = lm.place(tape.graph, cluster(2), "data-parallel", **options)
        with started(plan, tape) as devices:
            devices.run(1)
            found = devices.fetch()
        for output in alone:
            if output.startswith(("gradient", "parameter")):
                assert off(found[output], alone[output]) < 1e-4, output


def test_synchronised_batch_norms_are_those_of_the_batch_from_step_to_step():
    """In float64: rounding of float32 grows to 4e-4 in the second step, PyTorch's own as well."""
    model, inputs, targets = made("ResNet-18")
    tape = lm.record(
        model.double(), inputs.double(), loss=F.cross_entropy, targets=targets, optimizer=momentum
    )
    program = lm.transforms.replicate(tape.graph, 2, batch_norm="synchronised")
    joined = replicated(program, tape)
    runs = [Replay(tape, {}), Replay(joined, {})]
    for run in runs:
        run.step()
        run.step()
    alone, found = (
        of.named(run.values.__getitem__) for of, run in zip((tape, joined), runs, strict=True)
    )
    for output in alone:
        if output.startswith(("gradient", "parameter")):
            assert off(found[output], alone[output]) < 1e-9, output
    # Running statistics are of the whole batch, too.
    buffers = {p.name: p.slot for p in joined.placeholders if p.name.endswith("running_var")}
    known = {p.name: p.slot for p in tape.placeholders if p.name.endswith("running_var")}
    assert len(known) > 10
    for name, slot in known.items():
        assert off(runs[1].values[buffers[name]], runs[0].values[slot]) < 1e-9, name


def adam(parameters):
    return torch.optim.Adam(parameters, 0.01)


AGGREGATIONS = {
    "flat": {"aggregation": "reduce-scatter", "shards": "flat"},
    "by parameter": {"aggregation": "reduce-scatter", "shards": "parameters"},
    "server": {"aggregation": "parameter-server"},
}


@pytest.mark.parametrize("how", AGGREGATIONS)
@pytest.mark.parametrize(("name", "k"), [("tied", 4), ("LSTM", 2), ("dropout", 2)])
def test_replicas_aggregate_gradients_in_other_ways(name, k, how):
    tape, _ = taped(name, optimizer=adam)
    alone = tape.replay(3)
    plan = lm.place(tape.graph, cluster(k), "data-parallel", **AGGREGATIONS[how])
    joined = replicated(plan.program, tape).replay(3)
    if name != "dropout":
        for output in alone:
            if output.startswith(("gradient", "parameter")):
                assert off(joined[output], alone[output]) < 1e-4, output
    with started(plan, tape) as devices:
        devices.run(3)
        assert differing(joined, devices.fetch()) == []
