"""Runners: plans made ready to run, for rounds and for FastT's loop."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from loadmaster.plans.plan import Plan
from loadmaster.running.measured.rounds import Runner, Session

if TYPE_CHECKING:
    from loadmaster.running.tape.tape import Tape


def emulating(**options: Any) -> Runner:
    """Runs plans on emulated devices, with these options of :func:`loadmaster.emulate`."""
    from loadmaster.running.devices.emulated import emulate

    @contextmanager
    def ready(plan: Plan) -> Iterator[Session]:
        yield lambda steps: emulate(plan, steps, **options)

    return ready


def running(tape: Tape, **options: Any) -> Runner:
    """Runs plans of a tape, with these options of :func:`loadmaster.run`."""
    from loadmaster.running.run import ready

    return lambda plan: ready(plan, tape, **options)
