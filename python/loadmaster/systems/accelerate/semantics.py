"""Hugging Face accelerate as planning for it sees it; its target is called device-map."""

from loadmaster.systems.registry import Semantics, System, WrittenForm

NAME = "device-map"

SEMANTICS = Semantics(
    system="Hugging Face accelerate and transformers, device_map",
    models="models whose ops know their modules, as lm.capture makes them",
    splits="nothing: every op is whole, on one device",
    unit="a module, with all below it; one with code of its own that joins what it is given "
    "with what it makes stays whole, and tied parameters stay together",
    moves="a module's inputs go to its device before it runs; weights of a module on cpu or "
    "disk are copied to the main GPU before each time it runs, and dropped after it (inference "
    "only): nothing overlaps with these copies",
    launches="one thread of Python, in the model's order",
    memory="weights, activations and copies, per device; what is on cpu or disk is stored "
    "there, and computes on the main GPU, the first",
    framework="torch",
    runtimes=("eager",),
)

SYSTEMS = (
    System(
        NAME,
        SEMANTICS,
        "loadmaster.systems.accelerate.plan:place",
        WrittenForm(
            "loadmaster.systems.accelerate.write:device_map", "Hugging Face device_map (JSON)"
        ),
        beside=("loadmaster.systems.accelerate.write:max_memory",),
        packages=("accelerate",),
        checker="loadmaster.systems.accelerate.check:checked",
    ),
)
