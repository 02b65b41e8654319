"""accelerate's own check of a device map, on the model that it is of."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from loadmaster.base.units import format_bytes
from loadmaster.base.user_file import of_user, user_function
from loadmaster.plans.plan import Plan
from loadmaster.systems.registry import Checked
from loadmaster.systems.shared.checked_files import LARGE, size_of, to_build
from loadmaster.systems.shared.own_python import checked_apart


def checked(plan: Plan, path: str | os.PathLike[str], model: str | None = None) -> Checked:
    """Looks up every entry of the map in the model, and every parameter in the map.

    Parameters
    ----------
    plan : Plan
    path : path
        The map.
    model : str, optional
        ``FILE.py:FUNCTION``, that builds the model. Absent: the function that the graph was
        captured from.

    Raises
    ------
    InputError
        accelerate refuses it. The user's function raises.
    """
    spec = to_build(plan, model)
    if isinstance(spec, Checked):
        return spec
    if (size := size_of(plan)) > LARGE:
        return Checked(False, f"the model has parameters of {format_bytes(size)}")
    return checked_apart("accelerate", path, f"{__name__}:words", spec)


def words(path: str, model: str) -> dict[str, Any]:
    """The number of entries of the map, if it is one of the model."""
    from accelerate.utils.modeling import check_device_map

    function = user_function(model)
    with of_user(model):
        module = function()["model"]
    device_map = json.loads(Path(path).read_text(encoding="utf-8"))
    check_device_map(module, device_map)
    return {"words": f"accelerate has all parameters in a map of {len(device_map)} entries"}
