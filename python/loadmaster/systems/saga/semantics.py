"""SAGA: nothing is planned for it, plans of whole ops are written."""

from loadmaster.systems.registry import Form, System

SYSTEMS = (
    System(
        "saga",
        form=Form("loadmaster.systems.saga.write:saga", "SAGA: task graph and network (JSON)"),
    ),
    System(
        "saga-schedule",
        form=Form("loadmaster.systems.saga.write:saga_schedule", "SAGA: the schedule, too (JSON)"),
    ),
)
