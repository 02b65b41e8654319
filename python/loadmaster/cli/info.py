"""``loadmaster info``: facts about a graph."""

from __future__ import annotations

import argparse
from typing import Any

from loadmaster.cli import inputs, options
from loadmaster.cli.printing import show


def add(commands: Any) -> None:
    """Declares the command."""
    command = options.add_command(
        commands,
        "info",
        run,
        "facts about a graph, before and after coarsening",
        examples=("example:bert-large",),
    )
    options.add_graph(command)
    options.add_cluster(command)


def run(arguments: argparse.Namespace) -> None:
    """Shows them."""
    from loadmaster.plans.info import info

    cluster = inputs.cluster(arguments.cluster)
    show(arguments, info(inputs.graph(arguments), cluster))
