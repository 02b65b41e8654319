"""Writers: a plan in the form that other systems take, a function each.

Every one takes the plan and a path, or None for only what it returns. Each is imported when it is
first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from loadmaster.writers.drawings import dot, graphml
    from loadmaster.writers.huggingface import device_map, max_memory
    from loadmaster.writers.llama_cpp_split import llama_cpp
    from loadmaster.writers.megatron_layout import megatron
    from loadmaster.writers.model_explorer_data import model_explorer, model_explorer_graph
    from loadmaster.writers.onnx_annotations import onnx_annotated
    from loadmaster.writers.onnx_segments import OnnxSegments, check_onnx, onnx
    from loadmaster.writers.openvino_affinity import openvino
    from loadmaster.writers.tensorflow_devices import tensorflow, tensorflow_graph
    from loadmaster.writers.torch_fx import fx, fx_split
    from loadmaster.writers.torch_pipelining import pipelining
    from loadmaster.writers.trace import write_trace as perfetto
    from loadmaster.writers.vllm_layers import vllm

__all__ = [
    "OnnxSegments",
    "check_onnx",
    "device_map",
    "dot",
    "fx",
    "fx_split",
    "graphml",
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
    "tensorflow",
    "tensorflow_graph",
    "vllm",
]

#: Module of each name, and its name there where that is another.
_HOMES = {
    "OnnxSegments": "onnx_segments",
    "check_onnx": "onnx_segments",
    "device_map": "huggingface",
    "dot": "drawings",
    "fx": "torch_fx",
    "fx_split": "torch_fx",
    "graphml": "drawings",
    "llama_cpp": "llama_cpp_split",
    "max_memory": "huggingface",
    "megatron": "megatron_layout",
    "model_explorer": "model_explorer_data",
    "model_explorer_graph": "model_explorer_data",
    "onnx": "onnx_segments",
    "onnx_annotated": "onnx_annotations",
    "openvino": "openvino_affinity",
    "perfetto": "trace:write_trace",
    "pipelining": "torch_pipelining",
    "tensorflow": "tensorflow_devices",
    "tensorflow_graph": "tensorflow_devices",
    "vllm": "vllm_layers",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, there = _HOMES[name].partition(":")
    return getattr(import_module(f"{__name__}.{module}"), there or name)


def __dir__() -> list[str]:
    return __all__
