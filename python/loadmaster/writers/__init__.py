"""Writers: a plan in the form that other systems take, a function each.

Every one takes the plan and a path, or None for only the returned document.
"""

from __future__ import annotations

from loadmaster.writers.huggingface import device_map, max_memory
from loadmaster.writers.llama_cpp import llama_cpp
from loadmaster.writers.megatron import megatron
from loadmaster.writers.onnx_segments import OnnxSegments, check_onnx, onnx
from loadmaster.writers.torch_pipelining import pipelining
from loadmaster.writers.vllm import vllm

__all__ = [
    "OnnxSegments",
    "check_onnx",
    "device_map",
    "llama_cpp",
    "max_memory",
    "megatron",
    "onnx",
    "pipelining",
    "vllm",
]
