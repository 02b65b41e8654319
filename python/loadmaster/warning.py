"""Warnings that point at the user's own line, wherever in the package they arise."""

from __future__ import annotations

import sys
import warnings


def warn(note: str) -> None:
    """Warns at the first caller outside of this package."""
    level = 1
    frame = sys._getframe(0)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("loadmaster"):
        frame = frame.f_back
        level += 1
    warnings.warn(note, stacklevel=level)
