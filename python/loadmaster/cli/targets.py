"""``loadmaster targets``: what ``export`` writes."""

from __future__ import annotations

import argparse
from typing import Any

from loadmaster.cli import options
from loadmaster.cli.printing import show_columns, show_json


def add(commands: Any) -> None:
    """Declares the command."""
    options.add_command(commands, "targets", run, "list what export writes", reads=False)


def run(arguments: argparse.Namespace) -> None:
    """Lists them."""
    from loadmaster.writers.targets.export import TARGETS

    texts = {name: target.text for name, target in TARGETS.items()}
    (show_json if arguments.json else show_columns)(texts)
