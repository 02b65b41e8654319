"""What the cost models are worth on measured data: batch sweeps, output bytes, transfers.

    python benches/costs.py [FOLDER]

FOLDER holds ``torch/*.optimes.csv.gz`` (self times of every call of a training step, at six
batches: the fastest and the median of nine steps), ``torch/*_bN.et.json.gz`` and
``torch/*_bN.kineto.json.gz`` (sizes, traces),
``onnx/*.ortprofile.json.gz`` (runs of ONNX Runtime) and ``comm/comm_cpu_2proc.csv``; if absent, it
is that of the large data (``tests/support/folders.py``). Nothing is fitted to what is predicted:
batches 8, 12 and 16 are only looked at to say how far off the prediction is.
"""

from __future__ import annotations

import csv
import gzip
import json
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
from data import LARGE
from numpy.typing import NDArray

import loadmaster as lm
from loadmaster.costs import TransferTimes
from loadmaster.costs.turns import turns
from loadmaster.readers.onnx import profile as ort_profile

Floats = NDArray[np.float64]

MODELS = ("bertmini", "lstm", "resnet18")
LEARN, TARGET = (2, 4, 6), 16
RUNTIME = (1, 2, 4)
#: Batches whose sizes were recorded, and those that are learnt from.
SIZES, KNOWN = (2, 4, 8, 16), (2, 4)


def calls(folder: Path, model: str) -> tuple[list[str], list[int], dict[int, Floats]]:
    """Names and depths of a step's calls, and by batch their fastest and median times, s."""
    with gzip.open(folder / "torch" / f"{model}.optimes.csv.gz", "rt") as file:
        rows = list(csv.DictReader(file))
    n = 1 + max(int(row["op_index"]) for row in rows)
    names, depths = [""] * n, [0] * n
    times = {int(row["batch"]): np.empty((n, 2)) for row in rows}
    for row in rows:
        i = int(row["op_index"])
        names[i], depths[i] = row["name"], int(row["depth"])
        times[int(row["batch"])][i] = float(row["min_us"]) * 1e-6, float(row["median_us"]) * 1e-6
    return names, depths, times


def ops_of(names: list[str], depths: list[int]) -> NDArray[np.int64]:
    """The op of each call: the outermost ``aten`` call that it is part of, or -1."""
    owner = np.full(len(names), -1, dtype=np.int64)
    stack: list[int] = []
    for i, (name, depth) in enumerate(zip(names, depths, strict=True)):
        del stack[depth:]
        if stack and owner[stack[-1]] >= 0:
            owner[i] = owner[stack[-1]]
        elif name.startswith("aten::"):
            owner[i] = i
        stack.append(i)
    return owner


def put_out(folder: Path, model: str, names: list[str], batch: int) -> NDArray[np.uint64]:
    """Bytes that each call puts out, from the execution trace."""
    with gzip.open(folder / "torch" / f"{model}_b{batch}.et.json.gz") as file:
        nodes = sorted(json.load(file)["nodes"], key=lambda node: node["id"])
    known = set(names)
    nodes = [node for node in nodes if node["name"] in known]
    assert [node["name"] for node in nodes] == names

    def size(value: object, kind: str) -> int:
        if kind.startswith("Tensor("):
            return value[3] * value[4]
        if isinstance(value, list) and "[" in kind:
            return sum(map(size, value, kind[kind.index("[") + 1 : -1].split(",")))
        return 0

    return np.array(
        [sum(map(size, n["outputs"]["values"], n["outputs"]["types"])) for n in nodes], np.uint64
    )


def profiles(folder: Path, model: str) -> dict[int, lm.Profile]:
    """A profile per batch, of ops. Of nine steps the fastest and the median are known: three steps
    with that fastest and that median stand for them.
    """
    names, depths, times = calls(folder, model)
    owner = ops_of(names, depths)
    ops = np.flatnonzero(owner == np.arange(len(names)))
    part = owner >= 0
    found = {}
    for batch, both in times.items():
        fastest, median = (
            np.bincount(owner[part], column[part], len(names))[ops] for column in both.T
        )
        found[batch] = lm.Profile(
            tuple(f"{i}:{names[i]}" for i in ops),
            tuple(names[i] for i in ops),
            np.stack([fastest, median, median], axis=1),
            "cpu",
            batch,
            put_out(folder, model, names, batch)[ops] if batch in SIZES else None,
        )
    return found


def errors(predicted: Floats, measured: Floats) -> str:
    """Median and 90th percentile of relative errors, and the error weighted by time."""
    off = np.abs(predicted / measured - 1)
    weighted = np.abs(predicted - measured).sum() / measured.sum()
    return f"{np.median(off):8.1%}{np.quantile(off, 0.9):8.1%}{weighted:10.1%}"


def line(times: list[Floats], batches: tuple[int, ...], target: int) -> Floats:
    """Ordinary least squares per op, as the papers do."""
    slope, floor = np.polyfit(batches, np.stack(times), 1)
    return floor + slope * target


def sweeps(folder: Path) -> None:
    print(f"Batches {LEARN} -> {TARGET}: relative error of op times\n")
    print(f"{'':46}{'median':>8}{'p90':>8}{'weighted':>10}")
    for model in MODELS:
        by_batch = profiles(folder, model)
        target = by_batch[TARGET]
        measured = target.median()
        at = {name: i for i, name in enumerate(target.names)}
        found = lm.costs.sweep(
            # Sizes are learnt at the batches where they were recorded.
            [by_batch[b] if b in KNOWN else replace(by_batch[b], output_bytes=None) for b in LEARN],
            TARGET,
        )
        rows = [at[name] for name in found.names]
        medians = [by_batch[b].median() for b in LEARN]
        print(f"{model}, {len(rows)} ops, {measured.sum():.3f} s")
        print(f"{'  a line per op (ordinary least squares)':46}"
              f"{errors(line(medians, LEARN, TARGET), measured)}")  # fmt: skip
        print(f"{'  lm.costs.sweep':46}{errors(found.seconds, measured[rows])}")
        seen = turns(
            np.concatenate([by_batch[b].fastest() for b in LEARN]), np.concatenate(medians)
        )
        print(f"  turns of {1e3 * seen.run:.2f} ms, waits of {1e3 * seen.wait:.2f} ms")
        middle = by_batch[12].median()
        nearer = lm.costs.sweep([replace(by_batch[b], output_bytes=None) for b in LEARN], 12)
        print(f"{'  lm.costs.sweep, to batch 12':46}"
              f"{errors(nearer.seconds, middle[[at[name] for name in nearer.names]])}")  # fmt: skip
        between = (by_batch[8].median() + by_batch[16].median()) / 2
        print(f"{'  floor: 12 between its neighbours 8 and 16':46}{errors(between, middle)}")
        known = min(
            (ratio * target.fastest() for ratio in np.linspace(1, 4, 301)),
            key=lambda seconds: np.abs(seconds - measured).sum(),
        )
        print(f"{'  floor: the fastest step at 16, all x one ratio':46}{errors(known, measured)}")
        off = np.abs(np.log(found.seconds / measured[rows])) / found.deviation
        print(f"  within one deviation {np.mean(off < 1):.0%}, within two {np.mean(off < 2):.0%}")
        need = np.min([by_batch[b].fastest() / b for b in LEARN], axis=0) * TARGET
        long = (measured > 5e-3) & (need > measured / 10)
        print(
            f"  {long.sum()} ops of more than 5 ms: {measured[long].sum() / measured.sum():.0%} of "
            f"the time, {np.median(measured[long] / need[long]):.1f} times what their fastest "
            "steps come to"
        )
        bytes_ = target.output_bytes
        assert bytes_ is not None
        assert found.output_bytes is not None
        exact = np.mean(found.output_bytes == bytes_[rows])
        print(f"  output bytes from batches {KNOWN}: exact for {exact:.1%} of ops\n")


def graphs(folder: Path) -> None:
    """A graph at batch 4 and traces of 2, 4 and 8, against the graph that was traced at 16."""
    print(f"Graphs at batch {TARGET} from traces of 2, 4 and 8: sizes that are exactly right\n")
    for model in MODELS:
        trace = str(folder / "torch" / f"{model}_b%d.%s.json.gz")
        profiles = [p for b in (2, 4, 8) for p in lm.read_profiles(trace % (b, "kineto"), batch=b)]
        large = lm.costs.sweep(profiles, TARGET).graph(lm.read(trace % (4, "et")))
        traced = lm.read(trace % (TARGET, "et"))
        cells = []
        for sizes in (_by_op, _by_edge):
            made, true = sizes(large), sizes(traced)
            both = made.keys() & true.keys()
            cells.append(f"{sum(made[k] == true[k] for k in both)} of {len(both)}")
        print(f"{model:10} outputs of ops {cells[0]}, tensors on edges {cells[1]}")
    print()


def _by_op(graph: lm.OpGraph) -> dict[str, int]:
    return dict(zip(graph.names, graph.output_bytes.tolist(), strict=True))


def _by_edge(graph: lm.OpGraph) -> dict[tuple[str, str], int]:
    ends = zip(graph.src.tolist(), graph.dst.tolist(), graph.bytes.tolist(), strict=True)
    return {(graph.names[s], graph.names[d]): size for s, d, size in ends}


def runtime(folder: Path) -> None:
    """ONNX Runtime's profiles have single runs: odd ones are held against even ones."""
    print(f"ONNX Runtime, batches {RUNTIME} -> {TARGET}, four runs each, whole microseconds\n")
    print(f"{'':46}{'median':>8}{'p90':>8}{'weighted':>10}")
    for model in ("bertmini_d64", "lstm_d64", "resnet18_w8", "resnet18_w8_noopt"):
        by_batch = {
            b: ort_profile.profile(folder / "onnx" / f"{model}_b{b}.ortprofile.json.gz", batch=b)
            for b in (*RUNTIME, TARGET)
        }
        found = lm.costs.sweep([by_batch[b] for b in RUNTIME], TARGET)
        times = {b: dict(zip(p.names, p.median(), strict=True)) for b, p in by_batch.items()}
        rows = [i for i, name in enumerate(found.names) if times[TARGET].get(name, 0) > 0]
        names = [found.names[i] for i in rows]
        measured = np.array([times[TARGET][name] for name in names])
        medians = [np.array([times[b][name] for name in names]) for b in RUNTIME]
        at = {name: i for i, name in enumerate(by_batch[TARGET].names)}
        runs = by_batch[TARGET].seconds[[at[name] for name in names]]
        odd, even = (np.nanmedian(runs[:, part::2], axis=1) for part in (0, 1))
        print(f"{model}, {len(names)} ops, {measured.sum() * 1e3:.1f} ms")
        print(f"{'  a line per op (ordinary least squares)':46}"
              f"{errors(line(medians, RUNTIME, TARGET), measured)}")  # fmt: skip
        print(f"{'  lm.costs.sweep':46}{errors(found.seconds[rows], measured)}")
        print(f"{'  floor: odd against even runs':46}{errors(odd, even)}\n")


def transfers(folder: Path) -> None:
    times = TransferTimes.read(folder / "comm" / "comm_cpu_2proc.csv")
    print("Transfers: mean relative error per decade of bytes, of the median time per size\n")
    print(lm.costs.fit_links(times))
    print("\nThe same with every other repeat held out: fitted to even ones, held against odd ones")
    repeat = np.zeros(len(times.seconds), dtype=int)
    for link in range(len(times.links)):
        for size in np.unique(times.bytes):
            rows = np.flatnonzero((times.link == link) & (times.bytes == size))
            repeat[rows] = np.arange(len(rows))
    halves = [
        TransferTimes(times.links, times.link[part], times.bytes[part], times.seconds[part])
        for part in (repeat % 2 == 0, repeat % 2 == 1)
    ]
    fits, others = (lm.costs.fit_links(half).fits for half in halves)
    for fit, other in zip(fits, others, strict=True):
        cells = "".join(f"{e:9.1%}" for e in other.errors(fit.curve(other.sizes)).values())
        floor = "".join(f"{e:9.1%}" for e in other.errors(fit.seconds).values())
        print(f"{fit.title:22} curve {cells}\n{'':22} floor {floor}")
    print("\nLatency against the 1 KB transfer, and what ordinary least squares says")
    for fit in lm.costs.fit_links(times).fits:
        floor = np.polyfit(fit.sizes, fit.seconds, 1)[1]
        print(
            f"{fit.title:22} {fit.latency * 1e6:8.2f} us of {fit.seconds[0] * 1e6:6.2f} us "
            f"({fit.latency / fit.seconds[0]:.2f} x); least squares {floor * 1e6:8.1f} us"
        )


if __name__ == "__main__":
    here = Path(sys.argv[1]) if len(sys.argv) > 1 else LARGE / "artifacts"
    warnings.simplefilter("ignore")  # What readers leave out.
    sweeps(here)
    graphs(here)
    runtime(here)
    transfers(here)
