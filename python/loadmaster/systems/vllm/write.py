"""vLLM: a plan as a file for ``vllm serve --config``, YAML."""

from __future__ import annotations

import os
from collections.abc import Mapping

from loadmaster.base.files import write_bytes
from loadmaster.base.quoting import Code, yaml_file
from loadmaster.plans.plan import Plan
from loadmaster.systems.shared.served_file import ServedFile
from loadmaster.systems.vllm.semantics import NAME

#: The environment variable that has the number of layers of each stage.
PARTITION = "VLLM_PP_LAYER_PARTITION"

_FILE = """\
{head}
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
    file = ServedFile.of(plan, NAME, root, layers, "--data-parallel-size")
    parallelism = file.ranked.parallelism
    command = f"{file.setting(PARTITION)}vllm serve MODEL --config vllm.yaml"
    text = yaml_file(
        _FILE,
        head=file.head(command, names),
        tp=parallelism.tp,
        pp=parallelism.stages,
        experts=Code("enable-expert-parallel: true\n" if parallelism.experts == "apart" else ""),
    )
    if path is not None:
        write_bytes(path, text.encode())
    return text
