"""``loadmaster diff``: two saved plans for one graph, side by side."""

from __future__ import annotations

import argparse
from typing import Any

from loadmaster.cli import options
from loadmaster.cli.printing import show


def add(commands: Any) -> None:
    """Declares the command."""
    command = options.add_command(
        commands, "diff", run, "what moved between two plans, and what it gained"
    )
    command.add_argument("before", help="a plan that place saved")
    command.add_argument("after", help="another plan for the same graph")


def run(arguments: argparse.Namespace) -> None:
    """Compares the two."""
    from loadmaster.plans.plan import Plan

    show(arguments, Plan.load(arguments.before).diff(Plan.load(arguments.after)))
