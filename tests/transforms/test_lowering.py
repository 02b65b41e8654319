"""Lowering: the collectives, buckets and sums of a layout, as data."""

from __future__ import annotations

import numpy as np
import pytest
from labels import cut_along, drawn, whole, with_state

import loadmaster as lm
import loadmaster.fast as fast
from loadmaster.dimensions.dimensions import Dimensions
from loadmaster.dimensions.form import FLAT, OWNER
from loadmaster.model.recipe import DeviceMesh
from loadmaster.transforms.conversions import GRADIENT, UPDATED, WEIGHT
from loadmaster.transforms.layout import Layout
from loadmaster.transforms.lowering import Lowering
from loadmaster.transforms.shards import Expansion


def lowering(**options) -> Lowering:
    """LeNet with its batch on two devices."""
    recipe = lm.Recipe({"dp": 2}, {"dp": {"**": "batch"}}, **options)
    return Lowering.of_recipe(lm.read("example:lenet"), recipe)


def kinds(of: Lowering, traffic: int) -> set[str]:
    steps = of.conversions.steps
    some = of.conversions.traffic[steps.conversion] == traffic
    return {fast.COLLECTIVES[kind] for kind in steps.kind[some].tolist()}


def test_data_parallelism_all_reduces_gradients_alone():
    of = lowering()
    assert kinds(of, GRADIENT) == {"all_reduce"}
    assert set(of.buckets.traffic.tolist()) == {GRADIENT}
    assert not len(of.halos)
    assert of.recomputation is None


def test_parts_of_a_loss_sum_eight_bytes():
    sums = lowering().sums
    assert sums.bytes.tolist() == [8]
    assert "nll_loss" in lowering().layout.graph.kinds[int(sums.op[0])]


def test_zero_scatters_gradients_and_gathers_parameters():
    of = lowering(shard_state={"**": "optimizer"})
    assert "reduce_scatter" in kinds(of, GRADIENT)
    assert kinds(of, UPDATED) == {"all_gather"}
    of = lowering(shard_state={"**": "parameters"})
    assert kinds(of, WEIGHT) == {"all_gather"}
    assert not kinds(of, UPDATED)


def test_a_bucket_of_gradients_comes_after_the_last_of_them():
    of = lowering()
    c, buckets = of.conversions, of.buckets
    maker = of.layout.maker[c.tensor[c.steps.conversion]]
    for bucket in range(len(buckets)):
        assert buckets.place[bucket] == maker[buckets.of_step == bucket].max()
    assert not buckets.is_before.any()


def test_small_buckets_hold_one_gradient_each():
    of = lowering(bucket_bytes=1)
    assert len(of.buckets) == len(of.conversions) > len(lowering().buckets)


def test_every_member_of_the_program_is_of_a_bucket():
    of = lowering(shard_state={"**": "parameters"})
    expansion = Expansion.of(of)
    names = np.array(expansion.program.graph.collectives, dtype=object)
    for members, bucket in zip(expansion.members.T, of.buckets.of_step, strict=True):
        assert len(set(names[members])) == 1
        kind = fast.COLLECTIVES[int(of.buckets.kind[bucket])]
        assert names[members[0]].startswith(f"{kind}/")


def drawn_lowering(seed: int) -> Lowering:
    """A small training step whose ops and parameters are shared as drawn, on a drawn mesh."""
    random = np.random.default_rng(seed)
    graph = lm.read(random.choice(["example:lenet", "example:alexnet"]))
    shapes = [(2,), (8,), (2, 2), (4, 2), (2, 2, 2)]
    sizes = shapes[int(random.integers(len(shapes)))]
    mesh = DeviceMesh.of(dict(zip("xyz", sizes, strict=False)))
    dimensions = Dimensions.of(graph)
    if random.random() < 0.5:
        labels = drawn(dimensions, mesh, seed)
    else:
        # The batch outside, whatever parameters are: they are gathered for every reader.
        labels = whole(dimensions, mesh)
        labels[0] = cut_along(dimensions, "batch")
        state = [OWNER, FLAT][int(random.integers(2))]
        labels = with_state(Layout(dimensions, mesh, labels), state, parameters=True)
    bucket_bytes = int(random.choice([1, 100_000, 25_000_000]))
    return Lowering(Layout(dimensions, mesh, labels, bucket_bytes=bucket_bytes))


@pytest.mark.parametrize("seed", range(12))
def test_no_parameter_stands_twice_in_a_bucket(seed):
    of = drawn_lowering(seed)
    steps, c = of.conversions.steps, of.conversions
    is_gather = steps.kind == fast.COLLECTIVES.index("all_gather")
    rows = np.flatnonzero((c.traffic[steps.conversion] == WEIGHT) & is_gather)
    row, axis = steps.conversion[rows], steps.axis[rows]
    turned = steps.have[:, rows], c.want[axis, row], c.owner[axis, row]
    gathered = np.vstack([of.buckets.of_step[rows], c.tensor[row], *turned])
    assert np.unique(gathered, axis=1).shape == gathered.shape


def test_a_parameter_is_gathered_once_for_both_passes_that_share_a_bucket():
    of = lowering(parameters={"dp": {"**.weight": "Shard(0)"}})
    c = of.conversions
    weights = c.tensor[c.traffic == WEIGHT]
    assert len(weights) == len(set(weights.tolist())) > 3
    apart = lowering(parameters={"dp": {"**.weight": "Shard(0)"}}, bucket_bytes=1).conversions
    assert len(apart.tensor[apart.traffic == WEIGHT]) > len(weights)


@pytest.mark.parametrize("seed", range(8))
def test_devices_that_have_nothing_of_a_collective_take_no_part(seed):
    of = drawn_lowering(seed)
    expansion, steps, ways = Expansion.of(of), of.conversions.steps, of.layout.ways
    has = (ways.fractions[steps.before] > 0) | (ways.fractions[steps.after] > 0)
    groups = ways.groups(steps.axis)
    for step, members in enumerate(expansion.members.T):
        bucket = of.buckets.of_step == of.buckets.of_step[step]
        for group in np.unique(groups[step]):
            of_group = groups[step] == group
            assert (members[of_group] >= 0).all() == has[bucket][:, of_group].any()
            assert (members[of_group] < 0).all() != has[bucket][:, of_group].any()
