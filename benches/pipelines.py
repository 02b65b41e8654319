"""Plans stages of pipelines for inputs of published planners.

    python benches/pipelines.py FILE... [--json]
    python benches/pipelines.py FILE... --devices 8 32 --memory 8GiB [--bandwidth 25GiB]
    python benches/pipelines.py --layered NODES WIDTH

A FILE is an input of the max-load problem (Tarnawski et al., NeurIPS 2020) or of Piper (the same,
NeurIPS 2021), plain or gzipped. Printed are the objective: the largest load of any device, or
Piper's time per sample; the work per accelerator, in the file's unit of time; CPU seconds of
planning without reading; and the number of downsets, none where they were too many, so that nothing
is proved.

Piper is planned for each number of devices with each memory, where these are given, else as the
files say. The authors' program replaces the bandwidth of their files by 25 GiB/s, and so does this
unless told otherwise.

``--layered`` draws a graph: layers of WIDTH nodes, each of which reads one or two of the layer
before, on eight accelerators. No split has a smaller largest load than the work per accelerator.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from loadmaster.base.files import parse_json, read_bytes
from loadmaster.base.text import aligned
from loadmaster.base.units import format_bytes, parse_bytes
from loadmaster.readers.planners.max_load import MaxLoad
from loadmaster.readers.planners.piper import BANDWIDTH, Piper, is_piper
from loadmaster.strategies.pipelines.max_load import split
from loadmaster.strategies.pipelines.piper import stages

#: Accelerators of a drawn graph.
DEVICES = 8


def layered(n: int, width: int, seed: int = 0) -> MaxLoad:
    """A drawn graph: work of 0.1 to 2 per node, transfers of 0.3 on average."""
    rng = np.random.default_rng(seed)
    work = rng.uniform(0.1, 2.0, n)
    layer = np.arange(width, n) // width
    read = (layer[:, None] - 1) * width + rng.integers(0, width, (n - width, 2))
    return MaxLoad(
        ids=tuple(range(n)),
        times=np.stack([work, 10 * work], axis=1),
        bytes=np.ones(n, dtype=np.int64),
        backward=np.zeros(n, dtype=bool),
        colour=np.arange(n),
        src=read.ravel(),
        dst=np.repeat(np.arange(width, n), 2),
        cost=rng.exponential(0.3, n),
        accelerators=DEVICES,
        cpus=0,
        memory=n,
    )


def planned(name: str, problem: MaxLoad) -> dict[str, Any]:
    """What came of a problem, and what it took."""
    start = time.process_time()
    found = split(problem)
    seconds = time.process_time() - start
    return {
        "file": name,
        "objective": found.period,
        "seconds": seconds,
        "optimal": found.is_optimal,
        "downsets": found.downsets,
        "stages": len(found.loads),
        "work": float(problem.times[:, 0].sum()) / max(problem.accelerators, 1),
    }


def piped(name: str, problem: Piper) -> dict[str, Any]:
    """What came of an input of Piper, and what it took."""
    start = time.process_time()
    found = stages(problem)
    seconds = time.process_time() - start
    quickest = np.full(len(problem.ids), np.inf)
    single = problem.degree == 1
    np.minimum.at(quickest, problem.layer[single], problem.numbers[single, 0])
    return {
        "file": name,
        "objective": found.period,
        "seconds": seconds,
        "downsets": found.downsets,
        "stages": len(found.seconds),
        "devices": problem.devices,
        "memory": problem.memory,
        "used": int((found.tensor * found.replicas).sum()),
        "work": float(quickest[np.isfinite(quickest)].sum()) / problem.devices,
    }


def on(row: dict[str, Any]) -> str:
    """The devices of a row, where they were given."""
    if "memory" not in row:
        return ""
    return f", {row['devices']} x {format_bytes(round(row['memory']))}"


def rows_of(file: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """The rows of a file."""
    document, name = parse_json(read_bytes(file), file), Path(file).name
    if not is_piper(document):
        return [planned(name, MaxLoad.from_document(document))]
    problem = replace(Piper.from_document(document), bandwidth=float(options.bandwidth))
    return [
        piped(name, replace(problem, devices=devices, memory=float(memory)))
        for memory in options.memory or [problem.memory]
        for devices in options.devices or [problem.devices]
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("files", nargs="*", metavar="FILE", help="inputs of the max-load problem")
    parser.add_argument("--json", action="store_true", help="print a list of objects")
    parser.add_argument("--layered", nargs=2, type=int, metavar=("NODES", "WIDTH"))
    parser.add_argument("--devices", nargs="+", type=int, metavar="N", help="of Piper's inputs")
    parser.add_argument(
        "--memory", nargs="+", type=parse_bytes, metavar="BYTES", help="per device, such as 8GiB"
    )
    parser.add_argument("--bandwidth", type=parse_bytes, default=BANDWIDTH, metavar="BYTES")
    options = parser.parse_args()
    rows = [row for file in options.files for row in rows_of(file, options)]
    if options.layered:
        n, width = options.layered
        rows.append(planned(f"layered {n} x {width}", layered(n, width)))
    if options.json:
        print(json.dumps(rows, indent=1))
        return
    table = [("input", "objective", "work / k", "CPU s", "downsets")]
    table += [
        (
            row["file"] + on(row),
            f"{row['objective']:.6g}",
            f"{row['work']:.6g}",
            f"{row['seconds']:.3f}",
            "none" if row["downsets"] is None else f"{row['downsets']:,}",
        )
        for row in rows
    ]
    print("\n".join(aligned(table)))


if __name__ == "__main__":
    main()
