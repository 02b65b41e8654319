"""``loadmaster targets``: what is planned for, and what ``export`` writes."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from loadmaster.cli import options
from loadmaster.cli.printing import put, show_columns, show_json

if TYPE_CHECKING:
    from loadmaster.systems.listing import ListedSystem
    from loadmaster.systems.registry import System

#: Facts of a target's semantics, as they are listed.
_SAID = {
    "models": "takes",
    "splits": "may split",
    "unit": "unit",
    "moves": "moves",
    "launches": "launches",
    "memory": "memory",
}


def add(commands: Any) -> None:
    """Declares the command."""
    text = "list the systems that plans are made for, and what export writes"
    command = options.add_command(commands, "targets", run, text, reads=False, examples=("", "ddp"))
    command.add_argument("target", nargs="?", metavar="TARGET", help="say all of this one only")


def run(arguments: argparse.Namespace) -> None:
    """Lists all in a line each, or says what one makes of a plan."""
    from loadmaster.base.errors import InputError
    from loadmaster.base.text import meant
    from loadmaster.systems.listing import ListedSystem, SystemList, systems
    from loadmaster.systems.registry import SYSTEMS
    from loadmaster.writers.export import PICTURES

    pictures = (ListedSystem(name, None, form.text, (), None) for name, form in PICTURES.items())
    rows = {row.name: row for row in (*systems(), *pictures)}
    if arguments.target is not None and arguments.target not in rows:
        raise InputError(f"no target is named {arguments.target!r}{meant(arguments.target, rows)}")
    chosen = list(rows.values()) if arguments.target is None else [rows[arguments.target]]
    if arguments.json:
        show_json({row.name: _document(row, SYSTEMS.get(row.name)) for row in chosen})
        return
    if arguments.target is None:
        put(SystemList(tuple(chosen)))
        put("`loadmaster targets TARGET` says the rest")
        return
    row = rows[arguments.target]
    said = {"installed": row.cells[1], "export writes": row.cells[2]}
    if row.models is not None:
        of = SYSTEMS[row.name].says
        said = {"system": of.system, **{w: getattr(of, f) for f, w in _SAID.items()}, **said}
        options = SYSTEMS[row.name].options
        said |= {f"--option {option.name}": option.words for option in options}
        said["plan for it"] = f"loadmaster place MODEL --target {row.name} --cluster CLUSTER"
    show_columns(said)


def _document(row: ListedSystem, system: System | None) -> dict[str, Any]:
    """A row as plain data, with all that the system says of itself."""
    semantics = system and system.semantics
    return {
        **asdict(row),
        "planned_for": semantics is not None,
        "semantics": semantics and asdict(semantics),
    }
