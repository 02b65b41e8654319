"""transformers' own parser, on what was written for Trainer."""

from __future__ import annotations

import os
from typing import Any

from loadmaster.plans.plan import Plan
from loadmaster.systems.registry import Checked
from loadmaster.systems.shared.own_python import checked_apart


def checked(plan: Plan, path: str | os.PathLike[str], model: str | None = None) -> Checked:
    """Reads the file as TrainingArguments. ``plan`` and ``model`` are not needed.

    Raises
    ------
    InputError
        transformers refuses it.
    """
    return checked_apart("transformers", path, f"{__name__}:words")


def words(path: str) -> dict[str, Any]:
    """Samples and engine that transformers reads in the file."""
    read = arguments(path)
    engine = "fsdp" if read.fsdp else "deepspeed" if read.deepspeed else "ddp"
    of = f"{read.per_device_train_batch_size} samples of a process"
    return {"words": f"transformers reads TrainingArguments with {of} ({engine})"}


def arguments(path: str) -> Any:
    """The file as TrainingArguments.

    Raises
    ------
    Exception
        transformers' own.
    """
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    from transformers import HfArgumentParser, TrainingArguments, training_args

    before = training_args.is_torch_bf16_gpu_available
    training_args.is_torch_bf16_gpu_available = lambda: True  # The plan's devices may be elsewhere.
    try:
        (read,) = HfArgumentParser(TrainingArguments).parse_yaml_file(path)
    finally:
        training_args.is_torch_bf16_gpu_available = before
    return read
