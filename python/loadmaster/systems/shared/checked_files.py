"""Written files of PyTorch, built and run once by PyTorch itself, on processes that are not there.

The file's own ``parallelize`` wraps the model, and a forward and a backward pass run under the fake
process group of PyTorch (:mod:`.fake_processes`), in a Python of its own.
"""

from __future__ import annotations

import os

import numpy as np

from loadmaster.base.units import format_bytes
from loadmaster.model.graph import PARAMETER
from loadmaster.plans.plan import Plan
from loadmaster.systems.registry import Checked
from loadmaster.systems.shared.own_python import checked_apart
from loadmaster.transforms.shares import batch_size

#: Bytes of parameters of a model that is built for a check, at most.
_BYTES = 2**30

_PLACE = "loadmaster.systems.shared.fake_processes:passes"


def checked(plan: Plan, path: str | os.PathLike[str], model: str | None = None) -> Checked:
    """Runs a forward and a backward pass of what was written, as one process of many.

    Parameters
    ----------
    plan : Plan
    path : path
        The file.
    model : str, optional
        ``FILE.py:FUNCTION``, that builds the model. Absent: the function that the graph was
        captured from.

    Raises
    ------
    InputError
        It does not run: PyTorch's own message. The user's function raises.
    """
    spec = to_build(plan, model)
    if isinstance(spec, Checked):
        return spec
    degrees = plan.parallelism
    shares = degrees.replicate * degrees.shard if degrees is not None else 1
    batch = batch_size(plan.graph) or shares
    return checked_apart("PyTorch", path, _PLACE, spec, batch, shares)


def to_build(plan: Plan, model: str | None) -> str | Checked:
    """``FILE.py:FUNCTION`` that builds the model, if that is small; else why nothing is checked."""
    spec, graph = model or plan.graph.meta.get("file"), plan.graph
    if not isinstance(spec, str):
        return Checked(False, "no model to build: --model FILE.py:FUNCTION gives one")
    size = int(graph.param_bytes[np.flatnonzero(graph.stands_for == PARAMETER)].sum())
    if size > _BYTES:
        return Checked(False, f"the model has parameters of {format_bytes(size)}")
    return spec
