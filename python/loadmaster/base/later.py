"""Functions by where they stand: what is imported when it is asked for."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def imported(place: str) -> Any:
    """A member of a module, which is imported now if it was not before.

    Parameters
    ----------
    place : str
        The module and the name in it, with a colon between them.

    Examples
    --------
    >>> imported("loadmaster.base.later:imported") is imported
    True
    """
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)
