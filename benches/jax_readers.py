"""How near the readers of JAX come to XLA: FLOPs, bytes and memory of three training steps.

    python benches/jax_readers.py [FOLDER]

``FOLDER`` holds, per model, the StableHLO, the optimized HLO and ``MODEL.cost.json``:
what ``compiled.cost_analysis()`` and ``compiled.memory_analysis()`` said. XLA counts the body of a
loop once, so this does; its FLOPs and transcendental functions are added, as one of each is one
FLOP here. Memory is the simulated peak of one device, beside arguments, outputs and temporaries.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from pathlib import Path

import numpy as np
from data import DATA

import loadmaster as lm

FOLDER = DATA / "artifacts" / "jax"
FORMS = {
    "StableHLO": ".stablehlo.mlir.gz",
    "optimized HLO": ".optimized_hlo.txt.gz",
}


def once(graph: lm.OpGraph, column: np.ndarray) -> int:
    """The sum of a column with every loop run once."""
    loops = graph.meta["loops"]
    return sum(int(x) // (loops.get(c) or 1) for x, c in zip(column, graph.colocation, strict=True))


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    cluster = lm.Cluster.preset("4xV100-PCIe")
    print("| model | form | ops | CPU s | FLOPs | against XLA | bytes against XLA | memory |")
    print("|---|---|---|---|---|---|---|---|")
    for said_by in sorted(folder.glob("*.cost.json")):
        model = said_by.name.removesuffix(".cost.json")
        said = json.loads(said_by.read_text())
        work = said["cost"]["flops"] + said["cost"]["transcendentals"]
        moved = said["cost"]["bytes accessed"]
        kinds = ("argument", "output", "temp")
        memory = sum(said["memory"][f"{kind}_size_in_bytes"] for kind in kinds)
        for form, ending in FORMS.items():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                start = time.process_time()
                graph = lm.read(folder / (model + ending))
                seconds = time.process_time() - start
            peak = int(lm.place(graph, cluster, "single").memory.peak.max())
            print(
                f"| {model} | {form} | {graph.n_ops} | {seconds:.2f}"
                f" | {graph.flops.sum() / 1e6:.1f} M | {once(graph, graph.flops) / work - 1:+.2%}"
                f" | {once(graph, graph.bytes_accessed) / moved - 1:+.0%}"
                f" | {peak / memory - 1:+.0%} |"
            )


if __name__ == "__main__":
    main()
