"""``loadmaster explain``: why an op of a saved plan is where it is, and when."""

from __future__ import annotations

import argparse
from typing import Any

from loadmaster.cli import inputs, options
from loadmaster.cli.printing import show


def add(commands: Any) -> None:
    """Declares the command."""
    command = options.add_command(
        commands,
        "explain",
        run,
        "why an op is where it is and when it is",
        examples=("plan.json mm_30",),
    )
    options.add_plan(command)
    command.add_argument("op", help="name of an op")


def run(arguments: argparse.Namespace) -> None:
    """Explains one op."""
    show(arguments, inputs.saved(arguments.plan).explain(arguments.op))
