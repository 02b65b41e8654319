"""How much of the time of real graphs is in ops that can be cut into four, and into how many ways.

    python benches/dimensions.py [FOLDER]

FOLDER holds graphs, and beside it ``graph_args`` what their ops were called with;
``../shared/data/graphs`` if absent. The time is the roofline of a V100, launches included. An op
can be cut if its form has a cut of four or more parts; parts may differ by one place. Seconds are
CPU time of all dimensions of the graph.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections import defaultdict
from pathlib import Path
from time import process_time

import numpy as np

import loadmaster as lm
from loadmaster.dimensions.dimensions import Dimensions

#: Into how many parts.
PARTS = 4
#: The cluster whose devices the time is of.
CLUSTER = "4xV100-PCIe"


def with_args(path: Path) -> lm.OpGraph:
    """A graph with the arguments of its calls."""
    graph = lm.read(path)
    file = path.parent.parent / "graph_args" / path.name
    with gzip.open(file, "rt") as stream:
        return graph.with_columns({"args": json.load(stream)["args"]})


def main() -> None:
    default = Path(__file__).parents[1].parent / "shared" / "data" / "graphs"
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else default
    cluster = lm.Cluster.preset(CLUSTER)
    unknown: dict[str, tuple[float, str]] = {}
    uncut: dict[str, tuple[float, str]] = {}
    print(
        f"| graph | ops | forms | most cuts | cut into {PARTS}, % | s |\n|---|---|---|---|---|---|"
    )
    for path in sorted(folder.glob("*.json.gz")):
        graph = with_args(path)
        share = lm.costs.estimate(graph, cluster).time[:, 0]
        share = share / share.sum()
        start = process_time()
        found = Dimensions.of(graph)
        seconds = process_time() - start
        most = max(len(form.cuts) for form in found.forms)
        is_cut = [any(cut.size >= PARTS for cut in form.cuts) for form in found.forms]
        cut = np.array([*is_cut, False])[found.form_of]
        name = path.name.removesuffix(".json.gz")
        print(
            f"| {name} | {graph.n_ops:,} | {len(found.forms)} | {most} "
            f"| {100 * share[cut].sum():.2f} | {seconds:.2f} |"
        )
        whole: dict[str, float] = defaultdict(float)
        for op in np.flatnonzero(~cut & (share > 0)).tolist():
            whole[graph.kinds[op]] += share[op]
        for kind, part in whole.items():
            table = unknown if kind in found.unknown else uncut
            table[kind] = max(table.get(kind, (0.0, "")), (part, name))
    for title, table in ("without a rule", unknown), ("with too small dimensions", uncut):
        print(f"\n| kind {title} | most of a graph, % | in |\n|---|---|---|")
        for kind, (part, name) in sorted(table.items(), key=lambda item: -item[1][0]):
            print(f"| `{kind}` | {100 * part:.3f} | {name} |")


if __name__ == "__main__":
    main()
