"""Logical axis rules of MaxText and Flax: what they make of the arrays of a decoder."""

from __future__ import annotations

import json
import math
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from written import constants

import loadmaster as lm
from loadmaster.base.errors import InputError
from loadmaster.model.parallelism import Parallelism
from loadmaster.systems.maxtext import flax, write
from loadmaster.systems.maxtext.logical_axes import LogicalAxes

GPT, GPUS = "example:gpt3-330m", "8xH100-NVLink"


@cache
def planned(target, **options):
    return lm.place(lm.read(GPT), lm.Cluster.preset(GPUS), target=target, **options)


def read_yaml(text):
    """The keys of a configuration of MaxText, and its rules."""
    head, _, rules = text.partition("logical_axis_rules: ")
    keys = dict(line.split(": ") for line in head.splitlines() if not line.startswith("#"))
    return keys, json.loads("".join(rules.split()).replace(",]", "]"))


def cut(rules, names):
    """The axes of a mesh that cut each axis of an array, as Flax resolves rules."""
    axes = dict.fromkeys(names, ())
    used = set()
    for name, by in rules:
        by = (by,) if isinstance(by, str) else tuple(by or ())
        if name in axes and not axes[name] and not used & set(by):
            axes[name] = by
            used |= set(by)
    return [axes[name] for name in names]


SIZES = st.sampled_from([1, 2, 4])


@given(replicate=SIZES, shard=SIZES, tp=SIZES, sequence=st.booleans())
def test_each_array_is_in_as_many_parts_as_the_plan_says(replicate, shard, tp, sequence):
    parallelism = Parallelism(
        replicate=replicate,
        shard=shard,
        shard_state="parameters" if shard > 1 else "none",
        tp=tp,
        sequence=sequence and tp > 1,
    )
    axes = LogicalAxes.of(parallelism, "tensor")
    assert math.prod(axes.sizes.values()) == parallelism.devices
    for names, arrays in (
        (flax._NAMES, ("batch", "length", "embed", "mlp", "vocab")),
        (write._NAMES, ("activation_batch", "activation_norm_length", "embed", "mlp", "vocab")),
    ):
        rules, (batch, length, embed, mlp, vocab) = axes.rules(names), arrays

        def parts(*array, rules=rules):
            return [math.prod(axes.sizes[axis] for axis in by) for by in cut(rules, array)]

        assert parts(embed, mlp) == [shard, tp]
        assert parts(vocab, embed) == [tp, shard]
        # An activation's features are whole between the products, and its tokens may be cut.
        tokens = tp if parallelism.sequence else 1
        assert parts(batch, length, embed) == [replicate * shard, tokens, 1]
        assert parts(batch, length, mlp) == [replicate * shard, 1, tp]


@pytest.mark.parametrize(
    "options", [{"tp": 2, "shard": 2, "replicate": 2}, {"tp": 1, "shard": 1}, {"shard": 8}]
)
def test_both_files_say_the_plan(options):
    plan = planned("maxtext", **options)
    parallelism = plan.parallelism
    keys, rules = read_yaml(lm.writers.maxtext(plan))
    sizes = {key: int(size) for key, size in keys.items() if key.startswith("ici_")}
    assert math.prod(sizes.values()) == parallelism.devices == 8
    assert sizes["ici_fsdp_parallelism"] == parallelism.shard
    assert sizes["ici_data_parallelism"] == parallelism.replicate
    assert keys["per_device_batch_size"] == "1"
    assert keys["max_target_length"] == "2048"
    assert {axis for _, by in rules for axis in by} == {
        name.removeprefix("ici_").removesuffix("_parallelism")
        for name, size in sizes.items()
        if size > 1
    }
    file = constants(lm.writers.flax(plan))
    assert list(file["AXES"].values()) == [
        size for size in (parallelism.replicate, parallelism.shard, parallelism.tp) if size > 1
    ]
    assert file["DEVICES"] == list(range(8))
    assert cut(file["RULES"], ("batch", "length", "embed"))[0] == tuple(
        axis for axis in ("data", "fsdp") if axis in file["AXES"]
    )


def test_other_plans_are_written_where_rules_say_them():
    of_fsdp = planned("fsdp", shard_size=4)
    keys, _ = read_yaml(lm.writers.maxtext(of_fsdp))
    assert (keys["ici_data_parallelism"], keys["ici_fsdp_parallelism"]) == ("2", "4")
    with pytest.raises(InputError, match=r"its own planning says which heads .*--target flax"):
        lm.writers.flax(planned("dtensor", tp=2))
