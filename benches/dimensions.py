"""How much of the time of real graphs is in ops that can be cut into four, and into how many ways.

    python benches/dimensions.py

The graphs are all traced ones at hand. The time is the roofline of a V100, launches included. An op
can be cut if its form has a cut of four or more parts; parts may differ by one place. Seconds are
CPU time of all dimensions of the graph. Writes ``results/dimensions.md``.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from time import process_time

import numpy as np
from data import traced, traced_names

import loadmaster as lm
from loadmaster.dimensions.dimensions import Dimensions

HERE = Path(__file__).parent
#: Into how many parts.
PARTS = 4
#: The cluster whose devices the time is of.
CLUSTER = "4xV100-PCIe"

PAGE = """# Dimensions

Of the time of each of {n} graphs, at least {least:.1f} % is in ops that can be cut into four parts (target 97 %).

    python benches/dimensions.py

Time is the roofline of a V100, launches included. An op can be cut if its form has a cut of four parts or more; parts may differ
by one place. Seconds are CPU time of all dimensions of a graph.

| graph | ops | forms | most cuts | cut, % | s |
|---|---|---|---|---|---|
{rows}

Kinds of ops that are not cut, if they have 0.05 % of the time of a graph or more:

| without a rule | most of a graph, % | in |
|---|---|---|
{unknown}

| of too small dimensions, such as scalars | most of a graph, % | in |
|---|---|---|
{small}
"""  # noqa: E501


class Most:
    """By kind, the largest share of the time of a graph, and which graph that is."""

    def __init__(self) -> None:
        self.found: dict[str, tuple[float, str]] = {}

    def add(self, name: str, kind: str, share: float) -> None:
        self.found[kind] = max(self.found.get(kind, (0.0, "")), (share, name))

    def table(self) -> str:
        """Rows, the largest first; nothing that has less than 0.05 %."""
        rows = sorted(self.found.items(), key=lambda item: -item[1][0])
        told = [
            f"| `{kind}` | {100 * share:.2f} | {name} |"
            for kind, (share, name) in rows
            if share >= 0.0005
        ]
        return "\n".join(told or ["| none | | |"])


def main() -> None:
    cluster = lm.Cluster.preset(CLUSTER)
    unknown, small = Most(), Most()
    rows, least = [], 100.0
    for name in traced_names():
        graph = traced(name)
        share = lm.costs.estimate(graph, cluster).time[:, 0]
        share = share / share.sum()
        start = process_time()
        found = Dimensions.of(graph)
        seconds = process_time() - start
        most = max(len(form.cuts) for form in found.forms)
        is_cut = [any(cut.size >= PARTS for cut in form.cuts) for form in found.forms]
        cut = np.array([*is_cut, False])[found.form_of]
        percent = 100 * float(share[cut].sum())
        least = min(least, percent)
        figures = f"{len(found.forms)} | {most} | {percent:.2f} | {seconds:.2f}"
        rows.append(f"| {name} | {graph.n_ops:,} | {figures} |")
        print(rows[-1], flush=True)
        whole: dict[str, float] = defaultdict(float)
        for op in np.flatnonzero(~cut & (share > 0)).tolist():
            whole[graph.kinds[op]] += float(share[op])
        for kind, part in whole.items():
            (unknown if kind in found.unknown else small).add(name, kind, part)
    page = PAGE.format(
        n=len(rows), least=least, rows="\n".join(rows), unknown=unknown.table(), small=small.table()
    )
    (HERE / "results" / "dimensions.md").write_text(page)


if __name__ == "__main__":
    main()
