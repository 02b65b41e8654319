"""Writers: a plan in the form that other systems take, a function each.

Every one takes the plan and a path, or None for only what it returns.
"""

from __future__ import annotations

from loadmaster.writers.drawings import dot, graphml
from loadmaster.writers.huggingface import device_map, max_memory
from loadmaster.writers.llama_cpp import llama_cpp
from loadmaster.writers.megatron import megatron
from loadmaster.writers.model_explorer import model_explorer, model_explorer_graph
from loadmaster.writers.onnx_annotated import onnx_annotated
from loadmaster.writers.onnx_segments import OnnxSegments, check_onnx, onnx
from loadmaster.writers.openvino_affinity import openvino
from loadmaster.writers.tensorflow_devices import tensorflow, tensorflow_graph
from loadmaster.writers.torch_fx import fx, fx_split
from loadmaster.writers.torch_pipelining import pipelining
from loadmaster.writers.trace import write_trace as perfetto
from loadmaster.writers.vllm import vllm

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
