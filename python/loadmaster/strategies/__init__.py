"""Strategies: from a problem to a device and a priority per op. One file each, like its paper."""

from __future__ import annotations

import warnings
from typing import Any

from loadmaster.judge.assignment import Assignment
from loadmaster.strategies.candidate import Candidate
from loadmaster.strategies.registry import METHODS, Method, strategy

__all__ = ["METHODS", "Assignment", "Candidate", "Method", "strategy"]


def __getattr__(name: str) -> Any:
    if name != "Placement":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn("Placement is now Assignment", DeprecationWarning, stacklevel=2)
    return _placement


def _placement(
    devices: Any, priority: Any, estimate: float | None = None, is_sequence: bool = False
) -> Assignment:
    """An assignment by the parameters of its old name, which goes with version 0.3."""
    return Assignment(devices, priority, "fixed" if is_sequence else "priority", estimate)
