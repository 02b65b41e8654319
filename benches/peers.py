"""Measures Loadmaster against its peers and against its own targets, from Python.

    python benches/peers.py [--ops 50000] [--shuffle] [--repeat 15] [--memory | --schedule]

One process, one thread, each contender in turn, median CPU milliseconds. Needs the ``bench`` extra:
``python -m pip install '.[bench]'``. ``--memory`` measures peak memory at 1,000,000 ops instead,
``--schedule`` the list schedulers on 8 devices.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import networkx as nx
import numpy as np
import pymetis
import rustworkx as rx
from layered import Layered, layered

import loadmaster as lm
from loadmaster import fast

#: The paper's R and M for four devices; a partition of as many parts as METIS is asked for.
R, M, PARTS, DEVICES = 200, 0.25, 250, 4

METIS = f"METIS: {PARTS} parts"


def coarsen(graph: fast.Graph, data: Layered, max_bytes: int) -> fast.Graph:
    """Levels, CPD-TOPO, sequential fusion and contraction."""
    weights = fast.Weights(graph, data.op_seconds, data.tensor_seconds)
    order = fast.cpd_topo(weights)
    cuts = fast.breakpoints(weights, order, max_ops=R, max_bytes=max_bytes)
    return fast.contract(graph, fast.segments(order, cuts))


def build(data: Layered) -> fast.Graph:
    """The validated graph."""
    return fast.Graph(
        data.n_ops, data.src, data.dst, tensor_bytes=data.tensor_bytes, resident=data.resident
    )


def mesh(data: Layered, share: float) -> lm.Cluster:
    """Four equal devices, each with a share of what the graph takes if nothing is ever freed."""
    memory = int(data.static_bytes.sum() * share)
    return lm.Cluster.mesh(DEVICES, memory=memory, bandwidth=12e9, latency=10e-6)


def median_cpu_ms(run: Callable[[], object], repeat: int) -> float:
    """Median CPU time of some runs, in milliseconds."""
    seconds = []
    for _ in range(repeat):
        began = time.process_time()
        run()
        seconds.append(time.process_time() - began)
    return statistics.median(seconds) * 1e3


def metis(data: Layered) -> Callable[[], object]:
    """METIS on the same graph, its conversion of lists included: a measure of the machine too."""
    ends = np.concatenate([data.src, data.dst]), np.concatenate([data.dst, data.src])
    by_end = np.argsort(ends[0], kind="stable")
    starts = np.concatenate([[0], np.cumsum(np.bincount(ends[0], minlength=data.n_ops))])
    microseconds = np.rint(data.tensor_seconds * 1e6).astype(np.int64)
    edge_weight = np.concatenate([microseconds[data.src]] * 2)[by_end]

    def part() -> object:
        adjacency = pymetis.CSRAdjacency(starts.tolist(), ends[1][by_end].tolist())
        return pymetis.part_graph(PARTS, adjacency, eweights=edge_weight.tolist())

    return part


def contenders(data: Layered) -> dict[str, Callable[[], object]]:
    """What is measured, by name, on graphs built beforehand."""
    graph = build(data)
    max_bytes = int(M * data.static_bytes.sum() / DEVICES)
    tight, roomy = mesh(data, 1.1 / DEVICES), mesh(data, 1.0)
    names = [str(i) for i in range(data.n_ops)]
    model = lm.OpGraph(
        {
            "name": names,
            "time": {"*": data.op_seconds},
            "output_bytes": data.tensor_bytes,
            "param_bytes": data.resident,
        },
        {"src": data.src, "dst": data.dst, "bytes": data.tensor_bytes[data.src]},
    )
    assert model.reduced.graph.n_ops == data.n_ops

    weighted = rx.PyDiGraph()
    weighted.add_nodes_from(range(data.n_ops))
    cost = (data.op_seconds[data.src] + data.tensor_seconds[data.src]).tolist()
    rows = list(zip(data.src.tolist(), data.dst.tolist(), cost, strict=True))
    weighted.add_edges_from(rows)
    python = nx.DiGraph()
    python.add_nodes_from(range(data.n_ops))
    python.add_weighted_edges_from(rows)

    return {
        "loadmaster: validated graph from arrays": lambda: build(data),
        "loadmaster: coarsen (levels, order, fusion, contraction)": lambda: coarsen(
            graph, data, max_bytes
        ),
        "rustworkx: weighted longest path": lambda: rx.dag_weighted_longest_path(
            weighted, lambda _s, _t, w: w
        ),
        "rustworkx: topological sort": lambda: rx.topological_sort(weighted),
        "networkx: longest path": lambda: nx.dag_longest_path(python),
        METIS: metis(data),
        "loadmaster: place by celeritas, simulated; one device would do": lambda: lm.place(
            model, roomy, "celeritas"
        ),
        "loadmaster: place by celeritas, simulated; memory forces a split": lambda: lm.place(
            model, tight, "celeritas"
        ),
    }


def report_times(data: Layered, repeat: int) -> None:
    """Prints a table of times and ratios."""
    times: dict[str, float] = {}
    for name, run in contenders(data).items():
        slow = name.startswith(("networkx", "METIS"))
        times[name] = median_cpu_ms(run, max(3, repeat // 5) if slow else repeat)
    ours = next(ms for name, ms in times.items() if "coarsen" in name)
    print(
        f"{data.n_ops} ops, {len(data.src)} edges; median CPU ms, and as a multiple of coarsening"
    )
    for name, ms in times.items():
        print(f"{ms:10.2f}  {ms / ours:7.2f}  {name}")


def report_memory() -> None:
    """Prints peak memory of the whole pipeline above the input arrays, at 1,000,000 ops (Linux)."""
    data = layered(1_000_000)
    max_bytes = int(M * data.static_bytes.sum() / DEVICES)
    # Forget the peak of making the arrays, so that it does not hide the pipeline's.
    Path("/proc/self/clear_refs").write_text("5")
    before = resident_mib("VmRSS")
    began = time.process_time()
    graph = build(data)
    coarse = coarsen(graph, data, max_bytes)
    cluster = mesh(data, 1.1 / DEVICES)
    order = fast.m_topo(graph)
    problem = fast.Problem(graph, cluster._core, data.op_seconds)
    devices = fast.fill_in_order(problem, order)
    schedule = fast.simulate(problem, devices)
    took = time.process_time() - began
    print(
        f"{data.n_ops} ops: graph, coarsening ({coarse.n_ops} groups), placement and simulation "
        f"({schedule.n_transfers} transfers) in {took:.2f} CPU s, "
        f"{resident_mib('VmHWM') - before:.0f} MiB above the input arrays"
    )


def schedulers(data: Layered) -> dict[str, Callable[[], object]]:
    """The engine's list schedulers on 8 equal devices, by name; ranks and orders included. METIS
    tells how fast the machine is just then.
    """
    graph, devices = build(data), 8
    bandwidth = float(data.tensor_bytes.sum() / data.tensor_seconds.sum())
    cluster = lm.Cluster.mesh(devices, memory=1 << 50, bandwidth=bandwidth)._core
    time = data.op_seconds.reshape(-1, 1)

    def problem(contention: bool = True) -> fast.Problem:
        shared = fast.Problem(graph, cluster, time)
        return shared if contention else shared.without_contention()

    def heft(contention: bool) -> object:
        _, rank = fast.levels(fast.Weights(graph, data.op_seconds, data.tensor_seconds))
        order = fast.priority_order(graph, rank)
        return fast.schedule(problem(contention), order)

    def dpos() -> object:
        weights = fast.Weights(graph, data.op_seconds, data.tensor_seconds)
        _, rank = fast.levels(weights)
        order = fast.priority_order(graph, rank)
        pinned = np.full(data.n_ops, -1, dtype=np.int32)
        pinned[fast.critical_path(weights)] = 0
        return fast.schedule(problem(), order, pinned=pinned)

    def etf(contention: bool) -> object:
        _, level = fast.levels(fast.Weights(graph, data.op_seconds))
        ties = fast.priority_order(graph, level)
        return fast.schedule_earliest(problem(contention), ties)

    return {
        "HEFT, contention-free": lambda: heft(False),
        "HEFT": lambda: heft(True),
        "ETF, contention-free": lambda: etf(False),
        "ETF": lambda: etf(True),
        "DPOS": dpos,
        "m-ETF": lambda: fast.schedule_earliest(problem(), fast.m_topo(graph)),
        METIS: metis(data),
    }


def report_schedulers(data: Layered, repeat: int) -> None:
    """Prints CPU times of the list schedulers."""
    print(f"{data.n_ops} ops, {len(data.src)} edges, 8 devices; median CPU ms")
    for name, run in schedulers(data).items():
        print(f"{median_cpu_ms(run, repeat):10.1f}  {name}")


def resident_mib(field: str) -> float:
    """Memory of this process: now ("VmRSS"), or at most so far ("VmHWM")."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(field))


def main() -> None:
    """Parses arguments and prints one report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ops", type=int, default=50_000)
    parser.add_argument("--shuffle", action="store_true")
    parser.add_argument("--repeat", type=int, default=15)
    report = parser.add_mutually_exclusive_group()
    report.add_argument("--memory", action="store_true")
    report.add_argument("--schedule", action="store_true")
    arguments = parser.parse_args()
    if arguments.memory:
        report_memory()
    elif arguments.schedule:
        report_schedulers(layered(arguments.ops, shuffle=arguments.shuffle), arguments.repeat)
    else:
        report_times(layered(arguments.ops, shuffle=arguments.shuffle), arguments.repeat)


if __name__ == "__main__":
    main()
