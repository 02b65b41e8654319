"""torchtitan as planning for it sees it."""

from loadmaster.systems.registry import Semantics, System, WrittenForm

NAME = "torchtitan"

SEMANTICS = Semantics(
    system="torchtitan",
    models="a training step of a decoder: one stack of layers of one width with causal attention, "
    "which reads words, and a batch",
    splits="the batch over replicas, with all state in parts or whole; or heads, features, "
    "vocabulary and tokens over tp devices; or the batch into micro-batches",
    unit="a process on a device; layers, whose parameters are gathered together",
    moves="parameters of a layer before it is used, gradients; activations within layers or "
    "between them",
    launches="each process its own ops",
    memory="a part of all state, or of the layers of a stage, and activations",
    runtimes=("eager", "compiled"),
)

SYSTEMS = (
    System(
        NAME,
        SEMANTICS,
        "loadmaster.systems.torchtitan.plan:torchtitan",
        WrittenForm(
            "loadmaster.systems.torchtitan.write:torchtitan",
            "torchtitan 0.3 configuration (Python file)",
        ),
        packages=("torchtitan",),
        checker="loadmaster.systems.torchtitan.check:checked",
    ),
)
