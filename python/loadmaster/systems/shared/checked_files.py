"""Written files of PyTorch, built and run once by PyTorch itself, on processes that are not there.

The file's own ``parallelize`` wraps the model, and a forward and a backward pass run under the fake
process group of PyTorch (:mod:`.fake_processes`), in a Python of its own.
"""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np

from loadmaster.model.graph import PARAMETER
from loadmaster.plans.plan import Plan
from loadmaster.systems.registry import Checked
from loadmaster.systems.shared.own_python import checked_apart
from loadmaster.systems.shared.priced_collectives import in_words, priced_collectives
from loadmaster.transforms.shares import batch_size

#: Bytes of parameters of a model that is built with data for a check, at most.
LARGE = 2**30

_PLACE = "loadmaster.systems.shared.fake_processes:passes"


def checked(plan: Plan, path: str | os.PathLike[str], model: str | None = None) -> Checked:
    """Runs a forward and a backward pass of what was written, as one process of many, and holds its
    collectives against the plan's.

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
    place = f"{_PLACE}_without_data" if size_of(plan) > LARGE else _PLACE
    outcome = checked_apart("PyTorch", path, place, spec, batch, shares)
    return beside_plan(plan, outcome) if outcome.is_done else outcome


def beside_plan(plan: Plan, outcome: Checked) -> Checked:
    """An outcome that says as well if the collectives that ran are those of the plan."""
    ran, planned = {k: tuple(n) for k, n in outcome.collectives.items()}, priced_collectives(plan)
    if ran == planned:
        words = in_words(ran)
        said = f"with the {words} of the plan" if ran else f"with {words}, as planned"
        return replace(outcome, words=f"{outcome.words}, {said}", planned=planned)
    differs = (
        f"the file runs {in_words(ran, sized=True)}, and the plan prices "
        f"{in_words(planned, sized=True)}"
    )
    words = f"{outcome.words}, with {in_words(ran)}"
    return replace(outcome, words=words, planned=planned, differs=differs)


def to_build(plan: Plan, model: str | None) -> str | Checked:
    """``FILE.py:FUNCTION`` that builds the model; else why nothing is checked."""
    spec = model or plan.graph.meta.get("file")
    if not isinstance(spec, str):
        return Checked(False, "no model to build: --model FILE.py:FUNCTION gives one")
    return spec


def size_of(plan: Plan) -> int:
    """Bytes of the model's parameters."""
    graph = plan.graph
    return int(graph.param_bytes[np.flatnonzero(graph.stands_for == PARAMETER)].sum())
