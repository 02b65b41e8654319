"""Plans that pictures, traces and reports are drawn of."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import numpy as np

import loadmaster as lm
from loadmaster.judge.timeline import Timeline

CLUSTER = "4xV100-PCIe"


def planned(graph, cluster=CLUSTER, method="round-robin", **options):
    if isinstance(cluster, str):
        cluster = lm.Cluster.preset(cluster)
    if isinstance(graph, str):
        graph = lm.read(f"example:{graph}")
    return lm.place(graph, cluster, method, on_oom="best_effort", **options)


def measured(plan):
    """The plan with its own simulated times, as if they had been measured."""
    line = plan.schedule.timeline
    columns = line.device, line.start, line.finish, line.transfers, line.collectives
    line = Timeline.measured(plan.program, *columns)
    return plan.measured(lm.Simulation(plan.problem, line, plan.memory))


def layered(n, seed=0, width=16):
    """Ops in layers; each reads two of the layer before."""
    random = np.random.default_rng(seed)
    dst = np.repeat(np.arange(width, n), 2)
    src = (dst // width - 1) * width + random.integers(0, width, len(dst))
    pairs = np.unique(np.stack([src, dst], axis=1), axis=0)
    size = random.integers(1_000, 1_000_000, n)
    ops = {
        "name": [f"op{i}" for i in range(n)],
        "module": [f"layer{i // width}" for i in range(n)],
        "output_bytes": size,
        "time": {"*": random.exponential(50e-6, n)},
    }
    edges = {"src": pairs[:, 0], "dst": pairs[:, 1], "bytes": size[pairs[:, 0]]}
    return lm.OpGraph(ops, edges, name="layered")


def hand_made():
    """a (gpu0) -> b (gpu1) and a view of a -> c (gpu1); p is a parameter read by both ends; nothing
    and done take no time.
    """
    names = ["p", "a", "nothing", "v", "b", "c", "done"]
    ops = {
        "name": names,
        "kind": ["parameter", "matmul", "", "", "", "", ""],
        "phase": ["f", "f", "f", "f", "f", "b", "b"],
        "param_bytes": [1000, 0, 0, 0, 0, 0, 0],
        "output_bytes": [0, 4000, 0, 0, 100, 200, 0],
        "view": [0, 0, 0, 1, 0, 0, 0],
        "alias_of": [-1, -1, -1, 1, -1, -1, -1],
        "time": {"*": [0, 1e-3, 0, 0, 2e-3, 3e-3, 0]},
    }
    edges = {
        "src": [0, 0, 1, 1, 1, 3, 5],
        "dst": [1, 4, 2, 3, 4, 5, 6],
        "bytes": [1000, 1000, 4000, 4000, 4000, 4000, 200],
    }
    graph = lm.OpGraph(ops, edges, name="hand-made")
    cluster = lm.Cluster.mesh(2, memory=10_000, bandwidth=4e6, latency=1e-3, name="pair")
    plan = lm.place(graph, cluster, "single")
    devices = np.array([0, 0, 0, 0, 1, 1, 1], dtype=np.int32)
    return with_devices(plan, devices)


def gathered():
    """a0 (1 ms, gpu0) and a1 (2 ms, gpu1) make 4 kB each, which are summed from 2 to 5 ms; then b0
    and b1 run. A transfer of x (gpu0) to y (gpu1) waits for the channel until 5 ms.
    """
    names = ["x", "y", "a0", "a1", "m0", "m1", "b0", "b1"]
    ops = {
        "name": names,
        "output_bytes": [4000, 0, 4000, 4000, 4000, 4000, 0, 0],
        "collective": ["", "", "", "", "all_reduce/g", "all_reduce/g", "", ""],
        "time": {"*": [2e-3, 1e-3, 1e-3, 2e-3, 0, 0, 1e-3, 2e-3]},
    }
    edges = {"src": [0, 2, 3, 4, 5], "dst": [1, 4, 5, 6, 7], "bytes": [4000] * 5}
    graph = lm.OpGraph(ops, edges, name="gathered")
    cluster = lm.Cluster.mesh(2, memory=100_000, bandwidth=4e6, latency=1e-3, name="pair")
    plan = lm.place(graph, cluster, "single")
    document = plan.to_document() | {
        "devices": [0, 1, 0, 1, 0, 1, 0, 1],
        "priority": [1, 9, 0, 0, 2, 2, 3, 3],
    }
    return _loaded(document)


def with_devices(plan, devices):
    document = plan.to_document() | {"devices": devices.tolist()}
    return _loaded(document)


def _loaded(document):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "plan.json")
        path.write_text(json.dumps(document))
        return lm.Plan.load(path)
