"""Pipelined inference: the period of plans for throughput, over the work per device.

    python benches/throughput.py [--graph NAME ...] [--cluster '8 NVLink' ...] [--json]

Every traced model that infers, on 4 and 8 NVLink devices: the ledger's, or H100s where these lack
the memory. Per row: the work per device, which no plan's period is below; then for stages of whole
ops (``split="none"``) and for the best of all the period over it, the time of a batch from its
first op to its last over that of all work on one device, the batches under way, and CPU seconds of
planning, reading not counted.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

from data import traced, traced_names
from quality import CLUSTERS

import loadmaster as lm
from loadmaster.base.errors import InfeasibleError

#: What is planned: the spaces by their option.
SPACES = {"stages": "none", "all": "auto"}

#: The most that a period of stages may be over the work per device, by the first letters of a name.
TARGETS = {
    "gpt3": 1.03,
    "llama3_70b": 1.05,
    "swinv2": 1.03,
    "vit": 1.03,
    "whisper": 1.16,
}


def models() -> list[str]:
    """The traced models that infer."""
    return [name for name in traced_names() if "infer" in name]


def clusters(name: str) -> list[lm.Cluster]:
    """The ledger's devices, then as many H100s."""
    k = int(name.split()[0])
    return [CLUSTERS[name](), lm.Cluster.preset("8xH100-NVLink").subset(range(k))]


def planned(graph: lm.OpGraph, cluster: lm.Cluster, split: str) -> tuple[lm.Plan, float]:
    """A plan, and the CPU seconds that it took."""
    began = time.process_time()
    plan = lm.place(graph, cluster, objective="throughput", split=split)
    return plan, time.process_time() - began


def row(name: str, where: str) -> dict[str, Any]:
    """One model on one cluster."""
    graph = traced(name)
    for cluster in clusters(where):
        found: dict[str, Any] = {"graph": name, "cluster": where, "devices": cluster.types[0].name}
        try:
            for space, split in SPACES.items():
                plan, seconds = planned(graph, cluster, split)
                work = plan.bounds["split ops"]
                found["work_per_device"] = work
                found[space] = {
                    "period": plan.period / work,
                    "latency": plan.latency / (work * cluster.n_devices),
                    "in_flight": plan.in_flight,
                    "limit": plan.limit,
                    "cpu_seconds": seconds,
                }
        except InfeasibleError:
            continue
        return found
    raise InfeasibleError(f"{name} fits neither devices of {where}")


def line(found: dict[str, Any]) -> str:
    """A row as it is printed."""
    target = next((t for name, t in TARGETS.items() if found["graph"].startswith(name)), None)
    texts = [f"{found['graph']:<29}{found['cluster']:<10}{found['devices']:<17}"]
    texts.append(f"{1e3 * found['work_per_device']:>8.2f}")
    for space in SPACES:
        one = found[space]
        texts.append(
            f"{one['period']:>9.3f}{one['latency']:>7.2f}{one['in_flight']:>4}"
            f"{one['cpu_seconds']:>7.1f}"
        )
    texts.append("" if target is None else f"  {target:.2f}")
    return "".join(texts)


def main() -> None:
    """Prints the table, row by row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--graph", nargs="+", default=models())
    parser.add_argument("--cluster", nargs="+", default=["4 NVLink", "8 NVLink"])
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if not arguments.json:
        head = f"{'period':>9}{'lat.':>7}{'n':>4}{'CPU s':>7}"
        print(f"{'':<56}{'work/k':>8}{'stages':>27}{'all':>27}")
        print(f"{'':<56}{'ms':>8}{head}{head}  target")
    rows = []
    for name in arguments.graph:
        for where in arguments.cluster:
            rows.append(row(name, where))
            if not arguments.json:
                print(line(rows[-1]), flush=True)
    if arguments.json:
        print(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
