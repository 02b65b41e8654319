"""Measures coarseners: cut, time and memory, parallelism kept, CCR.

    python benches/coarsening.py cut            # layered graph of 50,000 ops; METIS if installed
    python benches/coarsening.py large          # 1,000,000 ops to 1,000 groups: time and memory
    python benches/coarsening.py parallelism    # eight traced graphs, 300 groups
    python benches/coarsening.py ccr            # Celeritas' Table 2 next to ours

One thread, CPU time. All but ``cut`` and ``large`` read traced graphs.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
from data import of_these_at_hand
from layered import Layered, layered
from numpy.typing import NDArray
from quality import DESIGN, design_problem

import loadmaster as lm
from loadmaster import fast
from loadmaster.judge.coarsening import coarsen_problem
from loadmaster.judge.problem import Problem, parallelism
from loadmaster.strategies.groups.segments import segmented

#: Celeritas' Table 2: ops before and after, CCR before and after.
TABLE_2 = {
    "inception_v3_train_b512": (6332, 59, 33.1, 8.1),
    "nmt_4x2048_train_b512": (25463, 154, 18.6, 6.4),
    "transformer_12x2048_h16_train_b256": (36352, 220, 112.0, 11.1),
    "tensorholo_train_b32": (3810, 37, 49.1, 7.4),
}

MERGERS = {
    "batch": fast.batch_merge,
    "parallel": fast.parallel_merge,
    "multilevel": fast.multilevel_partition,
}


def build(data: Layered) -> fast.Graph:
    """The validated graph."""
    return fast.Graph(
        data.n_ops, data.src, data.dst, tensor_bytes=data.tensor_bytes, resident=data.resident
    )


def cut_shares(data: Layered, group: NDArray[np.int32]) -> tuple[float, float]:
    """Cut as a share of edge weight: per edge, and once per group that reads a tensor."""
    crosses = group[data.src] != group[data.dst]
    total = data.tensor_seconds[data.src].sum()
    pairs = np.unique(data.src[crosses] * data.n_ops + group[data.dst[crosses]])
    per_edge = data.tensor_seconds[data.src[crosses]].sum()
    return per_edge / total, data.tensor_seconds[pairs // data.n_ops].sum() / total


def report_cut(seed: int, repeat: int) -> None:
    """Prints time, cut and balance on the layered graph."""
    data = layered(50_000, seed=seed)
    graph = build(data)

    def show(label: str, group: NDArray[np.int32], ms: float, note: str = "") -> None:
        per_edge, once = cut_shares(data, group)
        seconds = np.bincount(group, weights=data.op_seconds)
        if not note:
            note = f"parallelism {parallelism(fast.contract(graph, group), seconds):.2f}"
        print(
            f"{label:<34} {ms:8.1f} ms {len(seconds):5} groups  cut {per_edge:6.2%} per edge, "
            f"{once:6.2%} once per group  largest {seconds.max() / seconds.mean():6.2f} x  {note}"
        )

    orders = {
        "m-topo": fast.m_topo(graph),
        "dfs": fast.dfs_topo(graph),
        "cpd": fast.cpd_topo(fast.Weights(graph, data.op_seconds, data.tensor_seconds)),
    }
    for groups, balance in ((250, None), (250, 1.35), (16, 1.1)):
        most = balance and balance * float(data.op_seconds.sum()) / groups
        limit = "no limit" if balance is None else f"{balance} x mean"
        for name, order in orders.items():
            ms, (cuts, _) = timed(
                lambda order=order, groups=groups, most=most: fast.exact_breakpoints(
                    fast.Weights(graph, data.op_seconds, data.tensor_seconds),
                    order,
                    groups,
                    max_time=most,
                ),
                repeat,
            )
            show(f"sequential {name}, {limit}", fast.segments(order, cuts), ms)
        for name, merge in MERGERS.items():
            if name == "multilevel" and most is None:
                continue
            ms, (group, _) = timed(
                lambda merge=merge, groups=groups, most=most: merge(
                    fast.Weights(graph, data.op_seconds, data.tensor_seconds), groups, max_time=most
                ),
                repeat if name == "batch" else 1,
            )
            show(f"{name}, {limit}", group, ms)
        metis(data, groups, show)


def metis(data: Layered, groups: int, show: Any) -> None:
    """The same by METIS, if pymetis is installed: undirected, so its quotient has cycles."""
    try:
        import pymetis
    except ImportError:
        return
    ends = np.concatenate([data.src, data.dst]), np.concatenate([data.dst, data.src])
    by_end = np.argsort(ends[0], kind="stable")
    starts = np.concatenate([[0], np.cumsum(np.bincount(ends[0], minlength=data.n_ops))])
    us = np.rint(data.tensor_seconds * 1e6).astype(np.int64)
    ms, (_, parts) = timed(
        lambda: pymetis.part_graph(
            groups,
            pymetis.CSRAdjacency(starts.tolist(), ends[1][by_end].tolist()),
            eweights=np.concatenate([us[data.src]] * 2)[by_end].tolist(),
            vweights=np.rint(data.op_seconds * 1e6).astype(np.int64).tolist(),
        ),
        1,
    )
    group = np.unique(np.array(parts), return_inverse=True)[1].astype(np.int32)
    try:
        fast.contract(build(data), group)
        note = ""
    except lm.InputError:
        note = "(cyclic)"
    show("METIS", group, ms, note)


def resident_mib(field: str) -> float:
    """Memory of this process: now ("VmRSS"), or at most so far ("VmHWM")."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(field))


def timed(run: Any, repeat: int) -> tuple[float, Any]:
    """Median CPU milliseconds, and a result."""
    spent, result = [], None
    for _ in range(repeat):
        began = time.process_time()
        result = run()
        spent.append(time.process_time() - began)
    return float(np.median(spent)) * 1e3, result


def report_large() -> None:
    """Prints time and memory of 1,000,000 ops to 1,000 groups."""
    data = layered(1_000_000)
    graph = build(data)
    for name, merge in MERGERS.items():
        most = 1.35 * float(data.op_seconds.sum()) / 1000 if name == "multilevel" else None
        Path("/proc/self/clear_refs").write_text("5")
        before = resident_mib("VmRSS")
        ms, (group, _) = timed(
            lambda merge=merge, most=most: merge(
                fast.Weights(graph, data.op_seconds, data.tensor_seconds), 1000, max_time=most
            ),
            1,
        )
        peak = resident_mib("VmHWM") - before
        print(f"{name:<12} {ms / 1e3:6.2f} s {peak:6.0f} MiB  {group.max() + 1} groups")


def report_parallelism() -> None:
    """Prints the share of parallelism (work / critical path) that is left at 300 groups."""
    kept: dict[str, list[float]] = {name: [] for name in MERGERS}
    for graph in of_these_at_hand(DESIGN):
        problem = design_problem(graph, "4 equal")
        before = parallelism(problem.graph, problem.op_time)
        row = []
        for name in MERGERS:
            report = coarsen_problem(problem, name, 300).report  # type: ignore[arg-type]
            kept[name].append(report.parallelism / before)
            row.append(f"{name} {report.parallelism:.2f} ({kept[name][-1]:.2f})")
        print(f"{graph:<36} {problem.graph.n_ops:5} ops, {before:.2f}:", ", ".join(row))
    for name, shares in kept.items():
        print(f"{name:<12} geometric mean {geometric(shares):.3f}, least {min(shares):.2f}")


def report_ccr() -> None:
    """Prints Celeritas' Table 2 and ours at R = 200, M = 0.25."""
    for name, (ops, groups, before, after) in TABLE_2.items():
        problem = design_problem(name, "4 equal")
        coarse = segmented(problem).contracted
        own = ccr(problem, problem.graph), ccr(problem, coarse)
        print(
            f"{name:<36} paper {ops} -> {groups}, {before} -> {after}; ours "
            f"{problem.model.n_ops} ({problem.graph.n_ops} reduced) -> {coarse.n_ops} "
            f"({problem.graph.n_ops / coarse.n_ops:.0f} x), {own[0]:.3g} -> {own[1]:.3g} "
            f"({own[0] / max(own[1], 1e-12):.1f} x)"
        )


def ccr(problem: Problem, graph: fast.Graph) -> float:
    """Transfer time / op time, a tensor once per op that reads it (Celeritas eq. (1))."""
    _, _, tensors, sizes = graph.flows()
    latency, per_byte = problem.links.mean_link
    sent = float(tensors.sum()) * latency + float(sizes.sum()) * per_byte
    return sent / float(problem.op_time.sum())


def geometric(values: list[float]) -> float:
    """Geometric mean."""
    return float(np.exp(np.mean(np.log(values))))


def main() -> None:
    """Parses arguments and prints one report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("report", choices=["cut", "large", "parallelism", "ccr"])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--repeat", type=int, default=7)
    arguments = parser.parse_args()
    if arguments.report == "cut":
        report_cut(arguments.seed, arguments.repeat)
    elif arguments.report == "large":
        report_large()
    elif arguments.report == "parallelism":
        report_parallelism()
    else:
        report_ccr()


if __name__ == "__main__":
    main()
