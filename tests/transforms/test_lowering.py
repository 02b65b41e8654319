"""Lowering: the collectives, buckets and sums of a layout, as data."""

from __future__ import annotations

import numpy as np

import loadmaster as lm
import loadmaster.fast as fast
from loadmaster.transforms.conversions import GRADIENT, UPDATED, WEIGHT
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
