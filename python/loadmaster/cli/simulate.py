"""``loadmaster simulate``: a saved plan again, under another policy or on another cluster."""

from __future__ import annotations

import argparse
from typing import Any

from loadmaster.cli import inputs, options
from loadmaster.cli.printing import put, show_json
from loadmaster.judge.policies import LINK_ORDERS, POLICIES


def add(commands: Any) -> None:
    """Declares the command."""
    command = options.add_command(
        commands,
        "simulate",
        run,
        "simulate a saved plan",
        examples=("plan.json --policy fifo", "plan.json --cluster 8xH100-NVLink"),
    )
    options.add_plan(command, graph=True)
    command.add_argument("--cluster", help="simulate on another cluster: preset or TOML file")
    command.add_argument(
        "--policy",
        default=None,
        choices=POLICIES,
        help="how a device picks its next op; default: the plan's own",
    )
    command.add_argument("--link-order", default="fifo", choices=LINK_ORDERS)
    command.add_argument(
        "--no-contention",
        action="store_true",
        help="channels carry any number of transfers at once, the classic model",
    )
    command.add_argument("--seed", type=int, default=None, help="of the random policy")


def run(arguments: argparse.Namespace) -> None:
    """Simulates, and shows what the simulator saw."""
    from dataclasses import replace

    from loadmaster.base.text import in_lines
    from loadmaster.judge.simulation import run
    from loadmaster.plans.summary import simulation_document, simulation_lines
    from loadmaster.plans.words import title

    plan = inputs.plan(arguments.plan, inputs.wanted_graph(arguments))
    if arguments.cluster:
        plan = plan.on(inputs.cluster(arguments.cluster))
    problem = plan.problem
    if arguments.seed is not None:
        problem = replace(problem, seed=arguments.seed)
    simulation = run(
        problem,
        plan.assignment,
        policy=arguments.policy,
        contention=not arguments.no_contention,
        link_order=arguments.link_order,
    )
    if arguments.json:
        show_json(simulation_document(simulation, plan.cluster))
        return
    policy = arguments.policy or plan.policy
    how = f"policy {policy}{', no contention' if arguments.no_contention else ''}"
    lines = simulation_lines(simulation, plan.cluster, plan.program)
    put(in_lines([f"{title(plan)}, {how}", *lines]))
