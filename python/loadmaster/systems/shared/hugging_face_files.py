"""Parts that files of Hugging Face's accelerate and Trainer share, and limits of both."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from loadmaster.plans.plan import Plan
from loadmaster.systems.shared.class_units import ClassUnits, class_units
from loadmaster.systems.shared.engine_of_plan import ranked_devices
from loadmaster.systems.shared.engines import Engine
from loadmaster.systems.shared.precision import mixed_with
from loadmaster.systems.shared.processes import family_of, machines
from loadmaster.systems.shared.refusal import Reason
from loadmaster.systems.shared.replicated_plans import settings_of


def not_of_accelerate(plan: Plan, engine: Engine) -> Iterator[Reason]:
    """Everything of a plan for an engine that accelerate does otherwise."""
    if engine != "ddp" and family_of(plan, ranked_devices(plan)) == "cpu":
        yield f"accelerate starts {engine} on accelerators alone, and processes are on CPUs"
    if engine == "fsdp":
        yield from class_units(plan)[1]
    if engine == "ddp":
        settings = settings_of(plan)
        if settings["optimizer"] != "replicated":
            yield "the optimizer is sharded by whole parameters"
        if settings["batch_norm"] != "local":
            yield "batch norms have the statistics of the whole batch"


def wrapping(units: ClassUnits) -> dict[str, Any]:
    """The settings of FSDP2, under the names that both have."""
    said: dict[str, Any] = {"auto_wrap_policy": "NO_WRAP"}
    if units.classes:
        said = {
            "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "transformer_layer_cls_to_wrap": ",".join(units.classes),
        }
    return said | {
        "reshard_after_forward": units.again,
        "activation_checkpointing": units.recomputed,
    }


def command(plan: Plan, devices: Sequence[int]) -> str:
    """The beginning of a command that runs processes on these devices: their environment."""
    return "ACCELERATE_USE_CPU=true " if family_of(plan, devices) == "cpu" else ""


def unsaid(plan: Plan, engine: Engine) -> Iterator[str]:
    """Sentences on what a run does otherwise than the plan."""
    if engine == "ddp" and plan.target is None:
        yield (
            "The plan was made for no target: buckets and gradients take room for the whole step, "
            "which its peaks leave out."
        )
    if engine == "fsdp":
        yield (
            "accelerate gathers a model's last norm, and of a model of transformers the embedding "
            "and the head too, apart from the rest of it: up to two more collectives each way."
        )
        if mixed_with(plan.graph):
            yield (
                "accelerate gathers parameters, and sums gradients, in the type of products: half "
                "of the bytes that the plan has."
            )
    if (n := machines(plan, ranked_devices(plan))) > 1:
        yield (
            f"Run it on each of {n} machines, with --machine_rank, --main_process_ip and "
            "--main_process_port."
        )
