"""``loadmaster run``: a saved plan on real or on emulated devices, beside what was predicted."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from loadmaster.base.errors import InputError
from loadmaster.cli import inputs, options, values
from loadmaster.cli.printing import (
    check_targets,
    note,
    put,
    say_where,
    show_json,
    write_pictures,
)

if TYPE_CHECKING:
    from loadmaster.plans.plan import Plan
    from loadmaster.running.measured.adapt import Adapted
    from loadmaster.running.measured.measured import Measured
    from loadmaster.running.measured.rounds import Runner


def add(commands: Any) -> None:
    """Declares the command."""
    command = options.add_command(
        commands,
        "run",
        run,
        "run a saved plan, and compare it with its prediction",
        examples=(
            "plan.json --emulate --steps 3 -o measured.json",
            "plan.json --model my.py:build --steps 30",
        ),
    )
    options.add_plan(command)
    where = command.add_mutually_exclusive_group(required=True)
    where.add_argument(
        "--model",
        metavar="FILE.py:FUNCTION",
        help="a function that returns a dictionary of the arguments of loadmaster.record (model, "
        "example_inputs, loss, targets, optimizer, ...). THE FILE IS EXECUTED: name only one that "
        "you trust",
    )
    where.add_argument(
        "--emulate",
        action="store_true",
        help="on emulated devices, whose ops are waits of the predicted lengths: needs no model",
    )
    command.add_argument(
        "--seconds",
        metavar="TIME",
        help="with --emulate: stretch the run so that all ops take this one after another; the "
        "longer, the less the machine's own time counts; default: 0.6s, more for many ops",
    )
    command.add_argument("--steps", default="30", metavar="N", help="steps to measure; default: 30")
    options.add_repeated(
        command,
        "--on",
        "DEVICE=PLACE[,...]",
        "what each device of the plan is: gpu0=cpu:0,gpu1=cpu:1 (repeatable)",
    )
    command.add_argument(
        "--adapt",
        metavar="N",
        help="learn from each run and place again, up to N times; the plan that is measured "
        "fastest in one last run of all is the result",
    )
    command.add_argument(
        "-o", "--output", metavar="MEASURED.json", help="save plan and steps (.gz to pack)"
    )
    options.add_pictures(command, "measured step")


def run(arguments: argparse.Namespace) -> None:
    """Runs the plan, writes what was asked for, and sums the run up."""
    from loadmaster.cli.progress import ProgressLine
    from loadmaster.running.measured.adapt import adapt
    from loadmaster.running.measured.summary import summary_document

    drawn = arguments.timeline, arguments.pipeline
    check_targets(arguments.output, arguments.trace, pictures=drawn)
    steps = values.at_least_one("--steps", arguments.steps)
    rounds = None if arguments.adapt is None else values.at_least_one("--adapt", arguments.adapt)
    plan = inputs.plan(arguments.plan)
    with ProgressLine() as progress:
        progress("recording the model" if arguments.model else "compiling")
        runner = _runner(arguments, plan)
        progress(f"running {steps} steps")
        adapted: Adapted | None = None
        if rounds is None:
            with runner(plan) as session:
                seen = session(steps)
        else:
            adapted = adapt(plan, runner, rounds, steps=steps, progress=progress)
            seen = adapted.best
        progress("writing")
        written = _write(seen, arguments)
    if seen.busy:
        note(f"warning: {seen.busy}")
    if arguments.json:
        show_json(summary_document(seen) if adapted is None else adapted.to_document())
    else:
        put(seen.summary() if adapted is None else adapted)
    unsaved = "the run is not saved: -o MEASURED.json saves it"
    say_where(written, "" if arguments.output else unsaved)


def _runner(arguments: argparse.Namespace, plan: Plan) -> Runner:
    from loadmaster.running.runners import emulating, running
    from loadmaster.running.tape.models import recorded_model

    if arguments.emulate:
        if arguments.on:
            raise InputError("--on is for --model: emulated devices are nowhere")
        seconds = values.seconds("--seconds", arguments.seconds)
        return emulating(**({} if seconds is None else {"seconds": seconds}))
    if arguments.seconds is not None:
        raise InputError("--seconds is for --emulate: a model takes the time that it takes")
    on = dict(values.halves("--on", [part for text in arguments.on for part in text.split(",")]))
    for device in on:
        plan.cluster.index(device)
    return running(recorded_model(arguments.model), **({"on": on} if on else {}))


def _write(seen: Measured, arguments: argparse.Namespace) -> list[tuple[str, str]]:
    written = []
    if arguments.output:
        seen.save(arguments.output)
        written.append(("run", arguments.output))
    return written + write_pictures(seen.seen, arguments)
