"""Runs a plan on real devices, and measures it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from loadmaster.base import checks
from loadmaster.base.errors import importing
from loadmaster.base.warnings import warn
from loadmaster.plans.plan import Plan
from loadmaster.running.devices.places import are_apart, places_of
from loadmaster.running.measured.measured import Measured
from loadmaster.running.measured.rounds import Session
from loadmaster.running.tape.tape import Tape

if TYPE_CHECKING:
    from loadmaster.running.devices.cuda import Cuda
    from loadmaster.running.devices.processes import Processes
    from loadmaster.running.devices.threads import Threads

#: Steps before those that are measured: memory is warm after them.
WARM_UP = 2


def run(
    plan: Plan,
    tape: Tape,
    inputs: Any = None,
    *,
    targets: Any = None,
    steps: int = 30,
    on: Mapping[str, str] | None = None,
    seed: int = 0,
    patience: float = 60.0,
) -> Measured:
    """Run a plan on real devices, and measure its steps.

    Two steps are run before, to warm up. Where a step trains, each goes on from the one before. The
    model of the tape is left as it is.

    Parameters
    ----------
    plan
        Of the tape's graph. Each replica runs what is recorded at its share of the batch, and the
        loss must be a mean over the batch. Shards run their parts of what was recorded, on the
        devices of the recipe's mesh. Micro-batches run of all of these.
    tape
        From `record`.
    inputs, targets
        As `Tape.replay` takes them.
    steps
        How many are measured.
    on
        What each device of the plan's cluster is, by name: ``"cpu:0"`` is a worker process on core
        0, ``"cpu:0-3"`` one on four cores whose ops use four threads; ``"thread:0"`` is a thread of
        this process; ``"cuda:0"`` is a GPU. Devices that are on one GPU have a part of it each,
        and the links between them take as long as the plan says. By default devices are worker
        processes on the cores that there are, in turn.
    seed
        Of random ops.
    patience
        Seconds without news after which a device that waits gives up, and the run fails.

    Returns
    -------
    Measured

    Raises
    ------
    InputError
        The plan is not of the tape, inputs are not of the sizes that were recorded, ``on`` names a
        device or a core that there is not.
    RunError
        An op failed, a device waited in vain, a worker died: op and device are named.

    Warns
    -----
    UserWarning
        Devices share a core; the machine was too busy to measure.

    Examples
    --------
    >>> tape = lm.record(model, inputs, optimizer=torch.optim.Adam)   # doctest: +SKIP
    >>> plan = lm.place(tape.graph, cluster)                          # doctest: +SKIP
    >>> measured = lm.run(plan, tape, on={"gpu0": "cpu:0", "gpu1": "cpu:1"})  # doctest: +SKIP
    >>> measured.step, measured.error                                 # doctest: +SKIP
    """
    checks.count("steps", steps)
    with ready(plan, tape, inputs, targets=targets, on=on, seed=seed, patience=patience) as session:
        measured = session(steps)
    if measured.busy:
        warn(measured.busy)
    return measured


@contextmanager
def ready(plan: Plan, tape: Tape, inputs: Any = None, **options: Any) -> Iterator[Session]:
    """A plan that has warmed up: a function that runs so many steps more, and measures them.

    As `run` takes them.
    """
    with started(plan, tape, inputs, **options) as devices:
        peaks = devices.run(1, memory=True).peaks
        devices.run(WARM_UP - 1)
        places = tuple(map(str, devices.places))
        yield lambda steps: Measured(plan, replace(devices.run(steps), peaks=peaks), places)


def started(
    plan: Plan,
    tape: Tape,
    inputs: Any = None,
    *,
    targets: Any = None,
    on: Mapping[str, str] | None = None,
    seed: int = 0,
    patience: float = 60.0,
) -> Processes | Threads | Cuda:
    """The devices of a plan, ready to run steps: a context, which ends them.

    As `run` takes them. ``devices.run(3)`` runs three steps more, and gives their times;
    ``devices.fetch(["loss"])`` gives outputs of the last step, by the names of the tape's.
    """
    with importing("torch", "torch", "running a plan"):
        from loadmaster.running.devices.crew import RunSettings
        from loadmaster.running.devices.cuda import Cuda
        from loadmaster.running.devices.processes import Processes
        from loadmaster.running.devices.threads import Threads
        from loadmaster.running.devices.wiring import Wiring, check_graph
        from loadmaster.running.parallel.transformed import transformed

    checks.positive("patience", patience)
    places = places_of(plan.cluster, on)
    if not are_apart(place.cores for place in places) and places[0].kind != "cuda":
        warn("devices share a core: they wait for each other, and steps take longer than planned")
    tensors = tape.given(inputs, targets)
    if not plan.program.is_plain:
        check_graph(plan.program.source, tape.graph)
        tape, tensors = transformed(plan.program, tape, tensors), {}
    wiring = Wiring(plan, tape, tensors)
    settings = RunSettings(places, seed, patience)
    kinds: dict[str, type[Processes] | type[Threads] | type[Cuda]]
    kinds = {"cpu": Processes, "thread": Threads, "cuda": Cuda}
    return kinds[places[0].kind](wiring, settings)
