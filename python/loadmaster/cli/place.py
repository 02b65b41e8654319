"""``loadmaster place``: a graph on a cluster, by one method."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, Any

from loadmaster.base.errors import InputError
from loadmaster.cli import inputs, options, values
from loadmaster.cli.printing import (
    check_targets,
    put,
    save_recipe,
    say_where,
    show_json,
    write_pictures,
)

if TYPE_CHECKING:
    from loadmaster.plans.plan import Plan


def add(commands: Any) -> None:
    """Declares the command."""
    command = options.add_command(
        commands,
        "place",
        run,
        "place a graph on a cluster",
        examples=(
            "example:bert-large --target ddp --cluster 8xH100-NVLink -o plan.json",
            "model.onnx --batch 8 --target onnx --cluster 2xV100-NVLink",
            "example:inception-v3 --cluster 4xV100-PCIe",
        ),
        first=options.add_target,
    )
    options.add_placing(command)
    command.add_argument("--method", default="auto", help="name of a method; default: auto")
    options.add_search(command)
    options.add_split(command)
    command.add_argument(
        "--recipe",
        metavar="RECIPE.toml",
        help="apply a recipe as it is, and search for what it leaves auto (.toml or .json)",
    )
    command.add_argument(
        "--expert-imbalance",
        metavar="FACTOR",
        help="how much more than its fair share of the work of a mixture's experts the busiest "
        "device does; 1 if not given",
    )
    command.add_argument(
        "--save-recipe",
        metavar="RECIPE.toml",
        help="save what the plan splits how, if a recipe says it",
    )
    command.add_argument(
        "--warm-start",
        metavar="PLAN.json",
        help="a saved plan of the same ops: the answer is no worse",
    )
    command.add_argument("-o", "--output", metavar="PLAN.json", help="save the plan (.gz to pack)")
    options.add_pictures(command, "simulated step")


def run(arguments: argparse.Namespace) -> None:
    """Places, writes what was asked for, and sums the plan up."""
    from loadmaster.cli.progress import ProgressLine
    from loadmaster.plans.summary import document
    from loadmaster.strategies.user_method import method_of
    from loadmaster.tasks.place import place

    targets = arguments.output, arguments.save_recipe, arguments.trace
    check_targets(*targets, pictures=(arguments.timeline, arguments.pipeline))
    graph_file = os.path.realpath(arguments.graph)
    for path in targets:
        if path is not None and os.path.realpath(path) == graph_file:
            raise InputError(f"{path} is the graph itself: write to a file of another name")
    cluster, chosen = inputs.limited_cluster(arguments), inputs.chosen(arguments)
    if arguments.split is not None:
        chosen["split"] = arguments.split
    time_limit = values.seconds("--time-limit", arguments.time_limit)
    method, recipe = method_of(arguments.method), inputs.recipe(arguments.recipe)
    constraints = inputs.constraints(arguments, cluster)
    warm_start = inputs.plan(arguments.warm_start) if arguments.warm_start else None
    if arguments.target is not None:
        inputs.check_planners([], [arguments.target], chosen)
    elif recipe is None:
        inputs.check_planners([method], [], chosen)
    with ProgressLine(time_limit) as progress:
        progress("reading the graph")
        graph = inputs.graph(arguments, progress=progress)
        plan = place(
            graph,
            cluster,
            method,
            inputs.costs(arguments, graph, cluster),
            seed=arguments.seed,
            time_limit=time_limit,
            on_oom=arguments.on_oom,
            warm_start=warm_start,
            constraints=constraints,
            recipe=recipe,
            objective=arguments.objective,
            target=arguments.target,
            expert_imbalance=values.number("--expert-imbalance", arguments.expert_imbalance),
            progress=progress,
            **chosen,
        )
        progress("writing")
        written = _write(plan, arguments)
    if arguments.json:
        show_json(document(plan))
    else:
        put(plan.summary())
    say_where(written, "" if arguments.output else "the plan is not saved: -o PLAN.json saves it")


def _write(plan: Plan, arguments: argparse.Namespace) -> list[tuple[str, str]]:
    written = []
    if arguments.output:
        plan.save(arguments.output)
        written.append(("plan", arguments.output))
    if arguments.save_recipe:
        written += save_recipe(plan, arguments.save_recipe)
    return written + write_pictures(plan, arguments)
