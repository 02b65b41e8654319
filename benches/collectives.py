"""Fits and checks the measured times of collectives that come with the package.

    python benches/collectives.py fit      # writes loadmaster/model/clusters/collectives.json
    python benches/collectives.py check    # errors on sizes and numbers of devices held out

Needs ``kernels/collectives.parquet`` of the large data, and pandas with pyarrow. Times are of
nccl-tests inside one host, and of the all-reduce of a serving system, replayed in a CUDA graph. Of
each size the times of both dtypes are averaged. Noise is taken out: no size takes less than a
smaller one. Points stay that lines between them need to be within 2 % of what was measured.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
from data import LARGE

import loadmaster as lm
from loadmaster.model.clusters import measured_collectives
from loadmaster.model.clusters.links import CollectiveTimes
from loadmaster.model.machine.types import known_types

TABLE = Path(measured_collectives.__file__).with_name("collectives.json")

#: Kinds by their names in the data.
KINDS = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
}

#: What ran the collectives, by its name in the data.
WAYS = {"nccl": "nccl", "custom graph": "serving"}

#: Types whose hosts are joined as those that were measured, by the measured one.
ALIKE = {"A100-SXM4-80GB": ("A100-SXM4-40GB",)}

SOURCE = (
    "measured by NVIDIA's aiconfigurator (github.com/ai-dynamo/aiconfigurator, commit 095f58a5, "
    "Apache-2.0): nccl-tests, and the all-reduce of vLLM in a CUDA graph"
)

#: How far lines between the points that stay are from those that are left out, at most.
CLOSE = 0.02

Curve = tuple[np.ndarray, np.ndarray]
Curves = dict[tuple[str, str, str, int], Curve]


def curves() -> Curves:
    """Bytes and seconds by device type, way, kind and number of devices.

    Bytes are as :class:`loadmaster.CollectiveTimes` has them.
    """
    rows = pd.read_parquet(LARGE / "kernels" / "collectives.parquet")
    rows = rows[rows.how.isin(list(WAYS)) & rows.op.isin(list(KINDS))]
    each = np.where(rows.dtype == "int8", 1, 2)
    together = np.where(rows.op == "alltoall", rows.devices, 1)
    rows = rows.assign(bytes=rows.elements_or_bytes * each * together)
    groups = rows.groupby(["device", "how", "op", "devices"], observed=True)
    with_nccl = set(known_types()) & set(rows.device[rows.how == "nccl"])
    answer = {}
    for (device, how, op, devices), group in groups:
        if device in with_nccl:
            logs = np.log(group.seconds.astype(float)).groupby(group.bytes).mean()
            sizes = logs.index.to_numpy()
            answer[device, WAYS[how], KINDS[op], int(devices)] = sizes, np.exp(rising(logs.values))
    return answer


def rising(values: np.ndarray) -> np.ndarray:
    """The rising sequence with the least squared distance (pool adjacent violators). O(n^2)."""
    blocks: list[list[float]] = []
    for value in values.tolist():
        blocks.append([value])
        while len(blocks) > 1 and np.mean(blocks[-2]) > np.mean(blocks[-1]):
            last = blocks.pop()
            blocks[-1] += last
    return np.concatenate([np.full(len(block), np.mean(block)) for block in blocks])


def thinned(curve: Curve) -> Curve:
    """The points that lines need: both ends, and those that are furthest off, one after another.

    The last two stay, since times go on as between them.
    """
    sizes, seconds = curve
    kept = [0, *range(max(len(sizes) - 2, 1), len(sizes))]
    while True:
        lines = np.interp(sizes, sizes[kept], seconds[kept])
        off = np.abs(lines / seconds - 1)
        if off.max() <= CLOSE:
            return sizes[kept], seconds[kept]
        kept = sorted([*kept, int(off.argmax())])


def times(device: str, way: str, all_of: Curves) -> Iterator[CollectiveTimes]:
    """The curves of a device type as a cluster takes them."""
    for (of_device, of_way, kind, devices), curve in all_of.items():
        if (of_device, of_way) == (device, way):
            sizes, seconds = (values.tolist() for values in curve)
            yield CollectiveTimes(kind, devices, 1, tuple(sizes), tuple(seconds))


def fit() -> None:
    """Writes the table of the package: a line for each curve."""
    lines = []
    all_of = curves()
    for device in sorted({key[0] for key in all_of}):
        rows = []
        for (of_device, way, kind, devices), curve in all_of.items():
            if of_device == device:
                sizes, seconds = thinned(curve)
                micros = [float(f"{1e6 * s:.4g}") for s in seconds.tolist()]
                rows.append(f"   {json.dumps([way, kind, devices, sizes.tolist(), micros])}")
        own = lm.Cluster.new(f"2x{device}").route(0, 1).bandwidth
        head = {"types": [device, *ALIKE.get(device, ())], "bandwidth": own}
        lines.append(f'  {json.dumps(head)[:-1]}, "times": [\n' + ",\n".join(rows) + "]}")
    text = f'{{"source": {json.dumps(SOURCE)},\n "hosts": [\n' + ",\n".join(lines) + "]}\n"
    TABLE.write_text(text)
    print(f"{TABLE.name}: {len(text) / 1e3:.0f} kB, {sum(t.count('[') for t in lines)} lists")


def check() -> None:
    """Prints errors in the median: of the links' figures, and of curves fitted to a part."""
    all_of = curves()
    print("type, links alone, every second size held out, 4 devices held out, NCCL and serving")
    for device in sorted({key[0] for key in all_of}):
        most = max(key[3] for key in all_of if key[0] == device)
        links = lm.Cluster.new(f"{most}x{device}").with_collectives([])
        off: dict[str, list[float]] = {"links": [], "sizes": [], "devices": []}
        for way in sorted(set(WAYS.values())):
            own = {key: curve for key, curve in all_of.items() if key[:2] == (device, way)}
            halves = {key: (b[::2], s[::2]) for key, (b, s) in own.items()}
            fewer = {key: curve for key, curve in own.items() if key[3] != 4}
            of_sizes = links.with_collectives(times(device, way, halves))
            of_devices = links.with_collectives(times(device, way, fewer))
            for (*_, kind, devices), (sizes, seconds) in own.items():
                for i in range(1, len(sizes) - 1):
                    clusters = {"links": links} if i % 2 else {}
                    clusters |= {"sizes": of_sizes} if i % 2 else {}
                    clusters |= {"devices": of_devices} if devices == 4 < most else {}
                    for name, cluster in clusters.items():
                        way_of = cluster.collective(kind, range(devices), int(sizes[i]))
                        off[name].append(abs(way_of.seconds / seconds[i] - 1))
        cells = [f"{np.median(v):.1%} ({len(v)})" if v else "-" for v in off.values()]
        print(f"{device}: {', '.join(cells)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("task", choices=("fit", "check"))
    {"fit": fit, "check": check}[parser.parse_args().task]()
