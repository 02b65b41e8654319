"""Whole float32 steps that others measured on one device, and what kernels predict for them.

Models are those of ``kernels/configs``, captured on meta by transformers, with attention
written out. Captured graphs are kept in ``.cache/steps``, as the capture takes far longer than the
prediction.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from data import at

import loadmaster as lm
from loadmaster.costs.kernels.seconds import whole_seconds
from loadmaster.costs.roofline import roofline
from loadmaster.model.clusters.devices import DeviceType
from loadmaster.model.machine.types import known_types

CACHE = Path(__file__).parents[1] / ".cache" / "steps"

#: Seconds in which a host launches an op.
LAUNCH = 5e-6

#: Device types by the driver's names.
TYPES = {
    "NVIDIA_H100_80GB_HBM3": "H100-SXM5-80GB",
    "NVIDIA_A100_80GB_PCIe": "A100-PCIe-80GB",
    "NVIDIA_A100-PCIE-40GB": "A100-PCIe-40GB",
    "Tesla_V100-PCIE-32GB": "V100-PCIe-32GB",
    "NVIDIA_L4": "L4-24GB",
    "Tesla_T4": "T4-16GB",
    "Tesla_P4": "P4-8GB",
    "AMD_Instinct_MI100": "MI100-32GB",
}

MODELS = ("bert_large", "gpt2_large", "gpt3_xl", "gpt3_27", "opt_13")

#: AMD's data sheet of a type that the package does not know.
MI100 = DeviceType("MI100-32GB", {"f32": 23.1e12, "f16": 184.6e12}, 1.2288e12)


@dataclass(frozen=True)
class Step:
    """A measured step, and what it takes by the data sheet and by kernels, in seconds."""

    device: str
    model: str
    mode: str
    batch: int
    measured: float
    roofline: float
    kernels: float


def captured(model: str, mode: str, length: int, batch: int) -> lm.OpGraph:
    """A model's step as PyTorch runs it op by op."""
    path = CACHE / f"{model}_{mode}_{length}_{batch}.json.gz"
    if not path.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        _capture(model, mode, length, batch).save(path)
    return lm.read(path)


def _capture(model: str, mode: str, length: int, batch: int) -> lm.OpGraph:
    import torch
    import transformers

    config = json.loads((at("kernels/configs") / f"{model}.json").read_text())
    kind = config.pop("model_type")
    of = transformers.AutoConfig.for_model(kind, **config)
    of._attn_implementation = "eager"
    of.use_cache = False
    bert = "BertForSequenceClassification" if mode == "inf" else "BertLMHeadModel"
    name = {"bert": bert, "gpt2": "GPT2LMHeadModel", "opt": "OPTForCausalLM"}[kind]
    with torch.device("meta"):
        module = getattr(transformers, name)(of)
        ids = torch.zeros(batch, length, dtype=torch.long)
    if mode == "inf":
        return lm.capture(module.eval(), ids, train=False)
    return lm.capture(module.train(), {"input_ids": ids, "labels": ids}, optimizer=None)


def steps(path: Path) -> Iterator[Step]:
    """The steps of a file that ran on one device of a known type, without those disturbed."""
    for row in pd.read_csv(path).itertuples():
        disturbed = row.mode == "train" and row.backward < 1.5 * row.forward
        if row.how != "one" or row.model not in MODELS or row.device not in TYPES or disturbed:
            continue
        graph = captured(row.model, row.mode, row.length, row.batch)
        name = TYPES[row.device]
        device_type = MI100 if name == MI100.name else known_types()[name].type
        yield Step(
            name,
            row.model,
            row.mode,
            row.batch,
            row.step,
            float(roofline(graph, device_type).sum()),
            _eager(graph, device_type),
        )


def _eager(graph: lm.OpGraph, device_type: DeviceType) -> float:
    """Seconds where a host launches ops one by one: no op takes less than its launch."""
    seconds = whole_seconds(graph, device_type).seconds
    return float(np.maximum(seconds, np.where(seconds > 0, LAUNCH, 0.0)).sum())


def table(path: Path) -> list[str]:
    """Lines of a table: a device type a row."""
    every = list(steps(path))
    lines = [
        "| device type | steps | roofline: median error | kernels: median error | worst "
        "| predicted over measured |",
        "|---|---:|---:|---:|---:|---|",
    ]
    names = sorted({step.device for step in every})
    for name in [*names, "all"]:
        some = [step for step in every if name in ("all", step.device)]
        by_sheet = np.array([step.roofline / step.measured for step in some])
        ratio = np.array([step.kernels / step.measured for step in some])
        error = np.abs(ratio - 1)
        each = ", ".join(
            f"{step.model} {step.mode} {step.batch}: {r:.2f}"
            for step, r in zip(some, ratio, strict=True)
        )
        if name == "all":
            each = f"nine in ten within {np.quantile(error, 0.9):.1%}"
        lines.append(
            f"| {name} | {len(some)} | {np.median(np.abs(by_sheet - 1)):.1%} "
            f"| {np.median(error):.1%} | {error.max():.1%} | {each} |"
        )
    return lines
