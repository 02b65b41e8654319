"""A graph and a cluster as a runtime has them."""

from __future__ import annotations

from loadmaster.base import checks
from loadmaster.costs.runtimes import compiled, eager
from loadmaster.costs.runtimes.one_kernel import as_kernels
from loadmaster.model.cluster import Cluster
from loadmaster.model.graph import FUSED_UPDATES, OpGraph
from loadmaster.model.runtime import Dispatch

#: Runtimes by name, and what each does.
RUNTIMES = {
    "eager": "ops one by one, launched by a host for each device",
    "compiled": "ops fused as torch.compile does, launched by a host for each device",
    "graphs": "ops fused as torch.compile does, replayed as a CUDA graph: launches cost nothing",
}

#: Seconds that a host takes for an op of eager PyTorch: Python, dispatcher and launch. So long do
#: published steps of ResNet-50 on 1 and 32 images take an op on V100 and T4, where devices wait for
#: hosts (benches/published.py: 28 to 57 us).
EAGER_OP = 40e-6

#: Key of a graph's ``meta``: the runtime that it is priced for.
RUNTIME = "runtime"


def runtime_of(graph: OpGraph) -> str | None:
    """The runtime that a graph is priced for; None: ops one by one, which their devices launch."""
    said = graph.meta.get(RUNTIME)
    return said if said in RUNTIMES else None


def at_runtime(graph: OpGraph, runtime: str) -> OpGraph:
    """The graph with the kernels of a runtime.

    Bytes that ops access and kernels that they launch change. Measured times stay.

    Raises
    ------
    InputError
        No such runtime; the graph is priced for another one.

    Examples
    --------
    >>> import loadmaster as lm
    >>> graph = lm.read("example:bert-large")
    >>> fused = at_runtime(graph, "compiled")
    >>> bool(fused.launches.sum() < graph.launches.sum())
    True
    """
    checks.one_of("runtime", runtime, tuple(RUNTIMES))
    rules = eager if runtime == "eager" else compiled
    kernels = as_kernels(graph, rules.kernels_of(graph))
    if graph.meta.get(FUSED_UPDATES):
        kernels = as_kernels(kernels, eager.updates_of(kernels))
    return eager.foreach(kernels).with_columns({}, meta={RUNTIME: runtime})


def on_hosts(cluster: Cluster, runtime: str) -> Cluster:
    """The cluster where hosts launch kernels as a runtime has it.

    >>> import loadmaster as lm
    >>> cluster = lm.Cluster.preset("8xH100-NVLink")
    >>> on_hosts(cluster, "eager").dispatch.launch, on_hosts(cluster, "graphs").dispatch
    (4e-05, None)
    """
    launch = max((t.launch for t in cluster.types), default=0.0)
    if cluster.dispatch is not None:
        return cluster.with_dispatch(None) if runtime == "graphs" else cluster
    if not launch:
        return cluster
    if runtime == "graphs":
        # Types lose their launch to a host, and then there is none.
        return cluster.with_dispatch(Dispatch(launch, one_host=False)).with_dispatch(None)
    source = "the launch of the device types, paid by a host for each device"
    if runtime == "eager":
        launch, source = EAGER_OP, "published steps of eager PyTorch that hosts bind"
    return cluster.with_dispatch(Dispatch(launch, one_host=False, source=source))
