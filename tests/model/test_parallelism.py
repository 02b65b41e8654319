"""Degrees of parallelism: what they are called, what goes together, and their documents."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmaster.base.errors import InputError
from loadmaster.model.micro import IN_V, NAMED
from loadmaster.model.parallelism import Parallelism

#: By hand: as people name each, and its devices.
_NAMED = [
    ({}, "one device", 1),
    ({"replicate": 4}, "DDP over 4", 4),
    ({"shard": 8, "shard_state": "parameters"}, "FSDP over 8", 8),
    ({"replicate": 2, "shard": 4, "shard_state": "parameters"}, "HSDP 2 x 4", 8),
    ({"shard": 8, "shard_state": "optimizer"}, "ZeRO-1 over 8", 8),
    ({"shard": 8, "shard_state": "gradients"}, "ZeRO-2 over 8", 8),
    ({"replicate": 2, "shares": (1, 3)}, "DDP over 2, unequal shares", 2),
    (
        {"shard": 2, "shard_state": "parameters", "micro_batches": 4},
        "FSDP over 2, 4 micro-batches",
        2,
    ),
    (
        {"tp": 8, "stages": 4, "replicate": 2, "schedule": "1f1b", "micro_batches": 16},
        "TP 8 x PP 4 x DP 2, 1F1B, 16 micro-batches",
        64,
    ),
    (
        {"tp": 2, "shard": 4, "shard_state": "optimizer", "sequence": True, "ep": 4},
        "TP 2 x DP 4, ZeRO-1, sequence parallelism, EP 4",
        8,
    ),
    ({"tp": 2, "replicate": 2, "shard": 4, "shard_state": "parameters"}, "TP 2 x HSDP (2 x 4)", 16),
    ({"cp": 2, "shard": 4, "shard_state": "parameters"}, "CP 2 x FSDP 4", 8),
    (
        {"tp": 4, "ep": 4, "experts": "apart", "stages": 2, "schedule": "gpipe"},
        "TP 4 x PP 2, EP 4 within TP",
        8,
    ),
    (
        {
            "stages": 4,
            "virtual": 2,
            "schedule": "interleaved-1f1b",
            "micro_batches": 8,
            "layers": (3, 3, 3, 3, 3, 3, 3, 2),
            "recompute": "full",
        },
        "PP 4, interleaved 1F1B, 2 virtual stages per device, 8 micro-batches, full recomputation",
        4,
    ),
    (
        {"tp": 2, "recompute": "selective", "recompute_modules": ("core_attn", "layernorm")},
        "TP 2, selective recomputation (core_attn, layernorm)",
        2,
    ),
]


@pytest.mark.parametrize(("values", "words", "devices"), _NAMED)
def test_one_line_names_it_as_people_do(values, words, devices):
    parallelism = Parallelism(**values)
    assert str(parallelism) == words
    assert parallelism.devices == devices


@pytest.mark.parametrize(("values", "words", "devices"), _NAMED)
def test_a_document_is_read_back_from_json(values, words, devices):
    parallelism = Parallelism(**values)
    document = json.loads(json.dumps(parallelism.to_document()))
    assert Parallelism.from_document(document) == parallelism
    assert set(document) == set(values)


@given(
    sizes=st.tuples(*[st.integers(1, 4)] * 5),
    state=st.sampled_from(["optimizer", "gradients", "parameters"]),
    schedule=st.sampled_from([*NAMED, "windows"]),
    micro_batches=st.integers(1, 8),
    experts=st.sampled_from(["cut", "apart"]),
)
def test_any_sizes_are_read_back(sizes, state, schedule, micro_batches, experts):
    replicate, shard, tp, cp, stages = sizes
    is_apart = experts == "apart" and tp > 1
    parallelism = Parallelism(
        replicate=replicate,
        shard=shard,
        shard_state=state if shard > 1 else "none",
        tp=tp,
        cp=cp,
        ep=tp * shard if is_apart else replicate,
        experts=experts if is_apart else "cut",
        stages=stages,
        virtual=2 if schedule == IN_V and stages > 1 else 1,
        schedule=schedule if stages > 1 else None,
        micro_batches=micro_batches,
    )
    assert Parallelism.from_document(parallelism.to_document()) == parallelism
    assert parallelism.devices == replicate * shard * tp * cp * stages
    assert parallelism.expert_replicas == (shard if is_apart else replicate)
    assert "\n" not in str(parallelism)


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ({"tp": 0}, "tp is 0"),
        ({"tp": True}, "tp is True"),
        ({"sequence": 1, "tp": 2}, "sequence is 1"),
        ({"sequence": True}, "sequence is for tp"),
        ({"shard": 2}, "shard is 2 and shard_state 'none'"),
        ({"shard_state": "parameters"}, "shard is 1"),
        ({"shard": 2, "shard_state": "all"}, "shard_state is 'all'"),
        ({"replicate": 2, "shares": (1, 2, 3)}, "3 shares for the 2 devices"),
        ({"replicate": 2, "shares": (1, -1)}, "shares is -1"),
        ({"ep": 2}, "2 of the 1 devices"),
        ({"ep": 3, "replicate": 4}, "wants a divisor"),
        ({"ep": 3, "tp": 2, "experts": "apart"}, "wants a multiple of tp"),
        ({"ep": 4, "tp": 2, "experts": "apart"}, "2 of the 1 devices"),
        ({"stages": 2}, "2 stages and the schedule None"),
        ({"schedule": "1f1b"}, "1 stage and the schedule '1f1b'"),
        ({"stages": 2, "schedule": "dualpipe"}, "schedule is 'dualpipe'"),
        ({"stages": 2, "schedule": IN_V}, "2 virtual stages"),
        ({"virtual": 2}, "2 stages or more"),
        ({"layers": (3, 4)}, "2 numbers for 1 virtual stage"),
        ({"layers": "34"}, "layers is '34': wants a list"),
        ({"recompute": "some"}, "recompute is 'some'"),
        ({"recompute": "full", "recompute_modules": ["mlp"]}, "selective recomputation"),
        ({"recompute": "selective", "recompute_layers": [1]}, "full recomputation"),
        ({"recompute": "selective", "recompute_modules": [1]}, "a list of names"),
    ],
)
def test_what_does_not_go_together_is_refused(values, error):
    with pytest.raises(InputError, match=error):
        Parallelism(**values)


@pytest.mark.parametrize(
    ("document", "error"), [([2], "wants a table"), ({"gpus": 8}, "unknown key 'gpus'")]
)
def test_a_document_of_something_else_is_refused(document, error):
    with pytest.raises(InputError, match=error):
        Parallelism.from_document(document)
