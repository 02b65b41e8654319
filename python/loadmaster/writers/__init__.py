"""Writers: a plan in the form that other systems take, a function each.

Every one takes the plan and a path, or None for only what it returns. Each is imported when it is
first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from loadmaster.running.onnx_check import check_onnx
    from loadmaster.running.onnx_processes import OnnxProcesses
    from loadmaster.running.onnx_segments import OnnxSegments
    from loadmaster.writers.pictures.drawings import dot, graphml
    from loadmaster.writers.pictures.trace import write_trace as perfetto
    from loadmaster.writers.targets.chakra_traces import chakra
    from loadmaster.writers.targets.ddp import ddp
    from loadmaster.writers.targets.deepspeed import deepspeed
    from loadmaster.writers.targets.dtensor_plan import dtensor
    from loadmaster.writers.targets.fsdp import fsdp
    from loadmaster.writers.targets.huggingface import device_map, max_memory
    from loadmaster.writers.targets.jax_shardings import jax
    from loadmaster.writers.targets.llama_cpp_split import llama_cpp
    from loadmaster.writers.targets.megatron_layout import megatron
    from loadmaster.writers.targets.model_explorer_data import model_explorer, model_explorer_graph
    from loadmaster.writers.targets.onnx_annotations import onnx_annotated
    from loadmaster.writers.targets.onnx_segments import onnx
    from loadmaster.writers.targets.openvino_affinity import openvino
    from loadmaster.writers.targets.saga_schedule import saga, saga_schedule
    from loadmaster.writers.targets.tensorflow_devices import tensorflow, tensorflow_graph
    from loadmaster.writers.targets.torch_fx import fx, fx_split
    from loadmaster.writers.targets.torch_pipelining import pipelining
    from loadmaster.writers.targets.torchtitan_config import torchtitan
    from loadmaster.writers.targets.vllm_layers import vllm

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

#: Module of each name, from here, and its name there where that is another.
_HOMES = {
    "OnnxProcesses": ".running.onnx_processes",
    "OnnxSegments": ".running.onnx_segments",
    "chakra": "targets.chakra_traces",
    "check_onnx": ".running.onnx_check",
    "ddp": "targets.ddp",
    "deepspeed": "targets.deepspeed",
    "device_map": "targets.huggingface",
    "dot": "pictures.drawings",
    "fsdp": "targets.fsdp",
    "dtensor": "targets.dtensor_plan",
    "fx": "targets.torch_fx",
    "fx_split": "targets.torch_fx",
    "graphml": "pictures.drawings",
    "jax": "targets.jax_shardings",
    "llama_cpp": "targets.llama_cpp_split",
    "max_memory": "targets.huggingface",
    "megatron": "targets.megatron_layout",
    "model_explorer": "targets.model_explorer_data",
    "model_explorer_graph": "targets.model_explorer_data",
    "onnx": "targets.onnx_segments",
    "onnx_annotated": "targets.onnx_annotations",
    "openvino": "targets.openvino_affinity",
    "perfetto": "pictures.trace:write_trace",
    "pipelining": "targets.torch_pipelining",
    "saga": "targets.saga_schedule",
    "saga_schedule": "targets.saga_schedule",
    "tensorflow": "targets.tensorflow_devices",
    "tensorflow_graph": "targets.tensorflow_devices",
    "torchtitan": "targets.torchtitan_config",
    "vllm": "targets.vllm_layers",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, there = _HOMES[name].partition(":")
    return getattr(import_module(f".{module}", __name__), there or name)


def __dir__() -> list[str]:
    return __all__
