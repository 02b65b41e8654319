"""``loadmaster targets``: what is planned for, and what ``export`` writes."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import Any

from loadmaster.cli import options
from loadmaster.cli.printing import put, show_columns, show_json

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
    from loadmaster.systems.registry import SYSTEMS, is_planned_for
    from loadmaster.writers.export import forms

    written = forms()
    known = list(dict.fromkeys([*SYSTEMS, *written]))
    if arguments.target is not None and arguments.target not in known:
        raise InputError(f"no target is named {arguments.target!r}{meant(arguments.target, known)}")
    chosen = known if arguments.target is None else [arguments.target]
    texts = {name: written[name].text if name in written else None for name in chosen}
    semantics = {name: SYSTEMS[name].says for name in chosen if is_planned_for(name)}
    if arguments.json:
        show_json(
            {
                name: {
                    "writes": text,
                    "planned_for": name in semantics,
                    "semantics": asdict(semantics[name]) if name in semantics else None,
                }
                for name, text in texts.items()
            }
        )
        return
    if arguments.target is None:
        _list(texts, list(semantics))
        return
    writes = texts[arguments.target] or "nothing: no other system reads it"
    said = {"export writes": writes}
    for name, of in semantics.items():
        said = {"system": of.system, **{w: getattr(of, f) for f, w in _SAID.items()}, **said}
        said |= {f"--option {option.name}": option.words for option in SYSTEMS[name].options}
        said["plan for it"] = f"loadmaster place GRAPH --cluster CLUSTER --target {name}"
    show_columns(said)


def _list(texts: dict[str, str | None], planned: list[str]) -> None:
    show_columns(
        {
            name: f"{'planned for; ' if name in planned else ''}{text or 'nothing is written'}"
            for name, text in texts.items()
        }
    )
    if planned:
        put(f"place --target takes {', '.join(planned)}; `loadmaster targets TARGET` says the rest")
