"""vLLM: a plan as a file for ``vllm serve --config``, YAML."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from loadmaster.base.files import write_bytes
from loadmaster.base.quoting import Code, comment, yaml_file
from loadmaster.plans.plan import Plan
from loadmaster.rules.layer_list import LayerList
from loadmaster.systems.shared.figures import figures
from loadmaster.systems.shared.layered import is_encoder
from loadmaster.systems.shared.layers import options_of
from loadmaster.systems.shared.names import device_names, torch_device
from loadmaster.systems.shared.parallelism_of_plan import RankedDevices, parallelism_of
from loadmaster.systems.shared.refusal import Reason, refusal
from loadmaster.systems.vllm.semantics import NAME

#: The environment variable that has the number of layers of each stage.
PARTITION = "VLLM_PP_LAYER_PARTITION"

_FILE = """\
{figures}
#
{command:words}
# Ranks are on
{ranks}
tensor-parallel-size: {tp}
pipeline-parallel-size: {pp}
{experts}"""


def vllm(
    plan: Plan,
    path: str | os.PathLike[str] | None = None,
    *,
    root: str | None = None,
    layers: str | None = None,
    names: Mapping[str, str] | None = None,
) -> str:
    """The plan for vLLM, which takes the number of layers per stage from an environment variable.

    Parameters
    ----------
    plan : Plan
        By whole layers, each device having one run of them; or made for vLLM; or of shards that
        vLLM has.
    path : optional
        Where to write it: YAML, as ``--config`` takes it.
    root, layers : optional
        As for :class:`~loadmaster.rules.layer_list.LayerList`; what the plan was made with if
        absent.
    names : mapping, optional
        As for :func:`~loadmaster.systems.accelerate.write.device_map`.

    Returns
    -------
    str
        The file, with the plan's figures and the command that takes it in its head: where stages
        have unequal numbers of layers, this sets ``VLLM_PP_LAYER_PARTITION``.

    Raises
    ------
    InputError
        Everything that vLLM cannot run of the plan, with the command that plans for it.

    Examples
    --------
    >>> import loadmaster as lm
    >>> plan = lm.place(lm.read("example:mixtral"), lm.Cluster.preset("8xMI300X"), "single")
    >>> print(lm.writers.vllm(plan).splitlines()[-1])
    pipeline-parallel-size: 1
    """
    spelled = device_names(plan, torch_device, names)
    root, layers = options_of(plan, root, layers)
    reasons: list[Reason] = []
    ranked = parallelism_of(plan, NAME, root, layers, reasons)
    if ranked is not None:
        reasons += _in_the_way(plan, ranked)
        if ranked.parallelism.stages > 1 and is_encoder(LayerList.of(plan.graph, root, layers)):
            reasons.append("it has no stages of an encoder, and attention here is not causal")
    if ranked is None or reasons:
        raise refusal(plan, NAME, reasons)
    parallelism, counts = ranked.parallelism, ranked.parallelism.layers
    is_uneven = len(set(counts)) > 1
    partition = f"{PARTITION}={','.join(map(str, counts))} " if is_uneven else ""
    ranks = " ".join(spelled[device] for device in ranked.devices)
    order = f"tp {parallelism.tp} changes fastest, then pp {parallelism.stages}"
    text = yaml_file(
        _FILE,
        figures=figures(plan, _more()),
        command=f"{partition}vllm serve MODEL --config vllm.yaml",
        ranks=comment(f"{ranks}: {order}.", "#   "),
        tp=parallelism.tp,
        pp=parallelism.stages,
        experts=Code("enable-expert-parallel: true\n" if parallelism.experts == "apart" else ""),
    )
    if path is not None:
        write_bytes(path, text.encode())
    return text


def _in_the_way(plan: Plan, ranked: RankedDevices) -> Iterator[Reason]:
    parallelism = ranked.parallelism
    if parallelism.virtual > 1:
        first = ranked.devices[:: parallelism.tp * parallelism.dp]
        said = [f"{plan.cluster.devices[d].name} has {parallelism.virtual}" for d in first]
        yield "each device has one run of layers, and in the plan", said
    if parallelism.dp > 1:
        yield (
            f"{parallelism.dp} replicas share one batch: they are servers of their own, each with "
            "its own requests (--data-parallel-size)"
        )
    if parallelism.sequence:
        yield "norms are cut by tokens"


def _more() -> Iterator[str]:
    """Lines on what vLLM does otherwise than the plan."""
    yield (
        "The step is one pass over the prompts of the graph. The cache of keys and values is not "
        "in it."
    )
