"""fully_shard (FSDP2) as planning for it sees it."""

from loadmaster.systems.registry import Semantics, System, WrittenForm

NAME = "fsdp"

SEMANTICS = Semantics(
    system="torch.distributed.fsdp.fully_shard",
    models="training steps with a batch and an optimizer, of modules",
    splits="the batch, equally; every parameter, its gradient and its state",
    unit="a process on a device; a module whose parameters are gathered together",
    moves="parameters of a unit before it is used, its gradients after its backward pass",
    launches="each process its own ops, in the program's order",
    memory="a part of all state, the whole parameters of units in use",
    framework="torch",
    runtimes=("eager", "compiled"),
)

SYSTEMS = (
    System(
        NAME,
        SEMANTICS,
        "loadmaster.systems.fsdp.plan:plan",
        WrittenForm("loadmaster.systems.fsdp.write:fsdp", "torch fully_shard, FSDP2 (Python file)"),
        packages=("torch",),
        checker="loadmaster.systems.shared.checked_files:checked",
    ),
)
