"""``loadmaster diff``: two saved plans or runs for one graph, side by side."""

from __future__ import annotations

import argparse
from typing import Any

from loadmaster.cli import inputs, options
from loadmaster.cli.printing import show


def add(commands: Any) -> None:
    """Declares the command."""
    command = options.add_command(
        commands,
        "diff",
        run,
        "what moved between two plans, and what it gained",
        examples=("plan.json other.json",),
    )
    command.add_argument("before", help="a plan that place saved, or what run saved of it")
    command.add_argument("after", help="another plan for the same graph, or a run of one")


def run(arguments: argparse.Namespace) -> None:
    """Compares the two."""
    show(arguments, inputs.seen(arguments.before).diff(inputs.seen(arguments.after)))
