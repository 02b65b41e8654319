"""Models as stacks of layers, and devices that they lie on."""

from __future__ import annotations

import loadmaster as lm

CPU_AND_GPUS = lm.Cluster(
    [lm.Device("cpu", "EPYC", "1TiB"), *(lm.Device(f"gpu{i}", "V100", "1TiB") for i in range(3))],
    [
        lm.Link(a, b, 1e10)
        for a in ("cpu", "gpu0", "gpu1", "gpu2")
        for b in ("cpu", "gpu0", "gpu1", "gpu2")
        if a != b
    ],
)


def stack(n_layers=4, *, train=False, tied=False, prefix=""):
    """An embedding, layers of two products with a residual, a head: as a traced model has them."""
    rows, edges = [], []

    def op(name, module, *reads, kind="aten.mm", phase="f"):
        rows.append((name, kind, module and prefix + module, phase))
        edges.extend((r, len(rows) - 1) for r in reads)
        return len(rows) - 1

    def stored(name):
        return op(prefix + name, name.rpartition(".")[0], kind="parameter")

    x = op("x", "", kind="input")
    table = stored("emb.weight")
    weights = [
        (stored(f"layers.{i}.a.weight"), stored(f"layers.{i}.b.weight")) for i in range(n_layers)
    ]
    head = table if tied else stored("head.weight")
    y = op("embedding", "emb", x, table)
    inside = []
    for i, (a, b) in enumerate(weights):
        h = op(f"a{i}", f"layers.{i}.a", y, a)
        z = op(f"b{i}", f"layers.{i}.b", h, b)
        y = op(f"add{i}", f"layers.{i}", y, z)
        inside += [h, z, y]
    y = op("logits", "head", y, head)
    if train:
        g = op("grad", "head", y, phase="b")
        for i in reversed(range(n_layers)):
            g = op(f"grad_b{i}", f"layers.{i}.b", g, inside[3 * i], phase="b")
    names, kinds, modules, phases = zip(*rows, strict=True)
    still = ("parameter", "input")
    return lm.OpGraph(
        {
            "name": names,
            "kind": kinds,
            "module": modules,
            "phase": phases,
            "param_bytes": [100 * (k == "parameter") for k in kinds],
            "time": {"*": [0.0 if k in still else 1e-3 for k in kinds]},
        },
        {"src": [a for a, _ in edges], "dst": [b for _, b in edges], "bytes": [100] * len(edges)},
        name="stack",
    )
