"""``loadmaster export``: a saved plan as another system reads it."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from loadmaster.base.errors import InputError
from loadmaster.cli import inputs, options
from loadmaster.cli.printing import note, put_file, show_json

if TYPE_CHECKING:
    from loadmaster.plans.plan import Plan

#: The share by which a step may grow in being exported without a word.
_NOTABLE = 0.01


def add(commands: Any) -> None:
    """Declares the command."""
    command = options.add_command(commands, "export", run, "write a saved plan for another system")
    options.add_plan(command)
    command.add_argument("--to", required=True, metavar="TARGET", help="see `loadmaster targets`")
    command.add_argument("-o", "--output", metavar="FILE", help="where to; default: stdout")
    command.add_argument("--model", metavar="FILE", help="the model itself, where that is written")
    command.add_argument("--root", help="what the model is called in the graph's module paths")
    command.add_argument("--layers", help="the module list that holds the layers")
    options.add_repeated(
        command, "--name", "DEVICE=NAME", "what a device is called there (repeatable)"
    )
    command.add_argument(
        "--check",
        action="store_true",
        help="onnx: run the parts, in parallel, and the whole, and compare",
    )


def run(arguments: argparse.Namespace) -> None:
    """Writes the plan, and checks what was written if asked."""
    from loadmaster.cli.progress import ProgressLine
    from loadmaster.writers import check_onnx
    from loadmaster.writers.targets.export import TARGETS, export

    if arguments.check and arguments.to != "onnx":
        raise InputError("--check is for --to onnx")
    names = _names(arguments.name)
    with ProgressLine() as progress:
        progress("writing")
        plan = inputs.plan(arguments.plan)
        written = export(
            plan,
            arguments.to,
            arguments.output,
            model=arguments.model,
            root=arguments.root,
            layers=arguments.layers,
            names=names or None,
        )
        if arguments.check:
            progress("running the parts, in parallel, and the whole")
            error = check_onnx(arguments.output, arguments.model)
    if arguments.output is None and isinstance(written, str):
        put_file(written)
    elif arguments.output is None or arguments.json:
        show_json(written if isinstance(written, dict) else {"written": arguments.output})
    if arguments.check:
        note(f"parts and whole differ by {error:.2g} at most")
    if TARGETS[arguments.to].in_segments:
        _say_step(plan)
    if arguments.output is not None:
        note(f"{arguments.to} written to {arguments.output}")


def _say_step(plan: Plan) -> None:
    """Says what the step takes as exported, and what to do where that is too long."""
    from loadmaster.plans.segments import Segments

    step = Segments.cut(plan).exported
    note(f"step: {step}")
    if step.growth > _NOTABLE:
        note(f"the step grows by {step.growth:.0%} in being exported")
    if step.advice:
        note(step.advice)


def _names(texts: Sequence[str]) -> dict[str, str]:
    """Names of devices in the target system, from arguments."""
    names = {}
    for text in texts:
        device, equals, name = text.partition("=")
        if not device or not equals or not name:
            raise InputError(f"--name {text!r}: wants DEVICE=NAME")
        names[device] = name
    return names
