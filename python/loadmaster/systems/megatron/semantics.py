"""Megatron-LM as planning for it sees it."""

from loadmaster.systems.registry import Semantics, System, WrittenForm

NAME = "megatron"

SEMANTICS = Semantics(
    system="Megatron-LM",
    models="a training step of a transformer: one stack of layers of one width with attention, "
    "which reads words, and a batch",
    splits="heads, features and vocabulary over tp devices, tokens between the products; the batch "
    "over dp, and into micro-batches; routed experts over ep of dp; the optimizer's state over dp",
    unit="runs of layers on the tp x dp devices of a stage: one run, or several where interleaved",
    moves="activations within layers, and from one run of layers to the next; tokens to experts "
    "and back; gradients of replicas in buckets, and what was updated",
    launches="each rank its own ops",
    memory="parameters, gradients and optimizer state of the rank, and activations of the "
    "micro-batches that the schedule keeps, or what recomputed layers or modules begin with",
    runtimes=("eager", "compiled"),
)

SYSTEMS = (
    System(
        NAME,
        SEMANTICS,
        "loadmaster.systems.megatron.plan:megatron",
        WrittenForm(
            "loadmaster.systems.megatron.write:megatron", "Megatron-LM flags (shell script)"
        ),
        packages=("megatron-core",),
        checker="loadmaster.systems.megatron.check:checked",
    ),
)
