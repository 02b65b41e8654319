"""The machine at hand as a cluster, its links and its CPU's memory measured if asked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

from loadmaster.base.errors import InputError
from loadmaster.costs.links import fit_links
from loadmaster.costs.transfers import Floats, TransferTimes
from loadmaster.model.cluster import Cluster
from loadmaster.model.machine.detected import Detected, detected
from loadmaster.model.machine.types import recognised

#: Threads that measure the memory: more than these take memory themselves, and fill no more of it.
_MOST_THREADS = 16


def detect(
    *,
    cpu: bool | None = None,
    measure: bool = False,
    progress: Callable[[str], None] | None = None,
) -> Detected:
    """The machine at hand as a cluster, and what could not be found out.

    :meth:`Cluster.detect` says how.

    Parameters
    ----------
    cpu : bool, optional
        Whether the CPU is a device; by default only where there is no GPU.
    measure : bool
        Whether to time transfers between GPUs, and the CPU where it is a device, by
        :func:`loadmaster.measure_links` (PyTorch must see the GPUs), and the CPU's memory.
    progress : callable, optional
        Called with a text that names the measurement.

    Returns
    -------
    Detected
        Its ``cluster``, its ``notes``, and ``toml``: both as a file.

    Raises
    ------
    InputError
        Neither a GPU nor a CPU was found.

    Examples
    --------
    >>> found = detect(cpu=True)
    >>> found.cluster.devices[0].name
    'cpu'
    """
    here = detected(cpu=cpu)
    if not measure:
        return here
    tell = progress or (lambda stage: None)
    return _memory_measured(_links_measured(here, tell), tell)


def _links_measured(here: Detected, tell: Callable[[str], None]) -> Detected:
    from loadmaster.costs.measuring_links import measure_links

    if not here.cluster.links:
        return here
    if not _numbered_alike(here.cluster):
        why = (
            "Links were not measured: PyTorch does not number these GPUs as here; "
            "CUDA_DEVICE_ORDER=PCI_BUS_ID and no CUDA_VISIBLE_DEVICES mend it."
        )
        return replace(here, notes=(*here.notes, why))
    try:
        times = measure_links([], progress=tell)
    except InputError:
        why = "Links were not measured: PyTorch is not installed, or sees no GPU."
        return replace(here, notes=(*here.notes, why))
    return replace(here, cluster=timed(here.cluster, times), untimed_links=())


def _numbered_alike(cluster: Cluster) -> bool:
    """True if PyTorch's GPUs are the cluster's, in its order; true where it sees none."""
    if find_spec("torch") is None:
        return True
    import torch as installed

    torch: Any = installed
    seen = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return not seen or alike(cluster, seen)


def alike(cluster: Cluster, names: Sequence[str]) -> bool:
    """True if GPUs of these names, as tools call them, are those of the cluster, in its order."""
    known = [recognised(name) for name in names]
    types = [k.type.name if k else name for k, name in zip(known, names, strict=True)]
    return types == [d.type for d in cluster.devices if d.name != "cpu"]


def timed(cluster: Cluster, times: TransferTimes) -> Cluster:
    """The cluster with the figures of measured transfers on the links that these are of.

    Transfers between devices that the cluster has no link for count for nothing.
    """
    pairs = {(link.src, link.dst) for link in cluster.links}
    rows: dict[str | tuple[str, str, str], tuple[Floats, Floats]] = {
        link: (times.bytes[times.link == i], times.seconds[times.link == i])
        for i, link in enumerate(times.links)
        if link[:2] in pairs
    }
    return fit_links(TransferTimes.of(rows)).cluster(cluster) if rows else cluster


def _memory_measured(here: Detected, tell: Callable[[str], None]) -> Detected:
    """With the bandwidth of the CPU's memory, where the CPU is a device and it is not known."""
    from loadmaster.costs.measuring_memory import measure_memory
    from loadmaster.model.machine.host import usable_cores

    cluster = here.cluster
    kinds = {kind.name: kind for kind in cluster.types}
    cpu = next((kinds[d.type] for d in cluster.devices if d.name == "cpu"), None)
    if cpu is None or cpu.memory_bandwidth:
        return here
    tell("the CPU's memory")
    threads = min(usable_cores(), _MOST_THREADS)
    bandwidth = measure_memory(threads)
    source = f"{cpu.source}; memory_bandwidth: measured by copies of {threads} threads"
    faster = replace(cpu, memory_bandwidth=round(bandwidth, -8), source=source)
    types = [faster if kind.name == cpu.name else kind for kind in cluster.types]
    known = Cluster(
        cluster.devices,
        cluster.wiring,
        types,
        name=cluster.name,
        description=cluster.description,
        source=cluster.source,
    )
    return replace(here, cluster=known, untimed_memory=())
