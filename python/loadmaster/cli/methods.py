"""``loadmaster methods``: the methods that plans are made by, their options and papers."""

from __future__ import annotations

import argparse
from typing import Any

from loadmaster.cli import options
from loadmaster.cli.printing import put, show_columns, show_json


def add(commands: Any) -> None:
    """Declares the command."""
    command = options.add_command(
        commands,
        "methods",
        run,
        "list the methods of place, compare and sweep",
        reads=False,
        examples=("", "heft", "--cite celeritas"),
    )
    command.add_argument("name", nargs="?", metavar="METHOD", help="say all of this one only")
    command.add_argument("--cite", action="store_true", help="print BibTeX of the methods' papers")


def run(arguments: argparse.Namespace) -> None:
    """Lists all in a line each, or says what one takes; with --cite, their papers."""
    from loadmaster.strategies.papers import bibtex, papers_of
    from loadmaster.strategies.registry import METHODS, options_of
    from loadmaster.systems.registry import check_no_target

    chosen = list(METHODS) if arguments.name is None else [arguments.name]
    for name in chosen:
        check_no_target(name)
    takes = {name: options_of(name) for name in chosen}
    if arguments.cite:
        put(bibtex(chosen))
        return
    if arguments.json:
        show_json(
            {
                name: {
                    "does": METHODS[name][1],
                    "options": [option.name for option in takes[name]],
                    "papers": [paper.key for paper in papers_of(name)],
                }
                for name in chosen
            }
        )
        return
    if arguments.name is None:
        show_columns({name: METHODS[name][1] for name in chosen})
        put("`loadmaster methods METHOD` says its options; --cite prints papers as BibTeX")
        return
    name = arguments.name
    said = {"does": METHODS[name][1]}
    said |= {f"--option {option.name}": option.words for option in takes[name]}
    for paper in papers_of(name):
        said["paper"] = paper.words
    said["use it"] = f"loadmaster place GRAPH --cluster CLUSTER --method {name}"
    show_columns(said)
