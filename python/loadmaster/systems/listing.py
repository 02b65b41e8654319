"""The list of systems: models that each takes, what is written for it, and if it is installed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from loadmaster.base.text import Printed, aligned
from loadmaster.systems.registry import SYSTEMS

#: The head of the list as it is printed.
HEAD = ("target", "installed", "export writes", "takes")


@dataclass(frozen=True)
class ListedSystem:
    """A system in a line.

    Attributes
    ----------
    name : str
        As ``target=`` and ``--target`` take it.
    models : str or None
        The kind of models that it is planned for; None: nothing is planned for it, it reads plans.
    writes : str or None
        The form of its files; None: nothing is written for it.
    packages : tuple of str
        Distributions of Python any of which is the system; empty: none is.
    installed : str or None
        That one of them which is installed, and its version.
    """

    name: str
    models: str | None
    writes: str | None
    packages: tuple[str, ...]
    installed: str | None

    @property
    def cells(self) -> tuple[str, ...]:
        """The row as it is printed."""
        package = f"no {self.packages[0]}" if self.packages else "-"
        models = self.models or "plans, is not planned for"
        return self.name, self.installed or package, self.writes or "nothing", models


@dataclass(frozen=True)
class SystemList(Printed):
    """Systems by name, a row each.

    Attributes
    ----------
    rows : tuple of ListedSystem
    """

    rows: tuple[ListedSystem, ...]

    def __iter__(self) -> Iterator[ListedSystem]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __str__(self) -> str:
        return "\n".join(aligned([HEAD, *(row.cells for row in self.rows)]))

    def to_document(self) -> dict[str, Any]:
        """As plain data for JSON, by name."""
        return {row.name: asdict(row) for row in self.rows}


def systems() -> SystemList:
    """The systems that plans are made for or written for, which models each takes, and which are
    installed. Nothing is imported to see that. O(systems).

    Examples
    --------
    >>> import loadmaster as lm
    >>> next(row.models for row in lm.systems() if row.name == "onnx")
    'the inference of an ONNX model, as it was read'
    """
    return SystemList(
        tuple(
            ListedSystem(
                name,
                system.semantics.models if system.semantics else None,
                system.form.text if system.form else None,
                system.packages,
                system.version,
            )
            for name, system in SYSTEMS.items()
        )
    )
