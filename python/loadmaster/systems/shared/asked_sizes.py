"""Sizes of a grid of devices that a user asks for: a message for each that no grid can have."""

from __future__ import annotations

from math import prod

from loadmaster.base import checks
from loadmaster.base.errors import InputError
from loadmaster.dimensions.dimensions import Dimensions
from loadmaster.judge.problem import Problem
from loadmaster.rules.layer_list import LayerList
from loadmaster.strategies.grids.tensor_parallel import check_heads


def check_sizes(
    problem: Problem,
    layer_list: LayerList,
    n_devices: int,
    *,
    tp: int | None,
    pp: int | None,
    dp: int | None = None,
) -> None:
    """Checks the sizes that a user asked for; None: the planner chooses.

    Raises
    ------
    InputError
        More devices than there are, more stages than layers, heads that do not go into ``tp`` equal
        parts. The message names what is in the way.
    """
    sizes = {"tp": tp, "pp": pp, "dp": dp}
    asked = {name: size for name, size in sizes.items() if size is not None}
    for name, size in asked.items():
        checks.integer(name, size, 1)
    if (needed := prod(asked.values())) > n_devices:
        said = " x ".join(f"{name} {size}" for name, size in asked.items())
        raise InputError(f"{said} takes {needed} devices, and there are {n_devices} to use")
    if pp is not None and pp > len(layer_list):
        raise InputError(f"pp is {pp}, and a stage has one of the {len(layer_list)} layers or more")
    if tp is not None and tp > 1:
        check_heads(Dimensions.of(problem.model), tp, n_devices)
