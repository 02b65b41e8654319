"""Colours of devices in pictures and in files for other programs."""

from __future__ import annotations

#: A colour per device, told apart by most people (Okabe and Ito); more devices go round again.
COLOURS = ("#56b4e9", "#e69f00", "#009e73", "#f0e442", "#0072b2", "#d55e00", "#cc79a7", "#bbbbbb")
NO_DEVICE = "#eeeeee"


def colour(device: int) -> str:
    """The colour of a device; -1: none."""
    return NO_DEVICE if device < 0 else COLOURS[device % len(COLOURS)]
