"""AutoParallel as planning for it sees it."""

from loadmaster.systems.registry import Semantics, System, WrittenForm

NAME = "autoparallel"

SEMANTICS = Semantics(
    system="AutoParallel (meta-pytorch)",
    models="modules of PyTorch whose graph says the shapes of tensors, with a batch to share or "
    "parameters to cut",
    splits="axes of tensors, over axes of one mesh, evenly and in runs: placements of DTensor",
    unit="a tensor: placements of parameters and inputs are told, others follow",
    moves="what the partitioner puts between tensors that lie in different ways",
    launches="each process its own ops",
    memory="parts of parameters, state and activations",
    framework="torch",
    runtimes=("eager", "compiled"),
)

SYSTEMS = (
    System(
        NAME,
        SEMANTICS,
        "loadmaster.systems.autoparallel.plan:autoparallel",
        WrittenForm(
            "loadmaster.systems.autoparallel.write:autoparallel",
            "AutoParallel: DTensor placements by parameter (Python)",
        ),
        packages=("autoparallel",),
    ),
)
