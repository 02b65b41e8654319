"""Systems that run plans: a folder each, for planning, writing and checking."""

from loadmaster.systems.registry import TARGETS

__all__ = ["TARGETS"]
