"""PyTorch in one process as planning for it sees it, without and with graphs; FX as it is written.

``eager``: one thread of Python launches every op, of all devices. ``graph``: nobody does. ``fx`` is
the form of both by itself, for plans of any method.
"""

from loadmaster.systems.registry import Launcher, Semantics, System, WrittenForm


def _semantics(system: str, launches: str, launcher: Launcher) -> Semantics:
    """The semantics of both, with what each has of its own."""
    return Semantics(
        system=system,
        models="any model",
        splits="nothing: every op is whole, on one device",
        unit="an op",
        moves="a tensor goes once to each device that reads it, while devices go on",
        launches=launches,
        memory="weights, activations and copies, per device",
        framework="torch",
        launcher=launcher,
        runtimes=("graphs",) if launcher == Launcher.NOBODY else ("eager",),
    )


EAGER = _semantics(
    "PyTorch, eager, several devices in one process",
    "one thread launches the ops of all devices, one after another",
    Launcher.ONE_THREAD,
)
GRAPH = _semantics(
    "PyTorch with CUDA graphs, several devices in one process",
    "nobody, at the time of the step: kernels were captured before",
    Launcher.NOBODY,
)

_PLANNER, _WRITER = "loadmaster.systems.eager.plan:whole_ops", "loadmaster.systems.eager.write:fx"


SYSTEMS = (
    System(
        "eager",
        EAGER,
        _PLANNER,
        WrittenForm(
            _WRITER, "PyTorch, eager: device and segment per FX node (JSON)", in_segments=True
        ),
        packages=("torch",),
    ),
    System(
        "graph",
        GRAPH,
        _PLANNER,
        WrittenForm(
            _WRITER, "PyTorch, graphs: device and segment per FX node (JSON)", in_segments=True
        ),
        packages=("torch",),
    ),
    System(
        "fx",
        form=WrittenForm(
            _WRITER, "PyTorch FX: device and segment per node (JSON)", in_segments=True
        ),
        beside=("loadmaster.systems.eager.write:fx_split",),
        packages=("torch",),
    ),
)
