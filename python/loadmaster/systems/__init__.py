"""Systems that run plans: a folder each, for planning, writing and checking.

The package is also the function :func:`loadmaster.systems`, which lists them.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING

from loadmaster.systems.registry import SYSTEMS

if TYPE_CHECKING:
    from loadmaster.systems.listing import SystemList

__all__ = ["SYSTEMS"]


class _Listing(ModuleType):
    """The package as the function that lists systems."""

    def __call__(self) -> SystemList:
        from loadmaster.systems.listing import systems

        return systems()


sys.modules[__name__].__class__ = _Listing
