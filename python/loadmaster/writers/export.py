"""Targets by the names that the command line knows: the writer of each, and its options."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from inspect import signature
from typing import Any

import loadmaster.writers as writers
from loadmaster.base.errors import InputError
from loadmaster.base.text import meant
from loadmaster.plans.plan import Plan


@dataclass(frozen=True)
class Target:
    """A form that a plan can be written in.

    Attributes
    ----------
    write
        The writer.
    text : str
        What the target is, for people.
    is_file : bool
        Whether the writer's result is of use in a file only.
    in_segments : bool
        Whether the plan is cut into :class:`~loadmaster.plans.segments.Segments`, so that its step
        may be another than planned.
    """

    write: Callable[..., Any]
    text: str
    is_file: bool = False
    in_segments: bool = False

    @property
    def options(self) -> dict[str, bool]:
        """Options of the writer beside the plan and the path; True: it cannot do without."""
        taken = signature(self.write).parameters.values()
        return {p.name: p.default is p.empty for p in taken if p.kind is p.KEYWORD_ONLY}


_FLAGS = {"path": "-o FILE", "model": "--model FILE"}

#: Every target by the name that ``--target`` takes.
TARGETS: dict[str, Target] = {
    "ddp": Target(writers.ddp, "torch DistributedDataParallel (Python file)"),
    "deepspeed": Target(writers.deepspeed, "DeepSpeed configuration of ZeRO (JSON)"),
    "device-map": Target(writers.device_map, "Hugging Face device_map (JSON)"),
    "pipelining": Target(writers.pipelining, "torch.distributed.pipelining (Python)"),
    "fsdp": Target(writers.fsdp, "torch fully_shard, FSDP2 (Python file)"),
    "eager": Target(
        writers.fx, "PyTorch, eager: device and segment per FX node (JSON)", in_segments=True
    ),
    "graph": Target(
        writers.fx, "PyTorch, graphs: device and segment per FX node (JSON)", in_segments=True
    ),
    "dtensor": Target(writers.dtensor, "DTensor: parallelize(model, mesh) (Python)"),
    "jax": Target(writers.jax, "JAX: mesh and PartitionSpec per array (Python)"),
    "fx": Target(writers.fx, "PyTorch FX: device and segment per node (JSON)", in_segments=True),
    "tensorflow": Target(writers.tensorflow, "TensorFlow device per node (JSON)"),
    "tensorflow-graph": Target(
        writers.tensorflow_graph, "TensorFlow GraphDef with devices (.pb)", is_file=True
    ),
    "onnx": Target(
        writers.onnx,
        "ONNX: sub-models per device and a manifest (folder)",
        is_file=True,
        in_segments=True,
    ),
    "onnx-annotated": Target(
        writers.onnx_annotated,
        "ONNX with metadata_props and device configuration (.onnx)",
        is_file=True,
    ),
    "openvino": Target(writers.openvino, "OpenVINO affinities (JSON)"),
    "vllm": Target(writers.vllm, "vLLM sizes, for --config (YAML)"),
    "megatron": Target(writers.megatron, "Megatron-LM flags (shell script)"),
    "torchtitan": Target(writers.torchtitan, "torchtitan 0.3 configuration (Python file)"),
    "llama-cpp": Target(writers.llama_cpp, "llama.cpp tensor split (JSON)"),
    "chakra": Target(
        writers.chakra, "MLCommons Chakra: execution traces per rank (.et files)", is_file=True
    ),
    "saga": Target(writers.saga, "SAGA: task graph and network (JSON)"),
    "saga-schedule": Target(writers.saga_schedule, "SAGA: the schedule, too (JSON)"),
    "perfetto": Target(writers.perfetto, "Perfetto/Chrome trace (JSON)", is_file=True),
    "graphml": Target(writers.graphml, "GraphML for Gephi, yEd, networkx"),
    "dot": Target(writers.dot, "DOT for Graphviz"),
    "model-explorer": Target(writers.model_explorer, "Model Explorer node data (JSON)"),
    "model-explorer-graph": Target(
        writers.model_explorer_graph, "Model Explorer graph of the plan (JSON)"
    ),
}


def export(
    plan: Plan,
    target: str | None = None,
    path: str | os.PathLike[str] | None = None,
    **options: Any,
) -> Any:
    """Writes a plan in a named form, that of the target that it was planned for if none is named.

    Options that are None count as not given.

    Returns
    -------
    What the writer returns: a document, a text, or an object of the other system.

    Raises
    ------
    InputError
        No such target, an option that the target does not take, an option that is missing, or an
        error of the writer.

    Examples
    --------
    >>> import loadmaster as lm
    >>> from loadmaster.writers.export import export
    >>> plan = lm.place(lm.read("example:lenet"), lm.Cluster.preset("2xV100-NVLink"), "heft")
    >>> export(plan, "tensorflow")["convolution"]
    '/device:GPU:0'
    """
    target = target_for(plan, target)
    if target not in TARGETS:
        raise InputError(f"nothing is written as {target!r}{meant(target, TARGETS)}")
    chosen = TARGETS[target]
    settings = {key: value for key, value in options.items() if value is not None}
    for key in settings:
        if key not in chosen.options:
            raise InputError(f"{target} takes no option {key!r}")
    missing = [key for key, needed in chosen.options.items() if needed and key not in settings]
    if chosen.is_file and path is None:
        missing.append("path")
    for key in missing:
        raise InputError(f"{target} needs a {key}: give {_FLAGS[key]}")
    return chosen.write(plan, path, **settings)


def target_for(plan: Plan, target: str | None) -> str:
    """The target of that name; if there is no name, the one that the plan was made for.

    Raises
    ------
    InputError
        There is neither.
    """
    target = target or plan.target
    if target is None:
        raise InputError(
            "the plan was made for no target of its own, so say what to write it as: --target "
            f"{', '.join(TARGETS)}"
        )
    return target
