"""Sharded graphs that PyTorch executes piece by piece have the numbers of the model that is whole.

Labels of all ops are drawn, collectives are done by hand, and a device knows nothing but what its
specs give it. Needs torch (no GPU): without it these tests are skipped.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch 2.5 or later")

from labels import by_experts, drawn  # noqa: E402
from shard_steps import MESHES, STEPS, momentum, recorded  # noqa: E402
from sharded import Sharded, alone, is_there  # noqa: E402
from steps import Routed, words  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812

import loadmaster as lm  # noqa: E402
from loadmaster.dimensions.dimensions import Dimensions  # noqa: E402
from loadmaster.dimensions.form import FLAT, OWNER  # noqa: E402
from loadmaster.transforms.layout import Layout  # noqa: E402
from loadmaster.transforms.shards import shard  # noqa: E402


@cache
def taped(name):
    """The tape of a step, and its tensors by slot."""
    tape = recorded(name)
    return tape, alone(tape)


def off(found, expected):
    """The largest difference of a tensor, over its largest number."""
    return float((found - expected).abs().max() / expected.abs().max().clamp(min=1e-30))


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("name", STEPS)
def test_a_step_of_drawn_labels_has_the_numbers_of_the_whole_model(name, mesh):
    tape, expected = taped(name)
    dimensions, on = Dimensions.of(tape.graph), MESHES[mesh]
    labels = drawn(dimensions, on, seed=len(name))
    assert (labels[0] > 0).sum() > 10
    sharded = Sharded(tape, Layout(dimensions, on, labels, "synchronised"))
    assert len(sharded.conversions) > 10
    # The judge's own check that no collective waits for itself.
    assert sharded.program.graph.reduced.graph.n_ops > 0
    sharded.step()
    for output, slot in tape.outputs.items():
        if not output.startswith("parameter"):
            assert off(sharded.whole(slot), expected(slot)) < 1e-4, output
            continue
        for value in sharded.updated(slot):
            there = is_there(value)
            assert not there.any() or off(value[there], expected(slot)[there]) < 1e-4, output


def test_layers_are_told_from_as_many_experts():
    with torch.device("meta"):
        model, x = Routed(experts=4, layers=4), words(4, 8)
        graph = lm.capture(model, x, loss=F.cross_entropy, targets=x, optimizer=momentum)
    experts = Dimensions.of(graph).experts
    assert experts.layer.max() + 1 == 4
    for layer in range(4):
        weights = {
            graph.names[op].split(".")[1]
            for op in np.flatnonzero((experts.layer == layer) & graph.placeholder)
        }
        assert len(weights) == 1


@pytest.mark.parametrize("mesh", ["2", "4"])
def test_tokens_go_to_the_devices_of_experts_and_come_back(mesh):
    tape, expected = taped("routed experts")
    dimensions = Dimensions.of(tape.graph)
    labels = by_experts(dimensions, MESHES[mesh])
    sharded = Sharded(tape, Layout(dimensions, MESHES[mesh], labels))
    sharded.step()
    assert off(sharded.whole(tape.outputs["loss"]), expected(tape.outputs["loss"])) < 1e-4
    for output, slot in tape.outputs.items():
        if output.startswith("parameter"):
            for value in sharded.updated(slot):
                there = is_there(value)
                assert not there.any() or off(value[there], expected(slot)[there]) < 1e-4, output
    graph, k = sharded.program.graph, MESHES[mesh].size
    # Each of two layers sends tokens out and back, and so does its backward pass.
    assert sum(kind == "all_to_all" for kind in graph.kinds) == 2 * 2 * 2 * k
    has = {
        (op, d): i
        for i, (op, d) in enumerate(zip(sharded.program.serves, sharded.program.rank, strict=True))
        if not sharded.program.own[i]
    }
    for op in np.flatnonzero(labels[0] == OWNER).tolist():
        assert [d for d in range(k) if (op, d) in has] == [dimensions.experts.of_op[op] % k] or (
            dimensions.experts.of_op[op] < 0
        )


def test_what_is_drawn_has_everything():
    seen = set()
    for name in STEPS:
        dimensions = Dimensions.of(taped(name)[0].graph)
        for mesh in MESHES.values():
            layout = Layout(
                dimensions, mesh, drawn(dimensions, mesh, seed=len(name)), "synchronised"
            )
            program = shard(dimensions.graph, layout)
            kinds = [program.graph.kinds[i] for i in np.flatnonzero(program.own)]
            seen |= {*kinds, *np.unique(np.minimum(layout.labels, 1)).tolist()}
            seen |= {"exchanged"} if layout.exchanged.any() else set()
    wanted = {"all_reduce", "reduce_scatter", "all_gather", "all_to_all", "exchanged", 0, 1}
    assert seen >= {*wanted, FLAT, OWNER}


def test_the_whole_model_on_every_device_is_pytorchs_own():
    tape, expected = taped("tied transformer")
    replayed = tape.replay(1)
    assert all(off(expected(tape.outputs[name]), replayed[name]) < 1e-6 for name in replayed)


def test_a_collective_that_is_missing_shows():
    tape, _ = taped("tied transformer")
    dimensions = Dimensions.of(tape.graph)
    mesh = MESHES["2"]
    sharded = Sharded(tape, Layout(dimensions, mesh, drawn(dimensions, mesh, seed=1)))
    kept = sharded.conversions.of_argument
    assert (kept >= 0).any()
    kept[np.flatnonzero(kept >= 0)] = -1
    with pytest.raises(AssertionError):
        sharded.step()
