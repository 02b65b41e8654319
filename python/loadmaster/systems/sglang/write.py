"""SGLang: a plan as a file for ``python -m sglang.launch_server --config``, YAML."""

from __future__ import annotations

import os
from collections.abc import Mapping

from loadmaster.base.files import write_bytes
from loadmaster.base.quoting import yaml_file
from loadmaster.plans.plan import Plan
from loadmaster.systems.sglang.semantics import NAME
from loadmaster.systems.shared.served_file import ServedFile

#: The environment variable that has the number of layers of each stage.
PARTITION = "SGLANG_PP_LAYER_PARTITION"

_FILE = """\
{head}
tp-size: {tp}
pp-size: {pp}
ep-size: {ep}
"""


def sglang(
    plan: Plan,
    path: str | os.PathLike[str] | None = None,
    *,
    root: str | None = None,
    layers: str | None = None,
    names: Mapping[str, str] | None = None,
) -> str:
    """The plan for SGLang, which takes the number of layers per stage from an environment variable.

    Parameters
    ----------
    plan : Plan
        By whole layers, each device having one run of them; or made for SGLang; or of shards that
        SGLang has.
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
        have unequal numbers of layers, this sets ``SGLANG_PP_LAYER_PARTITION``.

    Raises
    ------
    InputError
        Everything that SGLang cannot run of the plan, with the command that plans for it.

    Examples
    --------
    >>> import loadmaster as lm
    >>> plan = lm.place(lm.read("example:mixtral"), lm.Cluster.preset("8xMI300X"), "single")
    >>> print(lm.writers.sglang(plan).splitlines()[-1])
    ep-size: 1
    """
    file = ServedFile.of(plan, NAME, root, layers, "--dp-size")
    parallelism = file.ranked.parallelism
    serve = "python -m sglang.launch_server --model-path MODEL --config sglang.yaml"
    text = yaml_file(
        _FILE,
        head=file.head(f"{file.setting(PARTITION)}{serve}", names),
        tp=parallelism.tp,
        pp=parallelism.stages,
        ep=parallelism.ep,
    )
    if path is not None:
        write_bytes(path, text.encode())
    return text
