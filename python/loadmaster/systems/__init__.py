"""Systems that run plans: a folder each, for planning, writing and checking."""

from loadmaster.systems.registry import SYSTEMS

__all__ = ["SYSTEMS"]
