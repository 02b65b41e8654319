"""DeepSpeed's ZeRO as planning for it sees it."""

from loadmaster.systems.registry import Semantics, System, WrittenForm

NAME = "deepspeed"

SEMANTICS = Semantics(
    system="DeepSpeed's ZeRO",
    models="training steps with a batch and an optimizer",
    splits="the batch, equally; the optimizer's state, in stage 3 every parameter and gradient",
    unit="a process on a device",
    moves="gradients in buckets; what was updated, or in stage 3 parameters before they are used",
    launches="each process its own ops, in the program's order",
    memory="a part of the optimizer's state on each device, in stage 3 of all state",
    framework="torch",
    runtimes=("eager", "compiled"),
)

SYSTEMS = (
    System(
        NAME,
        SEMANTICS,
        "loadmaster.systems.deepspeed.plan:plan",
        WrittenForm(
            "loadmaster.systems.deepspeed.write:deepspeed", "DeepSpeed configuration of ZeRO (JSON)"
        ),
        packages=("deepspeed",),
        checker="loadmaster.systems.deepspeed.check:checked",
    ),
)
