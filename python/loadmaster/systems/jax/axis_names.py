"""Names that a user has for the axes of a mesh."""

from __future__ import annotations

from loadmaster.base.errors import InputError
from loadmaster.systems.shared.uniform_meshes import DATA, MODEL


def named_axes(text: object) -> dict[str, str]:
    """The names that a mesh has for its outer and inner axis, by those that plans have.

    >>> named_axes("data, model")
    {'dp': 'data', 'tp': 'model'}
    """
    names = [name.strip() for name in str(text).split(",")]
    if len(names) != 2 or not all(name.isidentifier() for name in names) or names[0] == names[1]:
        raise InputError(f"axis_names is {text!r}: wants two names of axes, such as 'data,model'")
    return dict(zip((DATA, MODEL), names, strict=True))
