"""Clusters of hosts: fast links inside of each, one port with a slower link between them."""

from __future__ import annotations

import loadmaster as lm

#: The device type of every device, by its roofline.
V100 = lm.Cluster.preset("4xV100-PCIe").types[0]


def hosts(
    n: int,
    each: int,
    *,
    inside: float = 47.9e9,
    between: float = 2.9e9,
    latency: float = 10e-6,
    memory: int | str = "32GiB",
) -> lm.Cluster:
    """n hosts of some devices each: bytes per second of a pair inside of a host, and between hosts,
    which have one port each.
    """
    names = [[f"host{h}.gpu{d}" for d in range(each)] for h in range(n)]
    devices = [lm.Device(name, V100.name, memory) for host in names for name in host]
    links = [
        lm.Link(a, b, inside, latency, (f"{a}.tx", f"{b}.rx"))
        for host in names
        for a in host
        for b in host
        if a != b
    ]
    links += [
        lm.Link(a, b, between, 3 * latency, (f"host{g}.tx", f"host{h}.rx"))
        for g in range(n)
        for h in range(n)
        if g != h
        for a in names[g]
        for b in names[h]
    ]
    return lm.Cluster(devices, links, [V100], name=f"{n} hosts of {each}")
