"""Chakra's traces: nothing is planned for them, plans of ranks are written."""

from loadmaster.systems.registry import System, WrittenForm

SYSTEMS = (
    System(
        "chakra",
        form=WrittenForm(
            "loadmaster.systems.chakra.write:chakra",
            "MLCommons Chakra: execution traces per rank (.et files)",
            is_file=True,
        ),
    ),
)
