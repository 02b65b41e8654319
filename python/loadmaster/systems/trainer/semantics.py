"""transformers' Trainer as planning for it sees it."""

from loadmaster.systems.registry import Semantics, System, WrittenForm

NAME = "trainer"

SEMANTICS = Semantics(
    system="Hugging Face transformers, Trainer",
    models="training steps with a batch and an optimizer",
    splits="the batch, equally; by FSDP2 every parameter, its gradient and its state, over all "
    "processes; by DeepSpeed the state as its stage has it",
    unit="a process on a device; by FSDP2 the modules of a class, whose parameters are gathered "
    "together",
    moves="as DistributedDataParallel, FSDP2 or DeepSpeed: the engine that its arguments choose",
    launches="each process its own ops, in the program's order",
    memory="as the engine's; DistributedDataParallel has gradients beside its buckets",
    framework="torch",
    runtimes=("eager", "compiled"),
)

SYSTEMS = (
    System(
        NAME,
        SEMANTICS,
        "loadmaster.systems.trainer.plan:plan",
        WrittenForm(
            "loadmaster.systems.trainer.write:trainer",
            "Hugging Face TrainingArguments (YAML)",
        ),
        packages=("transformers",),
        checker="loadmaster.systems.trainer.check:checked",
    ),
)
