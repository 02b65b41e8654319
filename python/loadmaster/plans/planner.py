"""Planner: a method, or a system that is planned for, by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Planner:
    """A method or a target.

    Attributes
    ----------
    name : str
    is_target : bool
        True for a name in :data:`loadmaster.systems.TARGETS`; else it is one of
        :data:`loadmaster.strategies.METHODS`.

    Examples
    --------
    >>> ddp = Planner("ddp", is_target=True)
    >>> str(ddp), ddp.arguments
    ('target ddp', {'target': 'ddp'})
    """

    name: str
    is_target: bool = False

    def __str__(self) -> str:
        return f"target {self.name}" if self.is_target else self.name

    @property
    def arguments(self) -> dict[str, Any]:
        """The argument of :func:`loadmaster.place` that names it."""
        return {"target" if self.is_target else "method": self.name}
