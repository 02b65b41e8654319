"""Parts of files whose modules ``fully_shard`` wraps, or are recomputed.

Parameters of a single number have nothing to divide: every process has them whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from loadmaster.base.quoting import Code, lines, python, python_file
from loadmaster.model.graph import PARAMETER, OpGraph
from loadmaster.model.shapes import parse_output
from loadmaster.plans.plan import Plan
from loadmaster.systems.shared.sharded_plans import modules_in

_UNITS = """
#: Modules whose parameters one collective gathers, and whether they are gathered again in the
#: backward pass. The model has the rest, and keeps it.
UNITS = {units}
"""

_WHOLE = """
#: Parameters of a single number: every process has them, and their gradients are summed.
WHOLE = {paths}
"""

_IGNORED = Code(', "ignored_params": {model.get_parameter(path) for path in WHOLE}')

_SUMMED = (
    "for path in WHOLE:",
    "    if (gradient := model.get_parameter(path).grad) is not None:",
    "        dist.all_reduce(gradient)",
    "        gradient /= PROCESSES",
)

_RECOMPUTED = """
#: Modules whose activations are recomputed in the backward pass.
RECOMPUTED = {paths}
"""

_WRAP = """\
    anew = [model.get_submodule(path) for path in RECOMPUTED]
    apply_activation_checkpointing(model, check_fn=lambda module: module in anew)
"""

_FULLY_SHARD = "from torch.distributed.fsdp import fully_shard"

_CHECKPOINTING = """\
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    apply_activation_checkpointing,
)"""


@dataclass(frozen=True)
class WrappedModules:
    """Parts of a file that are about wrapped modules.

    Attributes
    ----------
    parts : dict of str to Code
        By their names in the template: ``units``, ``whole`` and ``recomputed`` are constants,
        ``wrap`` is lines of ``parallelize``, ``but`` ends the options of ``fully_shard``.
    imports : tuple of str
    after : tuple of str
        Lines behind the backward pass.
    """

    parts: dict[str, Code]
    imports: tuple[str, ...]
    after: tuple[str, ...]


def wrapped_modules(
    plan: Plan, units: Mapping[str, bool] | None, name: Callable[[str], str]
) -> WrappedModules:
    """The parts of a file.

    Parameters
    ----------
    plan : Plan
    units : mapping of str to bool, or None
        Modules that are wrapped, and whether they are gathered again; None: nothing is wrapped.
    name : callable
        From a path in the graph to that in the model.
    """
    graph = plan.graph
    recomputed = plan.recipe.recompute if plan.recipe is not None else ()
    again = [name(path) for path in modules_in(plan, recomputed)]
    whole = [name(graph.names[op]) for op in _numbers(graph)] if units is not None else []
    imports = [*[_FULLY_SHARD] * (units is not None), *[_CHECKPOINTING] * bool(again)]
    written = {
        "units": python_file(_UNITS if units is not None else "", units=_table(units or {})),
        "whole": python_file(_WHOLE if whole else "", paths=_table(whole)),
        "but": _IGNORED if whole else Code(""),
        "recomputed": python_file(_RECOMPUTED if again else "", paths=_table(again)),
        "wrap": Code(_WRAP if again else ""),
    }
    return WrappedModules(written, tuple(imports), _SUMMED if whole else ())


def _numbers(graph: OpGraph) -> list[int]:
    """Parameters of no dimension, by index."""
    of = np.flatnonzero(graph.stands_for == PARAMETER).tolist()
    return [op for op in of if graph.outputs[op] and parse_output(graph.outputs[op])[0][1] == ()]


def _table(rows: Mapping[str, bool] | Sequence[str]) -> Code:
    """A dictionary or a tuple, a line for each."""
    if isinstance(rows, Mapping):
        of = lines(Code(f"    {python(path)}: {again},") for path, again in rows.items())
        return Code(f"{{\n{of}\n}}" if rows else "{}")
    return Code(f"(\n{lines(Code(f'    {python(path)},') for path in rows)}\n)")
