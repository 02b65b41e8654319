"""``loadmaster recipe``: what a saved plan splits how, by modules, and where its bytes go."""

from __future__ import annotations

import argparse
from typing import Any

from loadmaster.base.errors import InputError
from loadmaster.cli import inputs, options
from loadmaster.cli.printing import check_targets, put, save_recipe, say_where, show_json


def add(commands: Any) -> None:
    """Declares the command."""
    command = options.add_command(
        commands,
        "recipe",
        run,
        "what a saved plan splits how, by modules, and where the bytes go",
        examples=("plan.json -o recipe.toml",),
    )
    options.add_plan(command)
    command.add_argument(
        "-o", "--output", metavar="RECIPE.toml", help="save the recipe (.toml or .json)"
    )


def run(arguments: argparse.Namespace) -> None:
    """Shows it, and writes it where that was asked for."""
    from loadmaster.base.text import aligned, in_lines
    from loadmaster.plans.recipe_tables import BYTES, byte_rows, module_rows
    from loadmaster.plans.specs import recipe_in_words

    check_targets(arguments.output)
    plan = inputs.plan(arguments.plan)
    if plan.recipe is None:
        raise InputError(f"{arguments.plan} has no recipe: it splits nothing by modules")
    if arguments.json:
        show_json(plan.recipe.to_document())
    else:
        head, modules = module_rows(plan)
        put(in_lines([recipe_in_words(plan), *aligned([head, *modules])]))
        put(in_lines(["", *aligned([BYTES, *byte_rows(plan)])]))
    if arguments.output:
        say_where(save_recipe(plan, arguments.output))
