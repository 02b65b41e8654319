"""torch.distributed.pipelining as planning for it sees it."""

from loadmaster.systems.registry import Semantics, System, WrittenForm

NAME = "pipelining"

SEMANTICS = Semantics(
    system="torch.distributed.pipelining",
    models="a chain of modules that is given a batch",
    splits="nothing but the batch, into micro-batches of one size",
    unit="a run of modules: a stage, one per rank, or two where they are interleaved",
    moves="activations to the next stage when a micro-batch ends there, and gradients back",
    launches="each rank its own ops, in the order of the schedule",
    memory="parameters, gradients and optimizer state of the stage, and activations of the "
    "micro-batches that the schedule keeps",
    framework="torch",
    runtimes=("eager",),
)

SYSTEMS = (
    System(
        NAME,
        SEMANTICS,
        "loadmaster.systems.pipelining.plan:pipelining",
        WrittenForm(
            "loadmaster.systems.pipelining.write:pipelining",
            "torch.distributed.pipelining (Python)",
        ),
        packages=("torch",),
        checker="loadmaster.systems.shared.checked_files:checked",
    ),
)
