"""Flax's own reading of logical axes, by the rules that were written for it."""

from __future__ import annotations

import os
import runpy
from typing import Any

from loadmaster.base.units import counted
from loadmaster.plans.plan import Plan
from loadmaster.systems.registry import Checked
from loadmaster.systems.shared.own_python import checked_apart

#: Arrays of a decoder by their logical axes: a batch, the matrices of a layer, the vocabulary.
_ARRAYS = (
    ("batch", "length", "embed"),
    ("embed", "heads", "kv"),
    ("embed", "mlp"),
    ("mlp", "embed"),
    ("vocab", "embed"),
    ("norm",),
)


def checked(plan: Plan, path: str | os.PathLike[str], model: str | None = None) -> Checked:
    """Has Flax read a decoder's axes by the file's rules. ``plan`` and ``model`` are not needed.

    Raises
    ------
    InputError
        Flax refuses a rule, or JAX the spec that follows from it.
    """
    return checked_apart("Flax", path, f"{__name__}:words")


def words(path: str) -> dict[str, Any]:
    """The number of rules, and of arrays that Flax made specs of."""
    # A device of the host stands for each place; JAX asks for their number before it is imported.
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=512"
    from flax import linen
    from jax.sharding import NamedSharding

    file = runpy.run_path(path)
    mesh, rules = file["mesh"](), file["RULES"]
    for axes in _ARRAYS:
        NamedSharding(mesh, linen.logical_to_mesh_axes(axes, rules))
    of = counted(len(_ARRAYS), "array")
    return {"words": f"Flax reads {counted(len(rules), 'rule')} for {of} of a decoder"}
