"""DistributedDataParallel as planning for it sees it."""

from loadmaster.systems.registry import Semantics, System, WrittenForm

NAME = "ddp"

SEMANTICS = Semantics(
    system="torch.nn.parallel.DistributedDataParallel",
    models="training steps with a batch and an optimizer",
    splits="the batch, equally; the optimizer's state, by whole parameters",
    unit="a process with the whole model, on a device",
    moves="gradients, summed in buckets while the backward pass goes on",
    launches="each process its own ops, in the program's order",
    memory="all weights and gradients on every device, the latter for the whole step",
    framework="torch",
    runtimes=("eager", "compiled"),
)

SYSTEMS = (
    System(
        NAME,
        SEMANTICS,
        "loadmaster.systems.ddp.plan:plan",
        WrittenForm(
            "loadmaster.systems.ddp.write:ddp", "torch DistributedDataParallel (Python file)"
        ),
        packages=("torch",),
        checker="loadmaster.systems.shared.checked_files:checked",
    ),
)
