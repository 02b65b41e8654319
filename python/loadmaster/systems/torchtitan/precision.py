"""The precision of a model under the names of torchtitan's ``TrainingConfig``."""

from __future__ import annotations

from collections.abc import Iterator

from loadmaster.model.graph import OpGraph
from loadmaster.systems.shared.precision import computed_in, dtype_of

#: The types that torchtitan keeps parameters in and computes in.
_TYPES = {"f32": "float32", "bf16": "bfloat16"}


def without_words(graph: OpGraph) -> str | None:
    """The reason why torchtitan has no words for a model's precision; None: it has."""
    kept, computed = dtype_of(graph), computed_in(graph)
    if kept in _TYPES and computed in _TYPES:
        return None
    return (
        f"parameters are in {kept} and products in {computed}, and torchtitan has f32 and bf16 "
        "alone: capture the model in one of these, or under torch.autocast(dtype=torch.bfloat16)"
    )


def precision_settings(graph: OpGraph) -> dict[str, str]:
    """Members of ``TrainingConfig``: types of parameters, of products, of sums of gradients."""
    return {
        "dtype": _TYPES[dtype_of(graph)],
        "mixed_precision_param": _TYPES[computed_in(graph)],
        "mixed_precision_reduce": "float32",
    }


def unsaid(graph: OpGraph) -> Iterator[str]:
    """Sentences on what torchtitan sends in another precision than the plan."""
    kept, computed = dtype_of(graph), computed_in(graph)
    if kept != computed:
        yield f"Parameters are gathered in {_TYPES[computed]}, and in the plan in {_TYPES[kept]}."
    if kept != "f32":
        yield f"Gradients are summed in float32, and in the plan in {_TYPES[kept]}."
