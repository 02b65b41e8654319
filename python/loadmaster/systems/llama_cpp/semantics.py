"""llama.cpp as planning for it sees it."""

from loadmaster.systems.registry import Semantics, System, WrittenForm

NAME = "llama-cpp"

SEMANTICS = Semantics(
    system="llama.cpp",
    models="the inference of a transformer: one stack of layers of one width with attention, which "
    "reads words",
    splits="nothing: --split-mode layer",
    unit="a run of layers: the first ones on the CPU, then one run per GPU; the output is with the "
    "last, and the embedding on the CPU, where there is one",
    moves="activations, where the next layer is elsewhere",
    launches="one thread, for all devices",
    memory="weights where their layer is, and activations",
)

SYSTEMS = (
    System(
        NAME,
        SEMANTICS,
        "loadmaster.systems.llama_cpp.plan:llama_cpp",
        WrittenForm(
            "loadmaster.systems.llama_cpp.write:llama_cpp", "llama.cpp tensor split (JSON)"
        ),
        packages=("llama-cpp-python",),
    ),
)
