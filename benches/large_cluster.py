"""A cluster of a thousand devices: seconds to read it, then to place a model on it, and the memory.

    python benches/large_cluster.py [--devices 1000] [--graph example:inception-v3] [--method heft]

All devices are joined by links written as a pattern. Each row is a process of its own, so that its
peak of memory is its own: that of the whole process, interpreter and graph too. Seconds are of the
wall clock: the least of five of reading, and one plan.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time

import loadmaster as lm

#: What a transfer holds: the name of the row, and the line of TOML.
CHANNELS = {
    "a channel per pair": "",
    "two ports per device": 'channels = ["{from}.tx", "{to}.rx"]',
    "one bus": 'channels = ["bus"]',
}


def toml(devices: int, channels: str) -> str:
    """A mesh of V100s."""
    return f"""
[[type]]
name = "V100"
peak = {{ f32 = 14e12 }}
memory_bandwidth = 900e9
launch = 5e-6

[[device]]
name = "gpu{{0..{devices - 1}}}"
type = "V100"
memory = "32GiB"

[[link]]
from = "*"
to = "*"
bandwidth = 12e9
latency = 10e-6
{channels}
"""


def row(kind: str, arguments: argparse.Namespace) -> str:
    """One row of the table."""
    text = toml(arguments.devices, CHANNELS[kind])
    reading = []
    for _ in range(5):
        began = time.perf_counter()
        cluster = lm.Cluster.from_toml(text)
        reading.append(time.perf_counter() - began)
    graph = lm.read(arguments.graph)
    began = time.perf_counter()
    lm.place(graph, cluster, arguments.method)
    placing = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    figures = f"{min(reading):.3f} | {placing:.2f} | {peak:.0f} MiB"
    return f"| {kind} | {cluster.n_channels} | {figures} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--devices", type=int, default=1000)
    parser.add_argument("--graph", default="example:inception-v3")
    parser.add_argument("--method", default="heft")
    parser.add_argument("--kind", choices=CHANNELS, help="only this row, in this process")
    arguments = parser.parse_args()
    if arguments.kind:
        print(row(arguments.kind, arguments))
        return
    print(f"{arguments.graph} on {arguments.devices} devices, {arguments.method}\n")
    print("| links | channels | read (s) | place (s) | peak |\n|---|---|---|---|---|", flush=True)
    for kind in CHANNELS:
        subprocess.run([sys.executable, *sys.argv, "--kind", kind], check=True)


if __name__ == "__main__":
    main()
