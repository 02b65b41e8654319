"""Ray Train as planning for it sees it."""

from loadmaster.systems.registry import Semantics, System, WrittenForm

NAME = "ray"

SEMANTICS = Semantics(
    system="Ray Train, TorchTrainer",
    models="training steps with a batch and an optimizer",
    splits="the batch, equally; by FSDP2 every parameter, its gradient and its state",
    unit="a worker on a device; by FSDP2 a module whose parameters are gathered together",
    moves="as DistributedDataParallel or FSDP2: the engine that workers run",
    launches="each worker its own ops, in the program's order",
    memory="as the engine's",
    framework="torch",
    runtimes=("eager", "compiled"),
)

SYSTEMS = (
    System(
        NAME,
        SEMANTICS,
        "loadmaster.systems.ray.plan:plan",
        WrittenForm(
            "loadmaster.systems.ray.write:ray",
            "Ray Train ScalingConfig and TorchTrainer (Python file)",
        ),
        packages=("ray",),
        checker="loadmaster.systems.ray.check:checked",
    ),
)
