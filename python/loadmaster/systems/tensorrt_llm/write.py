"""TensorRT-LLM: a plan as a file for ``trtllm-serve --config``, YAML."""

from __future__ import annotations

import os
from collections.abc import Mapping

from loadmaster.base.files import write_bytes
from loadmaster.base.quoting import Code, yaml_file
from loadmaster.plans.plan import Plan
from loadmaster.systems.shared.served_file import ServedFile
from loadmaster.systems.tensorrt_llm.semantics import NAME

_FILE = """\
{head}
tensor_parallel_size: {tp}
pipeline_parallel_size: {pp}
{partition}{experts}"""


def tensorrt_llm(
    plan: Plan,
    path: str | os.PathLike[str] | None = None,
    *,
    root: str | None = None,
    layers: str | None = None,
    names: Mapping[str, str] | None = None,
) -> str:
    """The plan for TensorRT-LLM, in the words of its LLM API.

    Parameters
    ----------
    plan : Plan
        By whole layers, each device having one run of them; or made for TensorRT-LLM; or of shards
        that it has.
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
        The file, with the plan's figures and the command that takes it in its head. Where stages
        have unequal numbers of layers, ``pp_partition`` has them.

    Raises
    ------
    InputError
        Everything that TensorRT-LLM cannot run of the plan, with the command that plans for it.

    Examples
    --------
    >>> import loadmaster as lm
    >>> plan = lm.place(lm.read("example:mixtral"), lm.Cluster.preset("8xMI300X"), "single")
    >>> print(lm.writers.tensorrt_llm(plan).splitlines()[-1])
    pipeline_parallel_size: 1
    """
    file = ServedFile.of(plan, NAME, root, layers, "a server each")
    parallelism = file.ranked.parallelism
    layers_of = list(parallelism.layers)
    uneven = yaml_file("pp_partition: {layers}\n", layers=layers_of) if file.is_uneven else ""
    experts = yaml_file("moe_expert_parallel_size: {ep}\n", ep=parallelism.ep)
    text = yaml_file(
        _FILE,
        head=file.head("trtllm-serve MODEL --config trtllm.yaml", names),
        tp=parallelism.tp,
        pp=parallelism.stages,
        partition=Code(uneven),
        experts=Code(experts if parallelism.ep > 1 else ""),
    )
    if path is not None:
        write_bytes(path, text.encode())
    return text
