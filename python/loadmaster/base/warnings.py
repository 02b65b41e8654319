"""Warnings that point at the user's line, not at one of this package."""

from __future__ import annotations

import sys
import warnings

from loadmaster.base.text import escaped


def warn(*notes: str) -> None:
    """Warns of each note as if the first caller outside of this package did."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("loadmaster"):
        frame = frame.f_back
        level += 1
    for note in notes:
        warnings.warn(escaped(note, but="\n\t"), stacklevel=level)
