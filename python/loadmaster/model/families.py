"""Families of devices, for systems that speak of GPUs, CPUs, NPUs and disks by number."""

from __future__ import annotations

import re

from loadmaster.model.cluster import Cluster

_FAMILY = re.compile(r"(?<![a-z])(cpu|npu|disk)(?![a-z])")


def families(cluster: Cluster) -> list[tuple[str, int]]:
    """Per device its family, ``"gpu"``, ``"cpu"``, ``"npu"`` or ``"disk"``, and its number in it.

    A device with one of these words in its name or type is of that family, any other is a GPU.
    Numbers follow the cluster's order.

    >>> import loadmaster as lm
    >>> families(lm.Cluster.preset("cpu+gpu"))
    [('cpu', 0), ('gpu', 0)]
    """
    count: dict[str, int] = {}
    names = []
    for device in cluster.devices:
        match = _FAMILY.search(f"{device.name} {device.type}".lower())
        family = match[1] if match else "gpu"
        names.append((family, count.setdefault(family, 0)))
        count[family] += 1
    return names
