"""accelerate's launcher as planning for it sees it."""

from loadmaster.systems.registry import Semantics, System, WrittenForm

NAME = "accelerate"

SEMANTICS = Semantics(
    system="Hugging Face accelerate, accelerate launch",
    models="training steps with a batch and an optimizer",
    splits="the batch, equally; by FSDP2 every parameter, its gradient and its state; by DeepSpeed "
    "the state as its stage has it",
    unit="a process on a device; by FSDP2 the modules of a class, whose parameters are gathered "
    "together",
    moves="as DistributedDataParallel, FSDP2 or DeepSpeed: the engine that it starts",
    launches="each process its own ops, in the program's order",
    memory="as the engine's; DistributedDataParallel has gradients beside its buckets",
    framework="torch",
    runtimes=("eager", "compiled"),
)

SYSTEMS = (
    System(
        NAME,
        SEMANTICS,
        "loadmaster.systems.accelerate_config.plan:plan",
        WrittenForm(
            "loadmaster.systems.accelerate_config.write:accelerate",
            "Hugging Face accelerate launch --config_file (YAML)",
        ),
        packages=("accelerate",),
        checker="loadmaster.systems.accelerate_config.check:checked",
    ),
)
