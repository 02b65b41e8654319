"""Writers: a plan in the form that other systems take, a function each.

Every one takes the plan and a path, or None for only what it returns. Each is imported when it is
first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from loadmaster.base.later import imported

# For type checkers and editors. A writer that is not here is looked up all the same.
if TYPE_CHECKING:
    from loadmaster.running.onnx.check import check_onnx as check_onnx
    from loadmaster.running.onnx.processes import OnnxProcesses as OnnxProcesses
    from loadmaster.running.onnx.segments import OnnxSegments as OnnxSegments
    from loadmaster.systems.accelerate.write import (
        device_map as device_map,
    )
    from loadmaster.systems.accelerate.write import (
        max_memory as max_memory,
    )
    from loadmaster.systems.accelerate_config.write import accelerate as accelerate
    from loadmaster.systems.autoparallel.write import autoparallel as autoparallel
    from loadmaster.systems.chakra.write import chakra as chakra
    from loadmaster.systems.ddp.write import ddp as ddp
    from loadmaster.systems.deepspeed.write import deepspeed as deepspeed
    from loadmaster.systems.dtensor.write import dtensor as dtensor
    from loadmaster.systems.eager.write import fx as fx
    from loadmaster.systems.eager.write import fx_split as fx_split
    from loadmaster.systems.fsdp.write import fsdp as fsdp
    from loadmaster.systems.jax.write import jax as jax
    from loadmaster.systems.lightning.write import lightning as lightning
    from loadmaster.systems.llama_cpp.write import llama_cpp as llama_cpp
    from loadmaster.systems.maxtext.flax import flax as flax
    from loadmaster.systems.maxtext.write import maxtext as maxtext
    from loadmaster.systems.megatron.write import megatron as megatron
    from loadmaster.systems.model_explorer.write import (
        model_explorer as model_explorer,
    )
    from loadmaster.systems.model_explorer.write import (
        model_explorer_graph as model_explorer_graph,
    )
    from loadmaster.systems.onnx.annotations import onnx_annotated as onnx_annotated
    from loadmaster.systems.onnx.write import onnx as onnx
    from loadmaster.systems.openvino.write import openvino as openvino
    from loadmaster.systems.pipelining.write import pipelining as pipelining
    from loadmaster.systems.ray.write import ray as ray
    from loadmaster.systems.saga.write import saga as saga
    from loadmaster.systems.saga.write import saga_schedule as saga_schedule
    from loadmaster.systems.sglang.write import sglang as sglang
    from loadmaster.systems.simplefsdp.write import simplefsdp as simplefsdp
    from loadmaster.systems.tensorflow.write import (
        tensorflow as tensorflow,
    )
    from loadmaster.systems.tensorflow.write import (
        tensorflow_graph as tensorflow_graph,
    )
    from loadmaster.systems.tensorrt_llm.write import tensorrt_llm as tensorrt_llm
    from loadmaster.systems.torchtitan.write import torchtitan as torchtitan
    from loadmaster.systems.trainer.write import trainer as trainer
    from loadmaster.systems.vllm.write import vllm as vllm
    from loadmaster.writers.pictures.drawings import dot as dot
    from loadmaster.writers.pictures.drawings import graphml as graphml
    from loadmaster.writers.pictures.trace import write_trace

    perfetto = write_trace

#: Functions and classes beside the writers: what runs and checks what was written.
_BESIDE = {
    "OnnxProcesses": "loadmaster.running.onnx.processes:OnnxProcesses",
    "OnnxSegments": "loadmaster.running.onnx.segments:OnnxSegments",
    "check_onnx": "loadmaster.running.onnx.check:check_onnx",
}


def _places() -> dict[str, str]:
    """Every name that the module has by itself, and where it stands, in the order of the names."""
    from loadmaster.systems.registry import SYSTEMS
    from loadmaster.writers.export import forms

    places = {name.replace("-", "_"): form.place for name, form in forms().items()} | _BESIDE
    for system in SYSTEMS.values():
        places |= {place.partition(":")[2]: place for place in system.beside}
    return dict(sorted(places.items()))


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return list(_places())
    if name.startswith("_") or name not in (places := _places()):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return imported(places[name])


def __dir__() -> list[str]:
    return list(_places())
