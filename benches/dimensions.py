"""How much of the time of real graphs is in ops that can be cut into four.

    python benches/dimensions.py [FOLDER]

FOLDER holds graphs, and beside it ``graph_args`` what their ops were called with;
``../shared/data/graphs`` if absent. The time is the roofline of a V100, launches included. An op
can be cut if its pattern has a dimension of four or more parts; parts may differ by one place.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections import defaultdict
from pathlib import Path
from time import process_time

import loadmaster as lm
from loadmaster.dimensions.binding import lengths_of, pattern_of

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
    uncut: dict[str, float] = defaultdict(float)
    rows = []
    for path in sorted(folder.glob("*.json.gz")):
        graph = with_args(path)
        share = lm.costs.estimate(graph, cluster).time[:, 0]
        share = share / share.sum()
        start = process_time()
        patterns = [pattern_of(graph, op) for op in range(graph.n_ops)]
        seconds = process_time() - start
        known = cut = 0.0
        without: dict[str, float] = defaultdict(float)
        for op, found in enumerate(patterns):
            kind = graph.kinds[op]
            if found is None:
                without[kind] += share[op]
                continue
            known += share[op]
            if max(lengths_of(graph, op), default=0) >= PARTS:
                cut += share[op]
            else:
                uncut[kind] = max(uncut[kind], share[op])
        name = path.name.removesuffix(".json.gz")
        rows.append((name, graph.n_ops, known, cut, seconds))
        for kind, part in without.items():
            if part > 0 and part > unknown.get(kind, (0.0, ""))[0]:
                unknown[kind] = part, name
    print(f"| graph | ops | with a rule, % | cut into {PARTS}, % | s |\n|---|---|---|---|---|")
    for name, ops, known, cut, seconds in rows:
        print(f"| {name} | {ops:,} | {100 * known:.2f} | {100 * cut:.2f} | {seconds:.2f} |")
    print("\n| kind without a rule | most of a graph, % | in |\n|---|---|---|")
    for kind, (part, name) in sorted(unknown.items(), key=lambda item: -item[1][0]):
        print(f"| `{kind}` | {100 * part:.3f} | {name} |")


if __name__ == "__main__":
    main()
