"""``loadmaster coarsen``: ops merged into groups, and a drawing of them."""

from __future__ import annotations

import argparse
from typing import Any

from loadmaster.base.errors import InputError
from loadmaster.base.text import meant
from loadmaster.cli import inputs, options, values
from loadmaster.cli.printing import check_targets, say_where, show

_OPTIONS = ("balance", "max_bytes", "order", "rules")


def add(commands: Any) -> None:
    """Declares the command."""
    command = options.add_command(
        commands,
        "coarsen",
        run,
        "merge ops into groups, and draw them",
        examples=("example:bert-large --groups 100 -o groups.dot",),
    )
    options.add_graph(command)
    options.add_cluster(command)
    command.add_argument("--method", default="parallel", help="default: parallel")
    command.add_argument("--groups", type=int, default=200, help="default: 200")
    options.add_repeated(command, "--option", "KEY=VALUE", f"{', '.join(_OPTIONS)} (repeatable)")
    command.add_argument("-o", "--output", metavar="FILE", help="draw: .dot, .gv or .graphml")


def run(arguments: argparse.Namespace) -> None:
    """Coarsens, draws if asked, and shows what was lost."""
    from loadmaster.judge.coarsening import coarsen
    from loadmaster.writers.pictures.coarse import write

    check_targets(arguments.output)
    chosen = values.options(arguments.option)
    for name in sorted(set(chosen) - set(_OPTIONS)):
        raise InputError(f"coarsen has no option {name!r}{meant(name, _OPTIONS)}")
    cluster = inputs.cluster(arguments.cluster)
    coarse = coarsen(
        inputs.graph(arguments),
        arguments.method,
        arguments.groups,
        cluster=cluster,
        **chosen,
    )
    if arguments.output:
        write(coarse, arguments.output)
    show(arguments, coarse.report)
    say_where([("drawing", arguments.output)] if arguments.output else [])
