"""Model Explorer: nothing is planned for it, plans are shown in it."""

from loadmaster.systems.registry import System, WrittenForm

SYSTEMS = (
    System(
        "model-explorer",
        form=WrittenForm(
            "loadmaster.systems.model_explorer.write:model_explorer",
            "Model Explorer node data (JSON)",
        ),
        packages=("ai-edge-model-explorer",),
    ),
    System(
        "model-explorer-graph",
        form=WrittenForm(
            "loadmaster.systems.model_explorer.write:model_explorer_graph",
            "Model Explorer graph of the plan (JSON)",
        ),
        packages=("ai-edge-model-explorer",),
    ),
)
