"""Writers: a plan in the form that other systems take, a function each.

Every one takes the plan and a path, or None for only what it returns. Each is imported when it is
first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from loadmaster.running.onnx.check import check_onnx
    from loadmaster.running.onnx.processes import OnnxProcesses
    from loadmaster.running.onnx.segments import OnnxSegments
    from loadmaster.systems.accelerate.write import device_map, max_memory
    from loadmaster.systems.chakra.write import chakra
    from loadmaster.systems.ddp.write import ddp
    from loadmaster.systems.deepspeed.write import deepspeed
    from loadmaster.systems.dtensor.write import dtensor
    from loadmaster.systems.eager.write import fx, fx_split
    from loadmaster.systems.fsdp.write import fsdp
    from loadmaster.systems.jax.write import jax
    from loadmaster.systems.llama_cpp.write import llama_cpp
    from loadmaster.systems.megatron.write import megatron
    from loadmaster.systems.model_explorer.write import model_explorer, model_explorer_graph
    from loadmaster.systems.onnx.annotations import onnx_annotated
    from loadmaster.systems.onnx.write import onnx
    from loadmaster.systems.openvino.write import openvino
    from loadmaster.systems.pipelining.write import pipelining
    from loadmaster.systems.saga.write import saga, saga_schedule
    from loadmaster.systems.tensorflow.write import tensorflow, tensorflow_graph
    from loadmaster.systems.torchtitan.write import torchtitan
    from loadmaster.systems.vllm.write import vllm
    from loadmaster.writers.pictures.drawings import dot, graphml
    from loadmaster.writers.pictures.trace import write_trace as perfetto

__all__ = [
    "OnnxProcesses",
    "OnnxSegments",
    "chakra",
    "check_onnx",
    "ddp",
    "deepspeed",
    "device_map",
    "dot",
    "dtensor",
    "fsdp",
    "fx",
    "fx_split",
    "graphml",
    "jax",
    "llama_cpp",
    "max_memory",
    "megatron",
    "model_explorer",
    "model_explorer_graph",
    "onnx",
    "onnx_annotated",
    "openvino",
    "perfetto",
    "pipelining",
    "saga",
    "saga_schedule",
    "tensorflow",
    "tensorflow_graph",
    "torchtitan",
    "vllm",
]

#: Module of each name, and its name there where that is another.
_HOMES = {
    "OnnxProcesses": "running.onnx.processes",
    "OnnxSegments": "running.onnx.segments",
    "chakra": "systems.chakra.write",
    "check_onnx": "running.onnx.check",
    "ddp": "systems.ddp.write",
    "deepspeed": "systems.deepspeed.write",
    "device_map": "systems.accelerate.write",
    "dot": "writers.pictures.drawings",
    "dtensor": "systems.dtensor.write",
    "fsdp": "systems.fsdp.write",
    "fx": "systems.eager.write",
    "fx_split": "systems.eager.write",
    "graphml": "writers.pictures.drawings",
    "jax": "systems.jax.write",
    "llama_cpp": "systems.llama_cpp.write",
    "max_memory": "systems.accelerate.write",
    "megatron": "systems.megatron.write",
    "model_explorer": "systems.model_explorer.write",
    "model_explorer_graph": "systems.model_explorer.write",
    "onnx": "systems.onnx.write",
    "onnx_annotated": "systems.onnx.annotations",
    "openvino": "systems.openvino.write",
    "perfetto": "writers.pictures.trace:write_trace",
    "pipelining": "systems.pipelining.write",
    "saga": "systems.saga.write",
    "saga_schedule": "systems.saga.write",
    "tensorflow": "systems.tensorflow.write",
    "tensorflow_graph": "systems.tensorflow.write",
    "torchtitan": "systems.torchtitan.write",
    "vllm": "systems.vllm.write",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, there = _HOMES[name].partition(":")
    return getattr(import_module(f"loadmaster.{module}"), there or name)


def __dir__() -> list[str]:
    return __all__
