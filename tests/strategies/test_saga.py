"""HEFT against SAGA's (PyPI ``anrg.saga``) under SAGA's own model: related machines, links that
carry any number of transfers at once, a transfer per edge.
"""

from __future__ import annotations

import statistics

import numpy as np
import pytest

import loadmaster as lm

saga = pytest.importorskip("saga")
heft = pytest.importorskip("saga.schedulers.heft")

#: Bytes per unit of SAGA's data: sizes are whole here, and real there.
UNIT = 10**6

SEEDS = range(12)


def random_instance(seed: int, n_tasks: int = 60, n_nodes: int = 4, ccr: float = 1.0):
    """A layered graph between one source and one sink, on nodes and links of unlike speeds.

    Returns
    -------
    saga.Network, saga.TaskGraph
    """
    random = np.random.default_rng(seed)
    nodes = [(f"n{k}", float(random.uniform(1.0, 3.0))) for k in range(n_nodes)]
    links = [
        (f"n{a}", f"n{b}", float(random.uniform(1.0, 2.0)))
        for b in range(n_nodes)
        for a in range(b)
    ]
    costs = random.uniform(1.0, 20.0, n_tasks)
    tasks = [(f"t{i}", float(cost)) for i, cost in enumerate(costs)]
    inner = range(1, n_tasks - 1)
    edges: dict[tuple[int, int], float] = {}
    mean = ccr * costs.mean() / 2.0 * 1.5

    def joined(i: int, j: int) -> None:
        edges[i, j] = round(float(random.uniform(0.2, 1.8)) * mean, 6)

    for j in inner:
        joined(int(random.integers(max(0, j - 9), j)), j)
        if random.random() < 0.5:
            joined(int(random.integers(max(0, j - 9), j)), j)
    for i in inner:
        if not any(a == i for a, _ in edges):
            joined(i, n_tasks - 1)
    dependencies = [(f"t{i}", f"t{j}", size) for (i, j), size in edges.items()]
    return saga.Network.create(nodes, links), saga.TaskGraph.create(tasks, dependencies)


def as_graph(task_graph, network) -> lm.OpGraph:
    """Tasks as ops, in topological order, with a time per node; dependencies as tensors."""
    tasks = task_graph.topological_sort()
    at = {task.name: i for i, task in enumerate(tasks)}
    time = {node.name: [task.cost / node.speed for task in tasks] for node in network.nodes}
    edges = sorted((at[d.source], at[d.target], d.size) for d in task_graph.dependencies)
    return lm.OpGraph(
        {"name": [task.name for task in tasks], "time": time},
        {
            "src": [i for i, _, _ in edges],
            "dst": [j for _, j, _ in edges],
            "tensor": range(len(edges)),
            "bytes": [round(size * UNIT) for _, _, size in edges],
        },
    )


def as_cluster(network) -> lm.Cluster:
    """Nodes as devices, each a type of its own."""
    names = sorted(node.name for node in network.nodes)
    devices = [lm.Device(name, name, "1TiB") for name in names]
    links = [
        lm.Link(a, b, network.get_edge(a, b).speed * UNIT) for a in names for b in names if a != b
    ]
    return lm.Cluster(devices, links)


def theirs(network, task_graph) -> float:
    """SAGA's makespan."""
    return heft.HeftScheduler().schedule(network, task_graph).makespan


def ours(network, task_graph) -> float:
    """Loadmaster's makespan of the same instance, by the simulator."""
    graph, cluster = as_graph(task_graph, network), as_cluster(network)
    plan = lm.place(graph, cluster, "heft", rounds=1, contention=False)
    free = lm.simulate(graph, cluster, plan.devices, plan.priority, "fixed", contention=False)
    return free.makespan


def rank_without_self_links(network, task_graph) -> dict[str, float]:
    """HEFT's upward rank: the mean over links between different nodes (Topcuoglu 2002, eq. (4)).

    SAGA's own mean counts a node's link to itself, which takes no time.
    """
    speed = np.mean([1.0 / node.speed for node in network.nodes])
    links = [1.0 / edge.speed for edge in network.edges if edge.source != edge.target]
    per_size = np.mean(links)
    ranks: dict[str, float] = {}
    for task in reversed(task_graph.topological_sort()):
        after = [ranks[e.target] + e.size * per_size for e in task_graph.out_edges(task.name)]
        ranks[task.name] = float(task.cost * speed + max(after, default=0.0))
    return ranks


def test_a_schedule_of_sagas_takes_as_long_here():
    """The converter: SAGA's own schedule, simulated without contention, has SAGA's makespan."""
    for seed in SEEDS:
        network, task_graph = random_instance(seed)
        graph, cluster = as_graph(task_graph, network), as_cluster(network)
        schedule = heft.HeftScheduler().schedule(network, task_graph)
        scheduled = [schedule.get_scheduled_task(name) for name in graph.names]
        devices = [task.node for task in scheduled]
        # Tasks of no length start with the one after them: then by topological order.
        starts = np.lexsort((np.arange(graph.n_ops), [task.start for task in scheduled]))
        priority = np.empty(graph.n_ops, dtype=np.int32)
        priority[starts] = np.arange(graph.n_ops)
        seen = lm.simulate(graph, cluster, devices, priority, "fixed", contention=False)
        assert seen.makespan == pytest.approx(schedule.makespan, rel=1e-5)


@pytest.mark.parametrize("ccr", [0.2, 1.0, 5.0])
def test_heft_takes_as_long_as_sagas_with_the_same_ranks(ccr, monkeypatch):
    monkeypatch.setattr(heft, "upward_rank", rank_without_self_links)
    for seed in SEEDS:
        network, task_graph = random_instance(seed, ccr=ccr)
        assert ours(network, task_graph) == pytest.approx(theirs(network, task_graph), rel=0.01)


@pytest.mark.parametrize("ccr", [0.2, 1.0, 5.0])
def test_heft_is_no_slower_than_sagas_on_average(ccr):
    """With ranks of its own each, single instances differ by tens of percent either way."""
    ratios = []
    for seed in range(40):
        instance = random_instance(seed, ccr=ccr)
        ratios.append(ours(*instance) / theirs(*instance))
    assert statistics.geometric_mean(ratios) <= 1.01
