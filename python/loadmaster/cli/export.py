"""``loadmaster export``: a saved plan as another system reads it."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from loadmaster.base.errors import InputError, refusing
from loadmaster.base.quoting import json_text
from loadmaster.cli import inputs, options
from loadmaster.cli.printing import note, put_file

if TYPE_CHECKING:
    from loadmaster.model.runtime import SessionCost
    from loadmaster.plans.plan import Plan

#: Lines that are printed where no file is named: what one screen shows.
_SCREEN = 24

#: The share by which a step may grow in being exported without a word.
_NOTABLE = 0.01


def add(commands: Any) -> None:
    """Declares the command."""
    command = options.add_command(
        commands,
        "export",
        run,
        "write a saved plan for another system",
        examples=(
            "plan.json --target ddp -o train.py",
            "plan.json --target onnx --model model.onnx -o parts",
        ),
    )
    options.add_plan(command)
    command.add_argument(
        "--target",
        "--to",
        metavar="TARGET",
        help="what to write it as, see `loadmaster targets`; default: what it was planned for",
    )
    command.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="where to, - for stdout; default: the first lines of it on stdout",
    )
    command.add_argument(
        "--model",
        metavar="FILE",
        help="the model itself, where that is written; FILE.py:FUNCTION, where it is built to "
        "check what was written",
    )
    command.add_argument("--root", help="what the model is called in the graph's module paths")
    command.add_argument("--layers", help="the module list that holds the layers")
    options.add_repeated(
        command, "--name", "DEVICE=NAME", "what a device is called there (repeatable)"
    )
    command.add_argument(
        "--check",
        action=argparse.BooleanOptionalAction,
        help="run or parse what was written by the system's own code (default: where that is "
        "installed); onnx: run the parts, in parallel, and the whole, and compare (default: no)",
    )
    options.add_repeated(
        command,
        "--input",
        "NAME=FILE.npy",
        "value of an input for --check, or a number for all its elements; else drawn (repeatable)",
    )


def run(arguments: argparse.Namespace) -> None:
    """Writes the plan, and checks what was written if asked."""
    from loadmaster.cli.progress import ProgressLine
    from loadmaster.systems.registry import SYSTEMS
    from loadmaster.writers import check_onnx
    from loadmaster.writers.export import export, form_of, target_for

    path = None if arguments.output == "-" else arguments.output
    names = _names(arguments.name)
    with ProgressLine() as progress:
        progress("writing")
        plan = inputs.plan(arguments.plan)
        target = target_for(plan, arguments.target)
        is_onnx = target == "onnx"
        if arguments.check and not is_onnx and not (target in SYSTEMS and SYSTEMS[target].checker):
            raise InputError(f"--check: nothing checks files for {target}")
        if arguments.input and not (arguments.check and is_onnx):
            raise InputError("--input is for --target onnx --check")
        feeds = _inputs(arguments.input)
        written = export(
            plan,
            target,
            path,
            check=arguments.check is not False,
            model=arguments.model,
            root=arguments.root,
            layers=arguments.layers,
            names=names or None,
        )
        if arguments.check and is_onnx:
            progress("running the parts, in parallel, and the whole")
            assert path is not None, "sub-models are written to a folder"
            error = check_onnx(path, arguments.model, inputs=feeds)
    if path is None or arguments.json:
        text = written if isinstance(written, str) else _document(written, path)
        _print(text, whole=arguments.json or path != arguments.output)
    if arguments.check and is_onnx:
        note(f"parts and whole differ by {error:.2g} at most")
    if form_of(target).in_segments:
        _say_step(plan, form_of(target).session)
    if path is not None:
        note(f"{target} written to {path}")
    if target in plan.checked:
        note(str(plan.checked[target]))


def _document(written: Any, path: str | None) -> str:
    return json_text(written if isinstance(written, dict) else {"written": path}, indent=2)


def _print(text: str, *, whole: bool) -> None:
    """Prints what was written, or as much of it as a screen shows, and where the rest goes."""
    lines = text.splitlines(keepends=True)
    if whole or len(lines) <= _SCREEN:
        put_file(text if text.endswith("\n") else f"{text}\n")
        return
    put_file("".join(lines[: _SCREEN - 1]))
    note(
        f"and {len(lines) - _SCREEN + 1} more lines: -o FILE writes all of it to a file, -o - to "
        "standard output"
    )


def _say_step(plan: Plan, session: SessionCost | None) -> None:
    """Says what the step takes as exported, and what to do where that is too long."""
    from loadmaster.plans.segments import Segments

    step = Segments.cut(plan, session).exported
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


def _inputs(texts: Sequence[str]) -> dict[str, Any]:
    """Values of inputs by name, from arguments."""
    import numpy as np

    feeds: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.rpartition("=")
        if not name or not equals or not value:
            raise InputError(f"--input {text!r}: wants NAME=FILE.npy, or NAME=NUMBER")
        for number in (int, float):
            with suppress(ValueError):
                feeds.setdefault(name, number(value))
        if name not in feeds:
            damage = f"--input {text!r}: {value} cannot be read as .npy"
            with refusing(damage, OSError, ValueError, EOFError):
                feeds[name] = np.load(value, allow_pickle=False)
    return feeds
