"""Families of devices: what a device is to a framework, a GPU, a CPU or an NPU."""

from __future__ import annotations

import re

from loadmaster.model.cluster import Cluster

_FAMILY = re.compile(r"(?<![a-z])(cpu|npu)(?![a-z])")


def families(cluster: Cluster) -> list[tuple[str, int]]:
    """Per device its family, ``"gpu"``, ``"cpu"`` or ``"npu"``, and its number within it.

    A device with "cpu" or "npu" in its name or type is of that family, any other device is a GPU.

    >>> import loadmaster as lm
    >>> families(lm.Cluster.preset("cpu+gpu"))
    [('cpu', 0), ('gpu', 0)]
    """
    count: dict[str, int] = {}
    found = []
    for device in cluster.devices:
        match = _FAMILY.search(f"{device.name} {device.type}".lower())
        family = match[1] if match else "gpu"
        found.append((family, count.setdefault(family, 0)))
        count[family] += 1
    return found
