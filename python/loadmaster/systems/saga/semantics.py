"""SAGA: nothing is planned for it, plans of whole ops are written."""

from loadmaster.systems.registry import System, WrittenForm

SYSTEMS = (
    System(
        "saga",
        form=WrittenForm(
            "loadmaster.systems.saga.write:saga", "SAGA: task graph and network (JSON)"
        ),
    ),
    System(
        "saga-schedule",
        form=WrittenForm(
            "loadmaster.systems.saga.write:saga_schedule", "SAGA: the schedule, too (JSON)"
        ),
    ),
)
