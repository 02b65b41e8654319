"""Lightning's strategies as planning for it sees them."""

from loadmaster.systems.registry import Semantics, System, WrittenForm

NAME = "lightning"

SEMANTICS = Semantics(
    system="Lightning, DDPStrategy and ModelParallelStrategy",
    models="training steps with a batch and an optimizer",
    splits="the batch, equally; by FSDP2 every parameter, its gradient and its state",
    unit="a process on a device; by FSDP2 a module whose parameters are gathered together",
    moves="as DistributedDataParallel or FSDP2: the engine of the strategy",
    launches="each process its own ops, in the program's order",
    memory="as the engine's",
    framework="torch",
    runtimes=("eager", "compiled"),
)

SYSTEMS = (
    System(
        NAME,
        SEMANTICS,
        "loadmaster.systems.lightning.plan:plan",
        WrittenForm(
            "loadmaster.systems.lightning.write:lightning",
            "Lightning Trainer and strategy (Python file)",
        ),
        packages=("lightning",),
        checker="loadmaster.systems.lightning.check:checked",
    ),
)
