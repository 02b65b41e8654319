"""Tables of the four seed papers, with ours beside the paper's figures.

    python benches/seed_papers.py [celeritas-2 celeritas-3 ...]        # all tables: two minutes

Graphs are the packaged examples, and the others where they are at hand (``data.py``); a row whose
graph is not there is left out. Ours are PyTorch's ops and the simulator's steps on presets of the
GPUs that the paper names; the papers' are TensorFlow's nodes, and steps on their machines. So what
can be held against each other is the order of methods and what one is of another, in per cent.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator

import numpy as np
from data import of_these_at_hand, traced

import loadmaster as lm
from loadmaster.base.errors import InfeasibleError
from loadmaster.costs import estimate
from loadmaster.judge.problem import Problem
from loadmaster.strategies import Method
from loadmaster.strategies.groups.segments import segmented

Row = tuple[str, ...]

#: The graphs of Celeritas' models, by the names in its tables.
CELERITAS = {
    "Inception_V3": "inception_v3_train_b512",
    "NMT": "nmt_4x2048_train_b512",
    "Transformer": "transformer_12x2048_h16_train_b256",
    "Tensor Holography": "tensorholo_train_b32",
}

#: The graphs of FastT's models whose batch is the paper's.
FASTT = {
    "VGG-19(64)": "vgg19_train_b64",
    "ResNet200(32)": "resnet200_train_b32",
    "LeNet(256)": "lenet_train_b256",
    "AlexNet(256)": "alexnet_train_b256",
    "Bert-large(16)": "bert_large_train_b16_s64",
}

#: The graphs of Moirai's models, of which the paper says that they are of 330M, 1.3B, ...
MOIRAI = {
    "Swin-Transformer 1.8B": "swinv2_1.8b_infer_b1",
    "GPT-3 330M": "gpt3_330m_infer_b1",
    "GPT-3 1.3B": "gpt3_1.3b_infer_b1",
    "GPT-3 13B": "gpt3_13b_infer_b1",
    "AlphaFold2 87M": "evoformer_48_infer",
}

#: The graphs of Pesto's models.
PESTO = {"Transformer-6": "transformer_6x2048_h16_train_b32", "RNNLM-2": "rnnlm_2x2048_train_b128"}


def at_hand(names: dict[str, str]) -> Iterator[tuple[str, lm.OpGraph]]:
    """The graphs that are at hand, by the names of their models."""
    there = of_these_at_hand(names.values())
    for model, name in names.items():
        if name in there:
            yield model, traced(name)


def placed(graph: lm.OpGraph, cluster: lm.Cluster, method: Method) -> tuple[float | None, float]:
    """Seconds of a step, None where no plan fits, and seconds of planning."""
    began = time.perf_counter()
    try:
        step: float | None = lm.place(graph, cluster, method).makespan
    except InfeasibleError:
        step = None
    return step, time.perf_counter() - began


def beside(ours: str, paper: str) -> str:
    """A cell with both."""
    return f"{ours} / {paper}"


def celeritas_2() -> Iterator[Row]:
    """Celeritas' Table 2: nodes and CCR before and after fusion, on four V100 over PCIe."""
    yield "model", "nodes", "CCR", "nodes after merging", "CCR after merging"
    paper = {
        "Inception_V3": (6332, 33.118, 59, 8.137),
        "NMT": (25463, 18.630, 154, 6.372),
        "Transformer": (36352, 111.957, 220, 11.10),
        "Tensor Holography": (3810, 49.147, 37, 7.438),
    }
    cluster = lm.Cluster.preset("4xV100-PCIe")
    for model, graph in at_hand(CELERITAS):
        problem = Problem.make(graph, cluster, estimate(graph, cluster))
        groups = segmented(problem)
        found = problem.graph.n_ops, groups.n_groups
        ccr = [_ccr(problem, some) for some in (problem.graph, groups.contracted)]
        ours = f"{found[0]}", f"{ccr[0]:.3g}", f"{found[1]}", f"{ccr[1]:.3g}"
        theirs = (f"{figure:g}" for figure in paper[model])
        yield model, *(beside(*pair) for pair in zip(ours, theirs, strict=True))


def _ccr(problem: Problem, graph: lm.fast.Graph) -> float:
    """Seconds of all transfers over seconds of all ops, a tensor once per op that reads it."""
    _, _, tensor, sizes, _ = lm.fast.edges(graph)
    latency, per_byte = problem.links.mean_link
    sent = len(tensor) * latency + float(sizes.sum(dtype=np.float64)) * per_byte
    return sent / float(problem.op_time.sum())


def celeritas_3() -> Iterator[Row]:
    """Celeritas' Table 3: seconds of a step on four V100 over PCIe, and its order of methods."""
    methods: tuple[Method, ...] = ("metis", "m-topo", "m-etf", "m-sct", "order-place", "celeritas")
    paper = {
        "Inception_V3": ("OOM", "3.100", "10.548", "7.610", "2.931", "2.859"),
        "NMT": ("OOM", "OOM", "OOM", "OOM", "9.117", "9.099"),
        "Transformer": ("OOM", "OOM", "8.613", "8.411", "6.935", "6.536"),
        "Tensor Holography": ("6.591", "2.220", "6.376", "6.013", "1.520", "1.461"),
    }
    yield "model", *methods
    cluster = lm.Cluster.preset("4xV100-PCIe")
    for model, graph in at_hand(CELERITAS):
        steps = [placed(graph, cluster, method)[0] for method in methods]
        ours = ("OOM" if step is None else f"{step:.3f}" for step in steps)
        yield model, *(beside(*pair) for pair in zip(ours, paper[model], strict=True))


def celeritas_4() -> Iterator[Row]:
    """Celeritas' Table 4: seconds of planning."""
    methods: tuple[Method, ...] = ("m-sct", "order-place", "celeritas")
    paper = {
        "Inception_V3": ("8.591", "5.439", "7.183"),
        "NMT": ("-", "54.695", "59.418"),
        "Transformer": ("129.498", "92.639", "95.304"),
        "Tensor Holography": ("2.968", "2.711", "3.586"),
    }
    yield "model", *methods
    cluster = lm.Cluster.preset("4xV100-PCIe")
    for model, graph in at_hand(CELERITAS):
        seconds = (placed(graph, cluster, method)[1] for method in methods)
        ours = (f"{one:.2f}" for one in seconds)
        yield model, *(beside(*pair) for pair in zip(ours, paper[model], strict=True))


def fastt_1() -> Iterator[Row]:
    """FastT's Table 1, one host: samples a second with a batch shared by V100s with NVLink."""
    paper = {
        "VGG-19(64)": (129.0, 149.5, 199.4, 184.9, 294.9, 126.9, 132.5),
        "ResNet200(32)": (89.3, 114.2, 142.2, 122.1, 132.2, 88.4, 91.1),
        "LeNet(256)": (8827.5, 14222.2, 23272.7, 17006.6, 19692.3, 17066.6, 19692.3),
        "AlexNet(256)": (1630.5, 1868.6, 2752.6, 2000.0, 2534.6, 1695.3, 1729.7),
        "Bert-large(16)": (84.2, 115.9, 132.2, 124.0, 152.3, 101.2, 117.6),
    }
    ways = [f"{n} GPUs, {way}" for n in (2, 4, 8) for way in ("DP", "FastT")]
    yield "model", "1 GPU", *ways
    for model, graph in at_hand(FASTT):
        batch = int(model.partition("(")[2].rstrip(")"))
        ours = [placed(graph, lm.Cluster.preset("1xV100-NVLink"), "single")[0]]
        for n in (2, 4, 8):
            cluster = lm.Cluster.preset(f"{n}xV100-NVLink")
            ours += [placed(graph, cluster, method)[0] for method in ("data-parallel", "os-dpos")]
        speeds = ("OOM" if step is None else f"{batch / step:.4g}" for step in ours)
        theirs = (f"{figure:g}" for figure in paper[model])
        yield model, *(beside(*pair) for pair in zip(speeds, theirs, strict=True))


def fastt_6() -> Iterator[Row]:
    """FastT's Table 6: what splitting ops gains, on two V100; the paper's ops were replicated."""
    paper = {
        "VGG-19(64)": "10.91 %",
        "ResNet200(32)": "10.67 %",
        "LeNet(256)": "0 %",
        "AlexNet(256)": "0 %",
        "Bert-large(16)": "7.62 %",
    }
    yield "model", "step, ops whole (ms)", "step, ops split (ms)", "gain"
    cluster = lm.Cluster.preset("2xV100-NVLink")
    for model, graph in at_hand(FASTT):
        whole, split = (placed(graph, cluster, method)[0] for method in ("dpos", "os-dpos"))
        if whole and split:
            gain = beside(f"{100 * (whole / split - 1):.2f} %", paper[model])
            yield model, f"{1e3 * whole:.2f}", f"{1e3 * split:.2f}", gain


def pesto_1() -> Iterator[Row]:
    """Pesto's Table 1: ops by how long they take, on a V100."""
    paper = {"Transformer-6": (14511, 4119, 763), "RNNLM-2": (3401, 973, 240)}
    yield "model", "< 10 us", "10-100 us", "> 100 us"
    cluster = lm.Cluster.preset("2xV100-NVLink")
    for model, graph in at_hand(PESTO):
        seconds = Problem.make(graph, cluster, estimate(graph, cluster)).op_time
        below = [int((seconds < limit).sum()) for limit in (10e-6, 100e-6, np.inf)]
        ours = map(str, np.diff([0, *below]))
        yield model, *(beside(a, str(b)) for a, b in zip(ours, paper[model], strict=True))


def moirai_4() -> Iterator[Row]:
    """Moirai's Table IV: ops before and after fusing what one kernel runs."""
    paper = {
        "Swin-Transformer 1.8B": (6496, 5204),
        "GPT-3 330M": (4872, 3682),
        "GPT-3 1.3B": (9480, 7308),
        "GPT-3 13B": (19640, 15283),
        "AlphaFold2 87M": (5136, 3618),
    }
    yield "model", "ops", "ops after fusion", "left"
    for model, graph in at_hand(MOIRAI):
        report = lm.coarsen(graph, "rules").report
        before, after = paper[model]
        left = beside(f"{report.groups / report.ops:.0%}", f"{after / before:.0%}")
        counts = beside(str(report.ops), str(before)), beside(str(report.groups), str(after))
        yield model, *counts, left


def moirai_5() -> Iterator[Row]:
    """Moirai's Table V: seconds of planning by m-SCT, on its four unequal GPUs."""
    paper = {
        "Swin-Transformer 1.8B": 17.63,
        "GPT-3 330M": 15.92,
        "GPT-3 1.3B": 39.82,
        "GPT-3 13B": 125.53,
        "AlphaFold2 87M": 20.18,
    }
    yield "model", "m-SCT"
    cluster = lm.Cluster.preset("moirai-inter")
    for model, graph in at_hand(MOIRAI):
        yield model, beside(f"{placed(graph, cluster, 'm-sct')[1]:.2f}", f"{paper[model]:g}")


TABLES: dict[str, Callable[[], Iterator[Row]]] = {
    "celeritas-2": celeritas_2,
    "celeritas-3": celeritas_3,
    "celeritas-4": celeritas_4,
    "fastt-1": fastt_1,
    "fastt-6": fastt_6,
    "pesto-1": pesto_1,
    "moirai-4": moirai_4,
    "moirai-5": moirai_5,
}


def main() -> None:
    """Prints the tables: in each cell ours, then the paper's."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=", ".join(TABLES))
    arguments = parser.parse_args()
    for name in arguments.tables or TABLES:
        rows = TABLES[name]()
        print(f"\n{TABLES[name].__doc__}\n", flush=True)
        head = next(rows)
        print(f"| {' | '.join(head)} |\n|{'---|' * len(head)}", flush=True)
        for row in rows:
            print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
