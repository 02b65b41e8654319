"""Chakra's traces: nothing is planned for them, plans of ranks are written."""

from loadmaster.systems.registry import Form, System

SYSTEMS = (
    System(
        "chakra",
        form=Form(
            "loadmaster.systems.chakra.write:chakra",
            "MLCommons Chakra: execution traces per rank (.et files)",
            is_file=True,
        ),
    ),
)
