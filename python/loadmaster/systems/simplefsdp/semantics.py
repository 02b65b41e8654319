"""SimpleFSDP as planning for it sees it."""

from loadmaster.systems.registry import Semantics, System, WrittenForm

NAME = "simplefsdp"

SEMANTICS = Semantics(
    system="torch.distributed.tensor.DTensor, by SimpleFSDP",
    models="training steps with a batch and an optimizer, of modules",
    splits="the batch, equally; every parameter, its gradient and its state",
    unit="a process on a device; a parameter",
    moves="a parameter when it is first read, its gradient after its backward pass",
    launches="each process its own ops, in the program's order",
    memory="a part of all state, whole parameters from where they are read to their gradient",
    framework="torch",
    runtimes=("eager", "compiled"),
)

SYSTEMS = (
    System(
        NAME,
        SEMANTICS,
        "loadmaster.systems.simplefsdp.plan:plan",
        WrittenForm(
            "loadmaster.systems.simplefsdp.write:simplefsdp",
            "torch DTensors that are gathered when they are read, SimpleFSDP (Python file)",
        ),
        packages=("torch",),
        checker="loadmaster.systems.shared.checked_files:checked",
    ),
)
