"""Shards that run have the numbers of the model that is whole.

Labels of all ops are drawn, so that each kind of cut and of collective comes. Plans run on worker
processes. Needs torch (no GPU): without it these tests are skipped.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch 2.5 or later")

from labels import cut_along, drawn  # noqa: E402
from shard_steps import MESHES, STEPS, momentum, recorded  # noqa: E402
from steps import differing  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812

import loadmaster as lm  # noqa: E402
from loadmaster.base.errors import InputError, RunError  # noqa: E402
from loadmaster.dimensions.dimensions import Dimensions  # noqa: E402
from loadmaster.running.parallel.halos import Halo  # noqa: E402
from loadmaster.running.parallel.parts import Argument  # noqa: E402
from loadmaster.running.parallel.pieces import Shown, Taking, order_of  # noqa: E402
from loadmaster.running.parallel.sharded import sharded  # noqa: E402
from loadmaster.running.parallel.transformed import transformed  # noqa: E402
from loadmaster.running.run import started  # noqa: E402
from loadmaster.transforms.layout import Layout  # noqa: E402
from loadmaster.transforms.lowering import Lowering  # noqa: E402
from loadmaster.transforms.shards import shard  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore:devices share a core"),
    pytest.mark.filterwarnings("ignore:the machine was too busy"),
]

#: Rows of routed experts are not run yet.
RUN = [name for name in STEPS if name not in ("routed experts", "stacked experts")]


@cache
def taped(name):
    """The tape of a step, and what it gives."""
    tape = recorded(name)
    return tape, tape.replay(2)


def off(found, expected):
    """The largest difference of a tensor, over its largest number."""
    return float((found - expected).abs().max() / expected.abs().max().clamp(min=1e-30))


def wrong(found, expected):
    return {name for name in expected if not off(found[name], expected[name]) < 1e-4}


def cluster(k):
    return lm.Cluster.preset("4xV100-PCIe").subset(range(k))


def drawn_recipe(tape, mesh, seed):
    """A recipe that labels every op, on the devices of a cluster."""
    dimensions = Dimensions.of(tape.graph)
    labels = drawn(dimensions, MESHES[mesh], seed)
    recipe = Layout(dimensions, MESHES[mesh], labels, "synchronised").recipe()
    names = tuple(device.name for device in cluster(recipe.mesh.size).devices)
    return replace(recipe, mesh=replace(recipe.mesh, devices=names))


# Each model meets two of the meshes, each mesh two or three of the models.
@pytest.mark.parametrize(
    ("name", "mesh"),
    [(name, mesh) for i, name in enumerate(RUN) for mesh in [*MESHES, *MESHES][i % 4 :][:2]],
)
def test_a_step_of_drawn_labels_has_the_numbers_of_the_whole_model(name, mesh):
    tape, expected = taped(name)
    dimensions, on = Dimensions.of(tape.graph), MESHES[mesh]
    labels = drawn(dimensions, on, seed=len(name))
    layout = Layout(dimensions, on, labels, "synchronised")
    found = sharded(shard(tape.graph, layout), tape, Lowering(layout)).replay(2)
    assert found.keys() == expected.keys()
    assert wrong(found, expected) == set()


def brought(wiring):
    """Bytes that each member of a collective brings, by the op."""
    compiled, found = wiring.compiled, Counter()
    for (arrival, _), packed in wiring.packed.items():
        if arrival >= compiled.n_transfers:
            member = int(compiled.members[arrival - compiled.n_transfers])
            found[member] += packed.numel * packed.slot.dtype.itemsize
    return found


PLANS = {
    "fsdp": ("tied transformer", 2, {"method": "fsdp"}),
    "megatron": ("tied transformer", 4, {"method": "megatron"}),
    "sharded": ("batch norm", 2, {"method": "sharded"}),
    "experts": ("experts", 2, {"method": "sharded"}),
    "LSTM": ("LSTM", 2, ("2", 3)),
    "dropout": ("dropout", 4, ("2 x 2", 3)),
    "batch norm": ("batch norm", 4, ("2 x 2", 3)),
}


@pytest.mark.parametrize("case", PLANS)
def test_plans_of_shards_run_on_processes(case):
    name, k, options = PLANS[case]
    tape, expected = taped(name)
    if isinstance(options, tuple):
        options = {"recipe": drawn_recipe(tape, *options)}
    plan = lm.place(tape.graph, cluster(k), **options)
    alone = transformed(plan.program, tape).replay(2)
    if plan.program.recipe.batch_norm == "synchronised" or name != "batch norm":
        assert wrong(alone, expected) == set()
    with started(plan, tape) as devices:
        devices.run(2)
        assert differing(alone, devices.fetch()) == []
        sent, wiring = plan.schedule.transfers, devices.wiring
        assert wiring.compiled.n_transfers == len(sent)
    bytes_, together = brought(wiring), plan.schedule.collectives
    found = []
    for i, members in enumerate(together.members):
        each = [bytes_[int(member)] for member in members]
        is_joined = together.kind[i] in ("all_gather", "all_to_all")
        found.append(sum(each) if is_joined else max(each))
    # Parts of an inner axis of a mesh differ by a row, and are planned as equal.
    if len(plan.program.recipe.mesh.axes) == 1:
        assert found == together.bytes.tolist()
    assert sum(found) == together.bytes.sum()


class Recurrent(nn.Module):
    """PyTorch's own LSTM: on CPUs a kernel that keeps a workspace for its backward pass."""

    def __init__(self):
        super().__init__()
        self.words, self.layer, self.head = nn.Embedding(12, 16), nn.LSTM(16, 16), nn.Linear(16, 12)

    def forward(self, x):
        return self.head(self.layer(self.words(x).transpose(0, 1))[0]).permute(1, 2, 0)


def test_workspaces_of_kernels_go_to_the_backward_pass_that_is_cut_alike():
    x = torch.arange(32).view(4, 8) % 12
    torch.manual_seed(0)
    tape = lm.record(Recurrent(), x, loss=F.cross_entropy, targets=x, optimizer=momentum)
    dimensions = Dimensions.of(tape.graph)
    is_layer = np.array(["rnn_layer" in kind for kind in tape.graph.kinds])
    is_forward = is_layer & np.array(["backward" not in kind for kind in tape.graph.kinds])

    def run(labels):
        layout = Layout(dimensions, MESHES["2"], labels.astype(np.int32), "synchronised")
        return sharded(shard(tape.graph, layout), tape, Lowering(layout)).replay(2)

    samples = cut_along(dimensions, "batch")
    assert samples[0, is_layer].all()
    assert wrong(run(samples * is_layer), tape.replay(2)) == set()
    with pytest.raises(InputError, match="left in its workspace, and is cut otherwise"):
        run(samples * (is_layer & ~is_forward))


@pytest.mark.parametrize("target", ["fsdp", "dtensor"])
def test_plans_for_sharded_parameters_run_here_too(target):
    """Their files leave out the sum of the weights of a mean loss; a run here has it."""
    tape, expected = taped("dropout")
    plan = lm.place(tape.graph, cluster(2), target=target)
    assert wrong(transformed(plan.program, tape).replay(2), expected) == set()


def test_what_is_recomputed_has_the_same_numbers():
    tape, expected = taped("tied transformer")
    again = lm.transforms.recompute(tape.graph, ["layers.*"])
    made = transformed(again, tape)
    assert len(made.calls) > len(tape.calls) + 20
    assert differing(expected, made.replay(2)) == []
    dropped, numbers = taped("dropout")
    again = lm.transforms.recompute(dropped.graph, ["layers"])
    assert differing(numbers, transformed(again, dropped).replay(2)) == []


def test_shards_are_recomputed():
    tape, expected = taped("tied transformer")
    recipe = lm.place(tape.graph, cluster(2), "fsdp").program.recipe
    plan = lm.place(tape.graph, cluster(2), recipe=replace(recipe, recompute=("layers.*",)))
    assert any(name.startswith("relu@again") for name in plan.program.graph.names)
    with started(plan, tape) as devices:
        devices.run(2)
        assert wrong(devices.fetch(), expected) == set()


def test_batch_norms_of_parts_of_the_batch_train_their_weights_alike():
    """Each device has statistics of its own, and the gradients of the weights are summed."""
    tape, _ = taped("batch norm")
    plan = lm.place(tape.graph, cluster(2), "data-parallel")
    replicas = transformed(plan.program, tape).replay(2)
    dimensions = Dimensions.of(tape.graph)
    labels = np.zeros((1, tape.graph.n_ops), dtype=np.int32)
    for op in np.flatnonzero(dimensions.form_of >= 0).tolist():
        cuts = dimensions.forms[dimensions.form_of[op]].cuts
        labels[0, op] = next((i + 1 for i, cut in enumerate(cuts) if cut.role == "batch"), 0)
    layout = Layout(dimensions, MESHES["2"], labels, "local")
    found = sharded(shard(tape.graph, layout), tape, Lowering(layout)).replay(2)
    parameters = [name for name in replicas if name.startswith("parameter")]
    assert max(off(found[name], replicas[name]) for name in parameters) < 1e-4


def test_what_does_not_run_is_refused():
    tape, _ = taped("batch norm")
    split = lm.transforms.split_op(tape.graph, "addmm", "row", 2)
    with pytest.raises(InputError, match=r"addmm.*split alone"):
        transformed(split, tape)
    uneven, dimensions, labels = windowed(18)
    layout = Layout(dimensions, MESHES["2"], labels)
    with pytest.raises(InputError, match=r"convolution_1.*'spatial0'.*no neighbour sends"):
        sharded(shard(uneven.graph, layout), uneven, Lowering(layout))


class Windows(nn.Module):
    """Convolutions with and without strides, a transposed one, and a pool."""

    def __init__(self, width=6):
        super().__init__()
        self.a, self.b = nn.Conv2d(3, width, 5, padding=2), nn.Conv2d(width, width, 3, 2, 1)
        self.c, self.t = (
            nn.Conv2d(width, width, 3, padding=1),
            nn.ConvTranspose2d(width, width, 2, 2),
        )
        self.o = nn.Linear(width, 12)

    def forward(self, x):
        y = torch.relu(self.b(torch.relu(self.a(x))))
        y = self.t(self.c(F.avg_pool2d(y, 2)))
        return self.o(torch.relu(y).mean((2, 3)))


def windowed(size):
    """A step on images of so many rows, and labels that cut all that can be cut along rows."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    inputs, targets = torch.randn(4, 3, size, 8), torch.arange(4)
    tape = lm.record(Windows(), inputs, loss=F.cross_entropy, targets=targets, optimizer=momentum)
    dimensions = Dimensions.of(tape.graph)
    return tape, dimensions, cut_along(dimensions, "spatial")


@pytest.mark.parametrize("mesh", ["2", "4"])
def test_parts_get_the_rows_that_their_windows_reach(mesh):
    tape, dimensions, labels = windowed(16)
    kinds = {tape.graph.kinds[op] for op in np.flatnonzero(labels[0] > 0)}
    assert {"aten.convolution.default", "aten.convolution_backward.default"} <= kinds
    expected, layout = tape.replay(2), Layout(dimensions, MESHES[mesh], labels)
    program = shard(tape.graph, layout)
    cut_out = [name for name in program.graph.names if name.startswith("slice/")]
    assert len(cut_out) == 13 * (layout.mesh.size - 1)
    assert wrong(sharded(program, tape, Lowering(layout)).replay(2), expected) == set()
    # Without the rows of neighbours the numbers are others: what a device lacks is zeros there.
    kept = Halo.wider
    try:
        Halo.wider = lambda self, i, piece: piece
        assert "gradient.a.weight" in wrong(
            sharded(program, tape, Lowering(layout)).replay(1), tape.replay(1)
        )
    finally:
        Halo.wider = kept


def test_halos_run_on_processes():
    tape, dimensions, labels = windowed(16)
    recipe = Layout(dimensions, MESHES["2"], labels).recipe()
    names = tuple(device.name for device in cluster(2).devices)
    recipe = replace(recipe, mesh=replace(recipe.mesh, devices=names))
    plan = lm.place(tape.graph, cluster(2), recipe=recipe)
    alone = transformed(plan.program, tape).replay(2)
    assert wrong(alone, tape.replay(2)) == set()
    with started(plan, tape) as devices:
        devices.run(2)
        assert differing(alone, devices.fetch()) == []
        assert devices.wiring.compiled.n_transfers == len(plan.schedule.transfers)


class Permuted(nn.Module):
    """Ops whose results lie in memory in another order of axes, and views that count on it."""

    def __init__(self, seed):
        super().__init__()
        self.words = nn.Embedding(12, 6)
        self.orders = [np.random.default_rng(seed + i).permutation(3).tolist() for i in range(3)]
        self.out = nn.Linear(6, 12)

    def forward(self, x):
        y = self.words(x)
        for order in self.orders:
            lies = torch.relu(y.permute(order) + 0.5).permute(np.argsort(order).tolist())
            joined = lies.view(-1, 6)
            y = y + joined.tanh().view(*y.shape)
        return self.out(y).flatten(0, 1)


@pytest.mark.parametrize("seed", range(3))
def test_views_of_what_lies_in_another_order_are_taken_of_parts(seed):
    torch.manual_seed(seed)
    words = torch.arange(32).view(4, 8) % 12
    options = {"loss": F.cross_entropy, "targets": words.flatten(), "optimizer": momentum}
    tape = lm.record(Permuted(seed), words, **options)
    dimensions, on = Dimensions.of(tape.graph), MESHES["2"]
    layout = Layout(dimensions, on, drawn(dimensions, on, seed), "synchronised")
    found = sharded(shard(tape.graph, layout), tape, Lowering(layout)).replay(2)
    assert wrong(found, tape.replay(2)) == set()


@pytest.mark.parametrize("seed", range(20))
def test_what_a_view_shows_is_counted_in_the_order_of_memory(seed):
    random = np.random.default_rng(seed)
    sizes = tuple(random.integers(1, 4, 4).tolist())
    order = random.permutation(4)
    inverse = np.argsort(order).tolist()
    memory = torch.empty([sizes[axis] for axis in order]).permute(inverse)
    view = memory.permute(order.tolist()).flatten(0, 1)[:, -1:]
    elements = torch.arange(memory.numel()).view(sizes)
    expected = elements.permute(order.tolist()).flatten(0, 1)[:, -1:]
    shown = Shown(tuple(view.shape), view.stride(), view.storage_offset(), (sizes, memory.stride()))
    index = shown.index([np.arange(size) for size in view.shape])
    assert index.tolist() == expected.tolist()
    lies = order_of(sizes, memory.stride())
    laid = Argument(Taking(sizes), sizes, torch.float32, order=lies).taken(torch.zeros(sizes))
    assert laid.permute(order.tolist()).is_contiguous()


def test_an_op_that_fails_is_named():
    tape, _ = taped("LSTM")
    call = next(call for call in tape.calls if "mm" in tape.graph.kinds[call.op])
    broken = replace(call, function=lambda *_: torch.ones(2, 3).t().view(6))
    calls = tuple(broken if one is call else one for one in tape.calls)
    name = tape.graph.names[call.op]
    with pytest.raises(RunError, match=rf"op '{name}' \(aten.*\) fails: RuntimeError: view size"):
        replace(tape, calls=calls).replay(1)
