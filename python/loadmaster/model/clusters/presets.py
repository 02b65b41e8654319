"""The clusters that come with Loadmaster: presets, and the first devices of one."""

from __future__ import annotations

import os
import re
from importlib import resources

from loadmaster.base.errors import InputError
from loadmaster.base.text import meant
from loadmaster.model.cluster import Cluster
from loadmaster.model.clusters.reading import of_file, of_text
from loadmaster.model.runtime import Dispatch

#: A preset's name that begins with how many there are.
_SIZED = re.compile(r"(\d{1,4})x(.+)")

#: The end of a preset's name where one host launches the kernels of all its devices.
_EAGER = "-eager"

#: The presets that are listed so: GPUs of one server, which one process of eager PyTorch serves.
_SERVERS = ("2xV100-NVLink", "4xV100-PCIe", "8xV100-NVLink", "8xH100-NVLink")


def presets() -> list[str]:
    """Names of the clusters that come with Loadmaster.

    >>> "4xV100-PCIe" in presets()
    True
    """
    files = (resources.files("loadmaster.model") / "presets").iterdir()
    names = [f.name.removesuffix(".toml") for f in files if f.name.endswith(".toml")]
    return sorted(names + [name + _EAGER for name in _SERVERS])


def named(name: str) -> Cluster:
    """The cluster of a TOML file, if there is one or the name ends in ``.toml``; else a preset."""
    if name.endswith(".toml") or os.path.exists(name):
        return of_file(name)
    return preset(name)


def preset(name: str) -> Cluster:
    """The preset of a name, or the first devices of one; see :meth:`Cluster.preset`."""
    whole, asked, there = _preset(name)
    of_file = whole.removesuffix(_EAGER)
    file = resources.files("loadmaster.model") / "presets" / f"{of_file}.toml"
    cluster = of_text(file.read_text(encoding="utf-8"), f"preset {of_file}")
    cluster = cluster if whole == of_file else _eager(cluster)
    if asked == there:
        return cluster
    n = cluster.n_devices * asked // there
    part = cluster.subset(range(n))
    first = f"The first {n} devices" if n > 1 else "The first device"
    text = f"{first} of {whole}: {cluster.description}"
    return Cluster(
        part.devices,
        part.wiring,
        part.types,
        name=name,
        description=text,
        source=cluster.source,
        collectives=part.collectives,
        dispatch=part.dispatch,
    )


def _eager(cluster: Cluster) -> Cluster:
    """The cluster where one host pays what launching a kernel takes, instead of each device."""
    launch = max(t.launch for t in cluster.types)
    source = f"the launch of {cluster.types[0].name} in {cluster.name}, paid by the one thread"
    dispatch = Dispatch(launch, source=f"{source} of a process of eager PyTorch")
    described = f"{cluster.description}; one thread launches all kernels, as eager PyTorch does"
    changed = cluster.with_dispatch(dispatch)
    return Cluster(
        changed.devices,
        changed.wiring,
        changed.types,
        name=cluster.name + _EAGER,
        description=described,
        source=cluster.source,
        collectives=changed.collectives,
        dispatch=dispatch,
    )


def _preset(name: str) -> tuple[str, int, int]:
    """The preset that has a name or is the smallest of more, how many of its first number are asked
    for, and how many it has.
    """
    known = presets()
    if name in known:
        return name, 1, 1
    if asked := _SIZED.fullmatch(name):
        sizes = (
            int(match[1])
            for match in map(_SIZED.fullmatch, known)
            if match and match[2] == asked[2]
        )
        for size in sorted(sizes):
            if 0 < int(asked[1]) < size:
                return f"{size}x{asked[2]}", int(asked[1]), size
    raise InputError(
        f"no preset is named {name!r}{meant(name, known)}, and fewer of each, such as "
        "4xA100-NVLink; any other is a TOML file, or is made by `loadmaster cluster new` or "
        "Cluster.new"
    )
