"""``loadmaster instances``: what methods are compared on, and what is known of it."""

from __future__ import annotations

import argparse
from typing import Any

from loadmaster.base.text import aligned, in_lines
from loadmaster.base.units import format_seconds
from loadmaster.cli import options
from loadmaster.cli.printing import put, show_json


def add(commands: Any) -> None:
    """Declares the command."""
    command = options.add_command(
        commands,
        "instances",
        run,
        "list instances to compare methods on, with what is known of each",
        examples=("", "'scheduling/n20-*' --json", "--cite", "--folder my-instances"),
    )
    add_chosen(command)
    command.add_argument("--cite", action="store_true", help="print BibTeX of their sources")


def add_chosen(command: argparse.ArgumentParser) -> None:
    """Declares the choice of instances: :func:`chosen`."""
    command.add_argument(
        "instances",
        nargs="*",
        metavar="INSTANCE",
        help="names or globs, such as 'planted/*'; default: all. A planted instance may have any "
        "numbers, and models/EXAMPLE@PRESET any example and preset",
    )
    command.add_argument(
        "--folder", metavar="DIR", help="instances of your own instead: graphs and their clusters"
    )


def chosen(arguments: argparse.Namespace) -> list[str]:
    """Names of the instances that are asked for, each once."""
    from loadmaster.readers import instances

    patterns = arguments.instances or ["*"]
    names: dict[str, None] = {}
    for pattern in patterns:
        listed = instances.names(pattern, arguments.folder)
        # What is not listed may be of the form that listed ones have.
        names |= dict.fromkeys(listed or [instances.load(pattern, arguments.folder).name])
    return list(names)


def run(arguments: argparse.Namespace) -> None:
    """Lists them."""
    from loadmaster.cli.progress import ProgressLine
    from loadmaster.readers import instances
    from loadmaster.strategies.papers import bibtex_of_instances

    names = chosen(arguments)
    if arguments.cite:
        put(bibtex_of_instances(names))
        return
    with ProgressLine() as progress:
        progress("reading the instances")
        loaded = [instances.load(name, arguments.folder) for name in names]
    if arguments.json:
        show_json([one.to_document() for one in loaded])
        return
    rows = [["instance", "ops", "devices", "best known", "bound", "found by"]]
    for one in loaded:
        seconds = (one.best_known, one.lower_bound)
        known = ["" if s is None else format_seconds(s) for s in seconds]
        if one.optimum is not None:
            known[1] = "optimal"
        rows.append(
            [one.name, str(one.graph.n_ops), str(one.cluster.n_devices), *known, one.best_by]
        )
    put(in_lines(aligned(rows)))
