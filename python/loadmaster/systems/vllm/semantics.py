"""vLLM as planning for it sees it."""

from loadmaster.systems.registry import Semantics, System, WrittenForm

NAME = "vllm"

SEMANTICS = Semantics(
    system="vLLM",
    models="the inference of a transformer: one stack of layers of one width with attention, which "
    "reads words",
    splits="heads, features and vocabulary, equally over the devices of a stage (tensor "
    "parallelism), which have routed experts in parts, or apart (expert parallelism)",
    unit="a run of layers per stage (pipeline parallelism; not of encoders), or all layers on all "
    "devices",
    moves="activations to the next run of layers, and an all-reduce after each product by "
    "rows, inside a host by a kernel of its own",
    launches="each device's process its own ops",
    memory="weights of its part, and activations; not the cache of keys and values",
    runtimes=("eager", "compiled", "graphs"),
    own_all_reduce=True,
)

SYSTEMS = (
    System(
        NAME,
        SEMANTICS,
        "loadmaster.systems.vllm.plan:vllm",
        WrittenForm("loadmaster.systems.vllm.write:vllm", "vLLM sizes, for --config (YAML)"),
        packages=("vllm",),
    ),
)
