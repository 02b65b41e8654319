"""Warnings point at the line of the user's that asked for the work."""

from __future__ import annotations

import sys
import warnings


def warn(note: str) -> None:
    """Warns, as from the first caller outside of this package."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("loadmaster"):
        frame = frame.f_back
        level += 1
    warnings.warn(note, stacklevel=level)
