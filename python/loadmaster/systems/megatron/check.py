"""Megatron-Core's own configurations, of the flags that were written for Megatron-LM's scripts."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from typing import Any

from loadmaster.plans.plan import Plan
from loadmaster.systems.registry import Checked
from loadmaster.systems.shared.own_python import checked_apart

#: Fields of configurations that flags have another name for.
_FIELDS = {"num_experts": "num_moe_experts", "ddp_bucket_size": "bucket_size"}

#: Flags of several words.
_LISTS = ("recompute_modules",)


def checked(plan: Plan, path: str | os.PathLike[str], model: str | None = None) -> Checked:
    """Makes configurations of the file's flags. ``plan`` and ``model`` are not needed.

    Raises
    ------
    InputError
        Megatron-Core refuses them.
    """
    return checked_apart("Megatron-Core", path, f"{__name__}:words")


def words(path: str) -> dict[str, Any]:
    """The sizes that Megatron-Core reads in the file's flags."""
    text = Path(path).read_text(encoding="utf-8")
    flags = shlex.split(text.split("PLAN=(\n", 1)[1].split("\n)\n", 1)[0])
    read = configuration(flags)
    sizes = f"tp {read.tensor_model_parallel_size}, pp {read.pipeline_model_parallel_size}"
    return {"words": f"Megatron-Core takes {len(flags)} words of flags ({sizes})"}


def configuration(flags: Sequence[str]) -> Any:
    """The configuration of a model of these flags, some width and some heads.

    Raises
    ------
    Exception
        Megatron-Core's own.
    """
    import torch
    from megatron.core.distributed.distributed_data_parallel_config import (
        DistributedDataParallelConfig,
    )
    from megatron.core.transformer.pipeline_parallel_layer_layout import PipelineParallelLayerLayout
    from megatron.core.transformer.transformer_config import TransformerConfig

    values = _values(flags)
    micro, whole = values.pop("micro_batch_size", 1), values.pop("global_batch_size", 1)
    if whole % micro:
        raise ValueError(f"a batch of {whole} is no number of micro-batches of {micro}")
    stages = values["pipeline_model_parallel_size"]
    if layout := values.pop("pipeline_model_parallel_layout", None):
        values["pipeline_model_parallel_layout"] = PipelineParallelLayerLayout.from_str(
            layout, stages
        )
    if each := values.pop("num_layers_per_virtual_pipeline_stage", None):
        values["virtual_pipeline_model_parallel_size"] = values["num_layers"] // each // stages
    values.pop("use_distributed_optimizer", None)
    reducer = {field.name for field in fields(DistributedDataParallelConfig)}
    DistributedDataParallelConfig(**{k: v for k, v in values.items() if k in reducer})
    heads = 16 * values["tensor_model_parallel_size"]
    return TransformerConfig(
        hidden_size=64 * heads,
        num_attention_heads=heads,
        add_bias_linear="num_moe_experts" not in values,
        pipeline_dtype=torch.float32,
        **{k: v for k, v in values.items() if k not in reducer},
    )


def _values(flags: Sequence[str]) -> dict[str, Any]:
    """The value of each flag, by its field: a number, a text, texts, or True for none."""
    values: dict[str, Any] = {}
    name = ""
    for word, after in pairwise([*flags, "--"]):
        if word.startswith("--"):
            name = word[2:].replace("-", "_")
            name = _FIELDS.get(name, name)
            values[name] = [] if name in _LISTS else True if after.startswith("--") else None
        elif name in _LISTS:
            values[name].append(word)
        else:
            values[name] = int(word) if word.isdecimal() else word
    return values
