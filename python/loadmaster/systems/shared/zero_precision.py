"""DeepSpeed's words for the precision of a model, and the precisions that it has none for.

Under autocast parameters stay as they are, and so does what is sent of them, which DeepSpeed halves
for the modules that are named as safe: none is. Parameters in bfloat16 have gradients, and state of
the optimizer, in bfloat16 too, where ZeRO is told so. Of parameters in float16 DeepSpeed keeps
copies in float32, and none in float64.
"""

from __future__ import annotations

from typing import Any

from loadmaster.model.graph import OpGraph
from loadmaster.systems.shared.precision import dtype_of, mixed_with

_TORCH = {"f16": "float16", "bf16": "bfloat16"}

_COPIES = (
    "its parameters are in {dtype}, and DeepSpeed keeps copies of them in float32, for which "
    "nothing is planned: capture the model in float32{way}"
)

_WAYS = {
    "f16": " under torch.autocast(dtype=torch.float16), or in bfloat16",
    "bf16": " under torch.autocast(dtype=torch.bfloat16), or plan for stages 1 to 3",
    "f64": "",
}


def kept_otherwise(graph: OpGraph, stage: int) -> str | None:
    """The reason why a stage of ZeRO keeps the parameters in another precision; None: it does not.

    Stage 0 is DeepSpeed without ZeRO.
    """
    dtype = dtype_of(graph)
    if dtype == "f32" or (dtype == "bf16" and stage):
        return None
    return _COPIES.format(dtype={**_TORCH, "f64": "float64"}[dtype], way=_WAYS[dtype])


def precision_settings(graph: OpGraph) -> dict[str, Any]:
    """Members of a configuration of DeepSpeed. Losses in float16 are scaled: it does so itself."""
    if mixed := mixed_with(graph):
        autocast = {"enabled": True, "dtype": _TORCH[mixed], "lower_precision_safe_modules": []}
        return {"torch_autocast": autocast}
    if dtype_of(graph) == "bf16":
        names = ("enabled", "bf16_master_weights_and_grads", "bf16_optimizer_states")
        return {"bf16": dict.fromkeys(names, True)}
    return {}
