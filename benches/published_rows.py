"""Rows of the published steps: each as a model, a cluster and a recipe, or the reason why not."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd
from published_captures import Model

#: Reasons for which rows are not planned.
MANY = "16 GPUs and more: plans of so many are another bench's"
FLOAT8 = "8-bit products in training"
TF1 = "TensorFlow 1 programs of 2018 and before"
RATE = "a rate whose address leaves the recipe open"
SERVING = "a server under load: requests come and go"
ROUTED = "routing that depends on values"
DISTURBED = "disturbed as it was measured (FORMAT.md)"
NO_TYPE = "a device type that the package does not know"

#: Classes of rows.
TRAINING, ONE, EIGHT = "LLM training on {}, 16 bit", "`other` on one GPU", "DDP on 8 GPUs"
STEPS, FOUR, FUSED = "f32 steps on one GPU", "f32 steps on four GPUs", "torch.compile, f32"
DECODE = "gpt-fast decode"

#: The peak of TF32 by device type, FLOP/s: NVIDIA's data sheets, dense.
TF32 = {"A100-SXM4-80GB": 156e12}

_V100, _A100 = "V100-SXM2-32GB", "A100-SXM4-80GB"
_GPUS = {"V100": _V100, "A100": _A100, "T4": "T4-16GB", "4090": "RTX4090-24GB"}

#: Device types by the driver's names.
_DRIVER = {
    "NVIDIA_H100_80GB_HBM3": "H100-SXM5-80GB",
    "NVIDIA_A100_80GB_PCIe": "A100-PCIe-80GB",
    "NVIDIA_A100-PCIE-40GB": "A100-PCIe-40GB",
    "NVIDIA_A100-SXM4-40GB": "A100-SXM4-40GB",
    "Tesla_V100-PCIE-32GB": "V100-PCIe-32GB",
    "NVIDIA_L4": "L4-24GB",
    "Tesla_T4": "T4-16GB",
    "Tesla_P4": "P4-8GB",
    "AMD_Instinct_MI100": "MI100-32GB",
}

#: Sizes of Llama: width, layers, heads, heads of keys, inner width, vocabulary.
_LLAMA = {
    "llama3-8b": (4096, 32, 32, 8, 14336, 128256),
    "llama2-7b": (4096, 32, 32, 32, 11008, 32000),
}

#: Sides of pictures where they are not 224.
_SIDES = {"efficientnet_b4": 320}


@dataclass(frozen=True)
class Row:
    """A measured step.

    Attributes
    ----------
    file, line : str, int
        Where it stands.
    name : str
        In words.
    kind : str
        Its class.
    group : str
        Rows that are fitted, or checked, together.
    measured : float
        Seconds.
    reason : str
        Why it is not planned; empty: it is.
    model : Model, optional
    gpus, hosts, network : str, int, str
        The cluster, as :meth:`loadmaster.Cluster.new` takes it.
    target, options
        The recipe, as :func:`loadmaster.place` takes it.
    accumulation : int
        Times that the plan's passes run in a step, before one update.
    updates : bool
        True if an update is part of what was measured.
    tf32 : bool
    runtime : str
        As :func:`loadmaster.place` takes it.
    tokens : int
        Of a step, of all devices.
    peak : float
        Measured GiB of a device; 0: nobody says.
    """

    file: str
    line: int
    name: str
    kind: str
    group: str
    measured: float
    reason: str = ""
    model: Model | None = None
    gpus: str = ""
    hosts: int = 1
    network: str | None = None
    target: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    accumulation: int = 1
    updates: bool = True
    tf32: bool = False
    runtime: str = "eager"
    tokens: int = 0
    peak: float = 0.0

    @property
    def is_check(self) -> bool:
        """True for the third of groups that nothing is fitted on."""
        return hashlib.sha256(self.group.encode()).digest()[0] % 3 == 0


def rows(folders: list[Path]) -> Iterator[Row]:
    """The rows of the files in some folders."""
    for name, read in _READERS.items():
        for folder in folders:
            if (path := folder / name).exists():
                table = pd.read_csv(path).rename(columns={"class": "of_class"})
                for line, row in enumerate(table.itertuples(), 2):
                    yield replace(read(row), file=name, line=line)


def _row(name: str, kind: str, group: str, measured: float, **more: Any) -> Row:
    return Row("", 0, name, kind, group, measured, **more)


def _llm_foundry(row: Any) -> Row:
    again = ", recomputed" if row.recomputation else ""
    name = f"MPT {row.model} {row.length} {row.micro_batch} x {row.accumulation} {row.gpu}{again}"
    parts = row.gpu.split("-")
    device = f"A100 {parts[-1][:2]} GB" if parts[0] == "A100" else parts[0]
    kind, group = TRAINING.format(device), f"MPT {row.model} {row.length}"
    if row.gpus > 8 or "fp8" in row.precision:
        reason = MANY if row.gpus > 8 else FLOAT8
        return _row(name, kind, group, row.step_seconds, reason=reason)
    sizes = row.width, row.layers, row.heads, 50368
    reshard = row.sharding == "FULL_SHARD"
    batch = row.micro_batch * row.gpus
    return _row(
        name,
        kind,
        group,
        row.step_seconds,
        model=Model("gpt", sizes, batch, row.length, "bfloat16", optimizer="AdamW"),
        gpus=f"{row.gpus}x{row.gpu}",
        target="fsdp",
        options={
            "replicas": row.gpus,
            "shard_size": row.gpus,
            "reshard": reshard,
            "recompute": bool(row.recomputation),
        },
        accumulation=row.accumulation,
        tokens=row.batch * row.length,
    )


def _torchtitan(row: Any) -> Row:
    words = f"{row.precision}{', compiled' if row.compiled else ''}, {row.recomputation}"
    name = f"{row.model} {row.length} {row.local_batch} {row.gpu} {row.gpus} GPUs, {words}"
    kind, group = TRAINING.format(row.gpu.split("-")[0]), f"{row.model} {row.length}"
    batch = row.local_batch * row.fsdp
    tokens = batch * row.length
    seconds = tokens / (row.tokens_per_second_per_gpu * row.gpus)
    if row.gpus > 8 or row.precision == "float8":
        reason = MANY if row.gpus > 8 else FLOAT8
        return _row(name, kind, group, seconds, reason=reason)
    sizes = _LLAMA[row.model.replace("llama3.1", "llama3")]
    recompute = "selective" if row.recomputation == "selective" else row.recomputation == "full"
    return _row(
        name,
        kind,
        group,
        seconds,
        model=Model("llama", sizes, batch, row.length, "bfloat16", optimizer="AdamW"),
        gpus=f"{row.gpus}x{row.gpu}",
        target="torchtitan",
        options=_titan(row.fsdp, row.tp, recompute),
        runtime="compiled" if row.compiled else "eager",
        tokens=tokens,
        peak=float(row.memory_gib),
    )


def _titan(shard: int, tp: int, recompute: Any) -> dict[str, Any]:
    sizes = {"replicate": 1, "shard": shard, "tp": tp, "pp": 1, "micro_batches": 1}
    return {**sizes, "recompute": recompute}


def _kempner(row: Any) -> Row:
    layout = f"fsdp {row.fsdp} tp {row.tp}"
    name = f"kempner {row.model} {row.gpus} GPUs, {layout}"
    kind, group = TRAINING.format("H200"), f"kempner {row.model}"
    tokens = row.micro_batch * row.fsdp * row.accumulation * row.length
    if row.gpus > 8:
        return _row(name, kind, group, row.step_seconds, reason=MANY)
    sizes = (row.width, row.layers, row.heads, row.kv_heads, row.inner, row.vocabulary)
    batch = row.micro_batch * row.fsdp
    is_one = row.gpus == 1
    return _row(
        name,
        kind,
        group,
        row.step_seconds,
        model=Model("llama", sizes, batch, row.length, "bfloat16", optimizer="AdamW"),
        gpus=f"{row.gpus_per_host}xH200-SXM-141GB",
        hosts=row.hosts,
        network="NDR" if row.hosts > 1 else None,
        target=None if is_one else "torchtitan",
        options={} if is_one else _titan(row.fsdp, row.tp, True),
        accumulation=row.accumulation,
        runtime="compiled" if row.compiled else "eager",
        tokens=tokens,
        peak=float(row.memory_gb) * 1e9 / 2**30,
    )


def _megatron(row: Any) -> Row:
    name = f"Megatron {row.model} {row.gpus} GPUs, {row.recomputation} recomputation"
    kind, group = TRAINING.format("A100 80 GB"), f"Megatron {row.model}"
    if row.gpus > 8:
        return _row(name, kind, group, row.step_seconds, reason=MANY)
    sizes = row.width, row.layers, row.heads, 51200
    return _row(
        name,
        kind,
        group,
        row.step_seconds,
        model=Model("gpt", sizes, row.batch, row.length, "float16", optimizer="AdamW"),
        gpus=f"{row.gpus}x{_A100}",
        target="megatron",
        options={
            "tp": row.tp,
            "pp": row.pp,
            "dp": row.dp,
            "micro_batches": row.batch // row.micro_batch // row.dp,
            "sequence": bool(row.sequence_parallel),
            "recompute": row.recomputation,
        },
        tokens=row.batch * row.length,
    )


def _other(row: Any) -> Row:
    eager_or_not = ", compiled" if row.compiled else ""
    name = f"{row.id}{eager_or_not}"
    kind = {"ddp": EIGHT, "decode": DECODE}.get(row.of_class, ONE)
    reason = ""
    if row.of_class == "measured only":
        reason = RATE
    elif row.model.startswith(("fastt-", "celeritas-")):
        reason = TF1
    if reason:
        seconds = float("nan") if reason == RATE else float(row.measured_s)
        return _row(name, kind, f"{row.model}", seconds, reason=reason)
    return _row(
        name,
        kind,
        f"{row.model} {row.gpu}",
        float(row.measured_s),
        model=_model_of_other(row),
        gpus=f"{row.gpus}x{_GPUS[row.gpu]}",
        target={DECODE: "vllm", EIGHT: "ddp"}.get(kind) if row.gpus > 1 else None,
        options=_options_of_other(kind, row.gpus),
        updates=row.model != "bert-large",
        tf32=row.precision == "tf32",
        runtime="graphs" if kind == DECODE else "compiled" if row.compiled else "eager",
    )


def _options_of_other(kind: str, gpus: int) -> dict[str, Any]:
    if gpus == 1:
        return {}
    return {"tp": gpus, "pp": 1} if kind == DECODE else {"replicas": gpus}


def _model_of_other(row: Any) -> Model:
    autocast = "float16" if row.precision.endswith("AMP") else ""
    step = "train" if "train" in row.of_class or row.of_class == "ddp" else "inference"
    if row.model == "bert-large":
        batch = int(row.batch_per_gpu_or_micro)
        return Model("bert", ("large",), batch, int(row.seq), autocast=autocast)
    if row.model in ("transformer-big", "tbig"):
        tokens = int(row.id.rsplit("-", 1)[1]) * row.gpus
        return Model("translation", ("big",), tokens // 32, 32, "float32", autocast, step, "Adam")
    if row.model.startswith("gptfast-"):
        sizes = _LLAMA[row.model.removeprefix("gptfast-")]
        return Model("llama", sizes, 1, 105, "bfloat16", step="decode")
    name = {"r50": "resnet50"}.get(row.model, row.model.removeprefix("timm-"))
    batch = int(row.batch_per_gpu_or_micro) * row.gpus
    optimizer = "SGD" if step == "train" else ""
    sizes = name, _SIDES.get(name, 224)
    return Model("torchvision", sizes, batch, 0, "float32", autocast, step, optimizer)


_HOW = {
    "dp4": ("ddp", {"replicas": 4}),
    "tp4": (
        "megatron",
        {"tp": 4, "pp": 1, "dp": 1, "micro_batches": 1, "sequence": False, "recompute": False},
    ),
    "pp4_1": (
        "megatron",
        {"tp": 1, "pp": 4, "dp": 1, "micro_batches": 1, "virtual": 1, "recompute": False},
    ),
}


def _steps(row: Any) -> Row:
    gpus = 4 if row.how in _HOW else 1
    name = f"{row.model} {row.mode} {row.length} {row.batch} {row.device}"
    kind = {"one": STEPS, "fusion": FUSED}.get(row.how, FOUR)
    name = name if row.how == "one" else f"{name}, {row.how}"
    group = f"{row.model} {row.mode}"
    reason = ""
    if row.model.startswith("switch"):
        reason = ROUTED
    elif row.device not in _DRIVER:
        reason = NO_TYPE
    elif row.how == "one" and row.mode == "train" and row.backward < 1.5 * row.forward:
        reason = DISTURBED
    if reason:
        return _row(name, kind, group, row.step, reason=reason)
    target, options = _HOW.get(row.how, (None, {}))
    step = "train" if row.mode == "train" else "inference"
    optimizer = "SGD" if gpus > 1 else ""
    sizes = (row.model,)
    return _row(
        name,
        kind,
        group,
        row.step,
        model=Model("configs", sizes, row.batch, row.length, step=step, optimizer=optimizer),
        gpus=f"{gpus}x{_DRIVER[row.device]}",
        target=target,
        options=options,
        updates=False,
        runtime="compiled" if row.how == "fusion" else "eager",
    )


def _serving(row: Any) -> Row:
    return _row(row.model, "serving", row.model, float("nan"), reason=SERVING)


_READERS: dict[str, Callable[[Any], Row]] = {
    "llm_foundry.csv": _llm_foundry,
    "torchtitan_h100_h200.csv": _torchtitan,
    "kempner_h200.csv": _kempner,
    "megatron_a100.csv": _megatron,
    "other.csv": _other,
    "steps_f32.csv": _steps,
    "serving.csv": _serving,
}
