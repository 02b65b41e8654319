"""JAX's own shardings, as what was written for it makes them."""

from __future__ import annotations

import os
import runpy
from typing import Any

import numpy as np

from loadmaster.base.units import counted
from loadmaster.model.graph import BUFFER, INPUT, PARAMETER
from loadmaster.model.shapes import parse_output
from loadmaster.plans.plan import Plan
from loadmaster.systems.registry import Checked
from loadmaster.systems.shared.own_python import checked_apart


def checked(plan: Plan, path: str | os.PathLike[str], model: str | None = None) -> Checked:
    """Lays the plan's arrays out as the file does, on devices of the host. ``model`` is not needed.

    Raises
    ------
    InputError
        JAX refuses the mesh, or the spec of an array.
    """
    graph, shapes = plan.graph, dict[str, list[int]]()
    for op in np.flatnonzero(np.isin(graph.stands_for, (PARAMETER, BUFFER, INPUT))).tolist():
        if graph.outputs[op] and (shape := parse_output(graph.outputs[op])[0][1]) is not None:
            shapes[graph.names[op]] = [int(size) for size in shape]
    return checked_apart("JAX", path, f"{__name__}:words", shapes)


def words(path: str, shapes: dict[str, list[int]]) -> dict[str, Any]:
    """The number of arrays that were laid out, and the mesh; ``shapes``: by name."""
    # A device of the host stands for each place; JAX asks for their number before it is imported.
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=512"
    import jax

    file = runpy.run_path(path)
    mesh = file["mesh"]()
    arrays = {name: jax.ShapeDtypeStruct(shape, "float32") for name, shape in shapes.items()}
    laid = file["shardings"](mesh, arrays)
    for name, shape in shapes.items():
        laid[name].shard_shape(tuple(shape))  # It raises where a part is not whole.
    sizes = " x ".join(f"{name} {size}" for name, size in file["AXES"].items())
    return {"words": f"JAX lays {counted(len(shapes), 'array')} out on a mesh of {sizes}"}
