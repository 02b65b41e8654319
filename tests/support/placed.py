"""Plans made by hand: devices by module, by op, or at random."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

import loadmaster as lm
from loadmaster.judge.simulation import reduced_assignment


def with_devices(graph, devices, cluster=None, costs=None):
    """A plan with these devices per op."""
    devices = np.asarray(devices, dtype=np.int32)
    if cluster is None:
        n = max(2, int(devices.max(initial=0)) + 1)
        cluster = lm.Cluster.mesh(n, memory="1TiB", bandwidth=1e10, latency=1e-6)
    if costs is None and graph.time == {} and not cluster.types[0].has_roofline:
        cluster = lm.Cluster.preset("8xH100-NVLink")
    plan = lm.place(graph, cluster, "single", costs, on_oom="best_effort")
    assignment = reduced_assignment(plan.problem, devices, plan.priority)
    return replace(plan, assignment=assignment, verdict=plan.problem.verdict(assignment))


def by_module(graph, where, cluster=None):
    """A plan with each op on the device of the longest prefix of its module, or of its name."""

    def device(path):
        parts = path.split(".")
        prefixes = (".".join(parts[:n]) for n in range(len(parts), -1, -1))
        return next(where[p] for p in prefixes if p in where)

    paths = [
        m if k not in ("parameter", "buffer") else n
        for n, m, k in zip(graph.names, graph.modules, graph.kinds, strict=True)
    ]
    return with_devices(graph, [device(path) for path in paths], cluster)


def at_random(graph, n_devices, seed=0, cluster=None):
    """A plan with a random device per op."""
    devices = np.random.default_rng(seed).integers(0, n_devices, graph.n_ops)
    return with_devices(graph, devices, cluster)
