"""Times of ops while all devices are busy: every device runs the whole step, all at once.

Devices of one machine share caches, memory and power, so an op takes longer while the others work.
A run of one device alone does not show that, and a plan of several devices is mostly run with all
of them at work. Nothing is sent here, so all that is measured is the ops' own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from loadmaster.base import checks
from loadmaster.base.errors import InputError
from loadmaster.base.warnings import warn
from loadmaster.costs import CostModel
from loadmaster.model.cluster import Cluster
from loadmaster.plans.plan import Plan
from loadmaster.running.devices.places import places_of
from loadmaster.running.measured.learning import learn_times
from loadmaster.running.measured.measured import Measured, Steps
from loadmaster.running.run import WARM_UP, started
from loadmaster.tasks.place import place

if TYPE_CHECKING:
    from loadmaster.running.tape.tape import Tape

#: Seconds of an op before it is measured. A plan of one device is the same whatever they are.
_GUESS = 1e-5

#: Runs so many steps on every device at once; what each device measured.
Together = Callable[[int], tuple[Measured, ...]]


def measure_ops(
    tape: Tape,
    cluster: Cluster,
    inputs: Any = None,
    *,
    targets: Any = None,
    steps: int = 30,
    on: Mapping[str, str] | None = None,
    seed: int = 0,
    patience: float = 60.0,
) -> CostModel:
    """Times of the ops of a tape while all devices of a cluster are busy.

    Every device runs the whole step by itself, at the same time as the others, and sends nothing.
    So times are those that ops have in a plan that keeps all devices at work. One that keeps a
    single device at work is faster: :func:`run` measures that. Memory: the model once a device.

    Parameters
    ----------
    tape
        From `record`.
    cluster
        Its devices are run; links do not matter.
    inputs, targets
        As `Tape.replay` takes them.
    steps
        How many are measured. From 24 on the fastest fifth counts, of fewer the fastest.
    on
        The worker process that each device is, as `run` takes them: ``{"gpu0": "cpu:0", ...}``.
    seed
        Of random ops.
    patience
        Seconds without news after which a device gives up.

    Returns
    -------
    CostModel
        Seconds per op and device type, for ``costs=`` of `place`. Devices of one type count alike.

    Raises
    ------
    InputError
        Devices that are no worker processes, and what `run` refuses.
    RunError
        As `run` does.

    Warns
    -----
    UserWarning
        The machine was too busy to measure.

    Examples
    --------
    >>> tape = lm.record(model, inputs, optimizer=torch.optim.Adam)   # doctest: +SKIP
    >>> plan = lm.place(tape.graph, cluster, costs=lm.measure_ops(tape, cluster))  # doctest: +SKIP
    """
    checks.count("steps", steps)
    options = {"targets": targets, "on": on, "seed": seed, "patience": patience}
    with together(tape, cluster, inputs, **options) as run:
        costs = run(steps)
    model = CostModel()
    for seen in costs:
        learn_times(model, seen)
    busiest = max(costs, key=lambda seen: seen.delay)
    if busiest.busy:
        warn(busiest.busy)
    return model


@contextmanager
def together(
    tape: Tape,
    cluster: Cluster,
    inputs: Any = None,
    *,
    on: Mapping[str, str] | None = None,
    **options: Any,
) -> Iterator[Together]:
    """The whole step on every device of a cluster, ready to run on all of them at once.

    All devices begin a step together. As :func:`measure_ops` takes them.
    """
    places = places_of(cluster, on)
    if places[0].kind != "cpu":
        raise InputError(
            f"ops are measured side by side in worker processes, not on {places[0]}: say on= with "
            "cpu:0 and the like, or measure one device with a plan of one (lm.run)"
        )
    names = [device.name for device in cluster.devices]
    plans = [_alone(tape, cluster, name) for name in names]
    with ExitStack() as stack:
        crews: list[Any] = [
            stack.enter_context(started(plan, tape, inputs, on={name: str(place)}, **options))
            for name, place, plan in zip(names, places, plans, strict=True)
        ]

        def step() -> list[Steps]:
            for crew in crews:
                crew.begin(1)
            return [crew.ended() for crew in crews]

        def run(steps: int) -> tuple[Measured, ...]:
            taken = zip(*(step() for _ in range(steps)), strict=True)
            return tuple(
                Measured(plan, first.joined(rest), (str(place),))
                for (first, *rest), plan, place in zip(taken, plans, places, strict=True)
            )

        run(WARM_UP)
        yield run


def _alone(tape: Tape, cluster: Cluster, device: str) -> Plan:
    """The tape's graph on one device of a cluster, which is all that the plan's cluster has."""
    graph = tape.graph
    guess = np.where(graph.placeholder | graph.view, 0.0, _GUESS)
    one = cluster.subset([cluster.index(device)])
    return place(graph, one, "single", guess, on_oom="best_effort")
