"""``loadmaster examples``: the graphs that come along."""

from __future__ import annotations

import argparse
from typing import Any

from loadmaster.cli import options
from loadmaster.cli.printing import show_columns, show_json


def add(commands: Any) -> None:
    """Declares the command."""
    options.add_command(
        commands, "examples", run, "list the graphs that come along", reads=False, examples=("",)
    )


def run(arguments: argparse.Namespace) -> None:
    """Lists them."""
    from loadmaster.readers.examples import EXAMPLES

    texts = {name: text for name, (_, text) in sorted(EXAMPLES.items())}
    if arguments.json:
        show_json(texts)
    else:
        show_columns({f"example:{name}": text for name, text in texts.items()})
