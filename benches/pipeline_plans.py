"""Pipelines of training graphs, by every method that makes them, beside replicas and shards.

    python benches/pipeline_plans.py [--graphs NAME ...] [--clusters '8 PCIe' ...] [--json FILE]

Printed are step times as shares of one device's, all of the judge's: accumulation of gradients is
priced, in bytes and launches. "-": the method found no plan, or the graph has one sample.
``ideal`` is the work over the number of devices. CPU seconds are those of ``pipeline``.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from quality import CLUSTERS, traced

import loadmaster as lm
from loadmaster.base.text import aligned

#: Training graphs of the ledger that have several samples.
GRAPHS = (
    "bert_large_train_b16_s64",
    "gpt3_330m_train_b8",
    "transformer_12x2048_h16_train_b256",
    "swinv2_1.8b_train_b4",
    "resnet200_train_b32",
    "nmt_2x1024_train_b128",
    "inception_v3_train_b512",
    "vgg19_train_b64",
)

#: Methods and their options, by column.
COLUMNS: dict[str, tuple[str, dict[str, Any]]] = {
    "layers": ("layers", {}),
    "layers, 8 micro": ("layers", {"micro_batches": 8}),
    "gpipe": ("gpipe", {}),
    "pipedream": ("pipedream", {}),
    "max-load": ("max-load", {}),
    "piper": ("piper", {}),
    "pipeline": ("pipeline", {}),
    "replicas": ("data-parallel", {}),
    "sharded": ("sharded", {}),
}


def row(name: str, on: str) -> dict[str, Any]:
    """The shares of one device's step that each method takes."""
    graph, cluster = traced(name), CLUSTERS[on]()
    one = float(lm.costs.estimate(graph, cluster).time[:, 0].sum())
    found: dict[str, Any] = {"graph": name, "cluster": on, "ideal": 1 / cluster.n_devices}
    for column, (method, options) in COLUMNS.items():
        begin = time.process_time()
        try:
            plan = lm.place(graph, cluster, method, **options)
        except (lm.InputError, lm.InfeasibleError):
            found[column] = None
            continue
        found[column] = plan.makespan / one
        if column == "pipeline":
            found["CPU s"] = time.process_time() - begin
            found["plan"] = str(plan.parallelism or plan.notes[0])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--graphs", nargs="+", default=GRAPHS)
    parser.add_argument("--clusters", nargs="+", default=["8 PCIe", "8 NVLink"], choices=CLUSTERS)
    parser.add_argument("--json", type=Path, help="also write the rows")
    options = parser.parse_args()
    rows = []
    for name in options.graphs:
        for on in options.clusters:
            rows.append(row(name, on))
            print(json.dumps(rows[-1]), flush=True)
    head = ["graph", "cluster", *COLUMNS, "ideal", "CPU s"]

    def shown(value: Any) -> str:
        return "-" if value is None else value if isinstance(value, str) else f"{value:.3f}"

    print("\n".join(aligned([head, *([shown(one.get(key)) for key in head] for one in rows)])))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
