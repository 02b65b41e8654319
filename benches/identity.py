"""Comparison of the plans of two builds of Loadmaster: by step, memory, recipe and placement.

    python benches/identity.py graphs    # once; needs PyTorch and ONNX
    python benches/identity.py run -o old.csv [--quick] [--jobs 1] [--only TEXT ...]
                                   [--methods NAME ...]
    python benches/identity.py exact -o old-exact.csv [--only TEXT ...]
    python benches/identity.py compare old.csv new.csv [--allow os-dpos=0.01 ...]

``run`` places every graph on every cluster by every method that counts its work, with the package
that is installed, and appends a row for each plan. Rows that the file has already are not made
again, so that a run that was broken off goes on where it was. Small graphs come first. Each graph
is a process of its own. A method that is late, or that ends the process, gets a row that says so,
and a fresh process goes on with the next method. ``--quick`` makes a fixed part of the rows, which
takes about ten minutes of CPU: every method on a few graphs, `sharded`, `pipeline` and the target
`fsdp` on graphs of up to 12,000 ops, and every case of the targets.

The rows of a file are of four kinds. Traced and layered graphs are placed by methods that place
whole ops. Traced graphs are placed by methods that split ops, as they are and again with the
arguments of their calls (``NAME with arguments``). The cases of ``tests/targets.toml`` are placed
for their targets (``targets/MODEL``).

Times of ops are those of data sheets (``costs="roofline"``), whatever a version takes by default.

``graphs`` captures the models of these cases with PyTorch and saves them. Both builds then plan the
very same graphs, and ``run`` needs no PyTorch. Without saved graphs ``run`` leaves these cases out.

``exact`` makes rows by the solvers on 30 instances of at most 20 ops. What a solver finds within a
time limit differs from run to run, so only proved makespans are compared.

``compare`` prints a table with a line per method, and every row that is not equal. Steps that
differ by rounding are equal. It exits with 1 if a step is longer or a plan is lost. A method of
``--allow`` may have longer steps, if their mean over all its rows is longer by at most that share.
Rows that only one of the files has are counted, but they are no difference; nor are those of a
method that was late.

The traced graphs are those of ``shared/data`` beside the repository, or of the folder that the
environment variable ``LOADMASTER_DATA`` names. The captured graphs are in ``shared/identity``, or
in the folder that ``LOADMASTER_GRAPHS`` names.

This file runs unchanged on every version of the package: only names of the face are used. The
functions that begin with ``what_`` know where the versions differ.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import hashlib
import importlib.util
import json
import math
import multiprocessing
import os
import sys
import threading
import time
import tomllib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from layered import Layered, layered

import loadmaster as lm

HERE = Path(__file__).parent
DATA = Path(os.environ.get("LOADMASTER_DATA", HERE.parents[1] / "shared" / "data"))

#: Captured graphs of the models of :data:`TARGETS_TABLE`.
GRAPHS = Path(os.environ.get("LOADMASTER_GRAPHS", HERE.parents[1] / "shared" / "identity"))

#: The cases of targets, and the folder of the modules that they are of.
TARGETS_TABLE = HERE.parent / "tests" / "targets.toml"
MODELS = HERE.parent / "tests" / "support"

#: Targets that take the ONNX file of a model, so that its graph is that of the file.
OF_ONNX = ("onnx", "openvino")

#: Models that are examples of the package: they have one graph.
EXAMPLES = ("gpt3-330m",)

#: Beginning of the graphs of :data:`TARGETS_TABLE`, end of graphs with arguments of calls, and
#: beginning of the method of rows that are for a target.
CAPTURED, CALLED, TARGET = "targets/", " with arguments", "target "

#: Memory, over the peak of one device that runs all ops in the graph's own order: of all devices
#: of a tight cluster together, and of each device of a snug one. Two devices: both are the same.
TIGHT, SNUG = 1.2, 0.6

#: Seconds of the clock after which a method is stopped: the slowest takes 20 s of CPU, on a core
#: that other processes may share.
LATE = 3600.0

#: Seconds that no method needs: a limit on the clock would make plans differ from run to run.
NO_LIMIT = 1e6

#: Simulated steps of the methods that learn from them. Their defaults take minutes.
STEPS = {"steps": 30}

#: Methods with their options, and how many ops a graph has at most where the method takes part.
METHODS: list[tuple[str, dict[str, Any], float]] = [
    ("single", {}, math.inf),
    ("round-robin", {}, math.inf),
    ("random", {}, math.inf),
    ("expert", {}, math.inf),
    ("m-topo", {}, math.inf),
    ("order-place", {}, math.inf),
    ("celeritas", {}, math.inf),
    ("glb", {}, math.inf),
    ("metis", {}, math.inf),
    ("heft", {}, math.inf),
    ("cpop", {}, math.inf),
    ("peft", {}, math.inf),
    ("etf", {}, math.inf),
    ("getf", {}, math.inf),
    ("m-etf", {}, math.inf),
    ("dpos", {}, math.inf),
    ("dsc", {}, math.inf),
    ("lc", {}, math.inf),
    ("m-sct", {}, math.inf),
    ("data-parallel", {}, math.inf),
    ("auto", {"effort": "fast", "threads": 1, "time_limit": NO_LIMIT}, math.inf),
    # Each step simulates the whole graph and, for two of them, takes a gradient.
    ("mcmc", STEPS, math.inf),
    ("cross-entropy", STEPS, math.inf),
    ("policy-gradient", STEPS, math.inf),
    # Plans the graph anew for every split that it tries: seconds at 2,000 ops, minutes at 20,000.
    ("os-dpos", {}, 4_000),
]

#: What options change, on graphs where that takes no more than a second.
VARIANTS: list[tuple[str, dict[str, Any], float]] = [
    ("heft", {"contention": False}, 5_000),
    ("heft", {"memory": "static"}, 5_000),
    ("etf", {"contention": False}, 5_000),
    ("celeritas", {"memory": "static", "on_oom": "best_effort"}, 5_000),
    ("m-etf", {"on_oom": "best_effort"}, 5_000),
    ("random", {"seed": 7}, 5_000),
    ("heft", {"refine": True}, 2_000),
    ("m-topo", {"constraints": {"contiguous": True}}, 2_000),
    ("auto", {"effort": "fast", "threads": 1, "time_limit": NO_LIMIT, "seed": 1}, 500),
    ("heft", {"constraints": {"reserve": "1MiB", "pin": {"*1": "*0"}}}, 2_000),
]

#: Methods that split ops, for traced graphs.
SPLITTING: list[tuple[str, dict[str, Any], float]] = [
    ("sharded", {}, math.inf),
    ("pipeline", {}, math.inf),
    ("target fsdp", {}, math.inf),
    ("data-parallel", {}, math.inf),
    ("megatron", {}, math.inf),
    ("fsdp", {}, math.inf),
    ("gpipe", {}, math.inf),
    ("pipedream", {}, math.inf),
    ("max-load", {}, math.inf),
    ("piper", {}, 4_000),
    ("expert", {"micro_batches": 8}, math.inf),
    ("auto", {"effort": "fast", "threads": 1, "time_limit": NO_LIMIT}, math.inf),
    ("pipeline", {"micro_batches": 8, "schedule": "1f1b"}, 4_000),
    ("target fsdp", {"recompute": True}, 12_000),
    ("data-parallel", {"aggregation": "parameter-server"}, 4_000),
    ("data-parallel", {"shards": "parameters"}, 4_000),
]

#: Layered graphs: ops, CCR, seed.
LAYERED = [
    (n, ccr, seed) for n in (200, 500, 1000, 2000) for ccr in (0.1, 1.0, 10.0) for seed in (0, 1)
]

DEVICES = (2, 4, 8)
MEMORIES = ("as it is", "tight", "snug")

#: Graphs that a quick run places by every method, on every cluster.
QUICK_GRAPHS = (
    "lenet_train_b256",
    "alexnet_train_b256",
    "inception_v3_infer_b512",
    "moirai-googlenet",
    "layered-200-0.1-0",
    "layered-500-1-1",
    "layered-500-10-0",
)

#: How many ops a graph has at most that a quick run splits: by the methods of which it makes all
#: rows, by those, with less memory, and by any other method.
QUICK_METHODS = ("sharded", "pipeline", "target fsdp")
QUICK_OPS, QUICK_OPS_OF_LITTLE_MEMORY, QUICK_OPS_OF_OTHERS = 12_000, 4_000, 4_000

#: Solvers, with their options. One worker of CP-SAT is the same on any number of cores.
SOLVERS: list[tuple[str, dict[str, Any]]] = [
    ("cpsat", {"workers": 1, "time_limit": 300.0}),
    ("ilp", {"solver": "cbc", "time_limit": 60.0}),
    ("ilp", {"solver": "highs", "time_limit": 60.0}),
]

#: Share of a makespan by which the bound may miss it and the plan still counts as proved.
PROVED = 1e-5

#: Share by which seconds may differ and still count as the same: sums that are taken in another
#: order differ in the last digits.
ROUNDING = 1e-9

#: How the status begins of what came to no end.
UNFINISHED = ("late", "ended")

#: Letters of a refusal that are kept.
SHOWN = 200

KEY = ("graph", "cluster", "memory", "method", "options")
FOUND = (
    "status",
    "ops",
    "devices",
    "priority",
    "policy",
    "makespan",
    "peak",
    "recipe",
    "lower_bound",
    "bound_source",
    "transfers",
    "bytes",
)

#: Columns of seconds, which may differ by rounding.
SECONDS = ("makespan", "lower_bound")

#: The beginning of a refusal stands beside what is compared.
FIELDS = (*KEY, *FOUND, "refusal")

Row = dict[str, str]
Key = tuple[str, ...]


# -- what differs between versions ---------------------------------------------------------------


def what_runs(plan: lm.Plan) -> tuple[Any, Any, str]:
    """Device and priority per op of the reduced graph that runs, and the policy.

    Before plans had an ``assignment``, it was named ``placed``.
    """
    assignment = plan.assignment if hasattr(plan, "assignment") else plan.placed
    return assignment.devices, assignment.priority, assignment.policy


def what_is_sent(plan: lm.Plan) -> tuple[int, int]:
    """Number of transfers and of bytes that they move."""
    return len(plan.schedule.transfers), int(plan.schedule.bytes_moved)


def what_is_held(plan: lm.Plan) -> int:
    """Bytes that the fullest device holds at most."""
    return max(int(peak) for peak in plan.verdict.peak)


def what_is_split(plan: lm.Plan) -> str:
    """Digest of the recipe; empty if there is none.

    The version of the recipe's format does not count, nor does the order of its tables. Virtual
    stages were called ``chunks``.
    """
    if plan.recipe is None:
        return ""
    document = dict(sorted(plan.recipe.to_document().items()))
    del document["format"], document["version"]
    if "micro" in document:
        micro = {"chunks" if key == "virtual" else key: v for key, v in document["micro"].items()}
        document["micro"] = micro
    return digest(json.dumps(document).encode())


# -- cases ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A graph on a cluster by a method."""

    graph: str
    cluster: str
    memory: str
    method: str
    options: str

    @property
    def key(self) -> Key:
        """Columns by which a row is found."""
        return self.graph, self.cluster, self.memory, self.method, self.options


def weight(graph: str) -> float:
    """About how large a graph is: 25 bytes of a file an op."""
    if graph.startswith("layered"):
        return 25.0 * int(graph.split("-")[1])
    return file_of(graph).stat().st_size


def file_of(graph: str) -> Path:
    """The file of a captured, traced or measured graph."""
    if graph.startswith(CAPTURED):
        return GRAPHS / f"{graph.removeprefix(CAPTURED)}.json.gz"
    folder = "heterogeneous" if graph.startswith("moirai") else "graphs"
    return DATA / folder / f"{graph.removesuffix(CALLED)}.json.gz"


@cache
def plain_graphs() -> list[str]:
    """All traced, measured and layered graphs, small ones first."""
    found = [f.name.removesuffix(".json.gz") for f in (DATA / "graphs").glob("*.json.gz")]
    found += [f.name.removesuffix(".json.gz") for f in (DATA / "heterogeneous").glob("*.json.gz")]
    found += [f"layered-{n}-{ccr:g}-{seed}" for n, ccr, seed in LAYERED]
    return sorted(found, key=lambda name: (weight(name), name))


def graphs() -> list[str]:
    """All graphs, small ones first."""
    found = [*plain_graphs(), *target_cases()]
    found += [
        f.name.removesuffix(".json.gz") + CALLED for f in (DATA / "graph_args").glob("*.json.gz")
    ]
    return sorted(found, key=lambda name: (weight(name), name))


def clusters_of(graph: str) -> list[str]:
    """The clusters that a graph is placed on; families of clusters take turns."""
    if graph.startswith("moirai"):
        return ["its own"]
    index = plain_graphs().index(graph.removesuffix(CALLED))
    if graph.startswith("layered"):
        return [f"{DEVICES[index % 3]} {('equal', 'unequal')[index % 2]}"]
    families = list(FAMILIES)
    return [f"{k} {families[(index + i) % len(families)]}" for i, k in enumerate(DEVICES)]


def cases(graph: str) -> list[Case]:
    """The cases of a graph."""
    if graph.startswith(CAPTURED):
        return target_cases()[graph]
    n_ops = graph_of(graph).n_ops
    methods = [] if graph.endswith(CALLED) else [*METHODS, *VARIANTS]
    if not graph.startswith(("layered", "moirai")):
        # Without arguments these would be planned twice.
        methods += [one for one in SPLITTING if one not in methods]
    return [
        Case(graph, cluster, memory, method, json.dumps(options, sort_keys=True))
        for cluster in clusters_of(graph)
        for memory in MEMORIES
        if memory != "snug" or not cluster.startswith("2 ")
        for method, options, most in methods
        if n_ops <= most
    ]


@cache
def target_cases() -> dict[str, list[Case]]:
    """The cases of :data:`TARGETS_TABLE` by their graphs, of those graphs that are saved."""
    found: dict[str, list[Case]] = {}
    for row in tomllib.loads(TARGETS_TABLE.read_text())["case"]:
        graph = CAPTURED + captured_name(row)
        if not file_of(graph).exists():
            continue
        memory = " ".join(f"{device}={size}" for device, size in row.get("memory", {}).items())
        options = json.dumps(row.get("options", {}), sort_keys=True)
        case = Case(graph, row["cluster"], memory or MEMORIES[0], TARGET + row["target"], options)
        found.setdefault(graph, []).append(case)
    return found


def captured_name(row: dict[str, Any]) -> str:
    """The name of the graph of a case of :data:`TARGETS_TABLE`: its model, and what of it."""
    if row["model"] in EXAMPLES:
        return str(row["model"])
    if row["target"] in OF_ONNX:
        return f"{row['model']}-onnx"
    return f"{row['model']}-{'training' if row.get('train') else 'inference'}"


def is_in_quick_run(graph: str) -> bool:
    """True for a graph of which a quick run may have rows."""
    return graph.startswith(CAPTURED) or graph.endswith(CALLED) or graph in QUICK_GRAPHS


def is_quick(case: Case) -> bool:
    """True for a row of a quick run."""
    if not case.graph.endswith(CALLED):
        return is_in_quick_run(case.graph)
    if case.memory != MEMORIES[0]:
        most = QUICK_OPS_OF_LITTLE_MEMORY if case.method in QUICK_METHODS else 0
    else:
        most = QUICK_OPS if case.method in QUICK_METHODS else QUICK_OPS_OF_OTHERS
    return graph_of(case.graph).n_ops <= most


@cache
def graph_of(name: str) -> lm.OpGraph:
    """A graph by name."""
    if name.endswith(CALLED):
        file = DATA / "graph_args" / f"{name.removesuffix(CALLED)}.json.gz"
        return lm.read(file_of(name)).with_columns(json.loads(gzip.decompress(file.read_bytes())))
    if not name.startswith("layered"):
        return lm.read(file_of(name))
    data = layered_of(name)
    slower = np.random.default_rng(0).uniform(1.0, 3.0, data.n_ops)
    return lm.OpGraph(
        {
            "name": [f"o{i}" for i in range(data.n_ops)],
            "time": {"gpu": data.op_seconds, "*": data.op_seconds * slower},
            "output_bytes": data.tensor_bytes,
            "param_bytes": data.resident,
        },
        {"src": data.src, "dst": data.dst, "bytes": data.tensor_bytes[data.src]},
    )


@cache
def layered_of(name: str) -> Layered:
    """The columns of a layered graph."""
    _, n_ops, ccr, seed = name.split("-")
    width = 8.0 if int(n_ops) >= 100 else 2.0
    return layered(int(n_ops), ccr=float(ccr), seed=int(seed), width=width)


def pcie(n: int) -> lm.Cluster:
    """V100s on PCIe, as in the preset of four: as many as asked for."""
    cluster = lm.Cluster.preset("4xV100-PCIe")
    while cluster.n_devices < n:
        cluster = cluster.with_device(cluster.n_devices - 1)
    return cluster.subset(range(n))


def unequal(cluster: lm.Cluster) -> lm.Cluster:
    """The cluster with half the speed on every other device."""
    for device in range(1, cluster.n_devices, 2):
        cluster = cluster.with_speed(0.5, device)
    return cluster


#: Clusters of so many devices: a port for each device, hops over others, a switch, two types.
FAMILIES: dict[str, Callable[[int], lm.Cluster]] = {
    "V100-PCIe": pcie,
    "V100-NVLink": lambda n: lm.Cluster.preset("8xV100-NVLink").subset(range(n)),
    "H100-NVLink": lambda n: lm.Cluster.preset("8xH100-NVLink").subset(range(n)),
    "V100-PCIe unequal": lambda n: unequal(pcie(n)),
}


def mesh(graph: str, n: int) -> lm.Cluster:
    """Equal devices whose links give a layered graph about its CCR."""
    data = layered_of(graph)
    bandwidth = float(data.tensor_bytes.sum() / data.tensor_seconds.sum())
    return lm.Cluster.mesh(n, memory="1TiB", bandwidth=bandwidth, latency=10e-6)


@cache
def cluster_of(graph: str, cluster: str, memory: str) -> lm.Cluster:
    """A cluster by name, for a graph."""
    if graph.startswith(CAPTURED):
        return preset_of(cluster, memory)
    count, _, family = cluster.partition(" ")
    if cluster == "its own":
        found = lm.Cluster.read(DATA / "heterogeneous" / f"{graph}.cluster.toml")
    elif graph.startswith("layered"):
        found = mesh(graph, int(count))
        found = unequal(found) if family == "unequal" else found
    else:
        found = FAMILIES[family](int(count))
    share = {"tight": TIGHT / found.n_devices, "snug": SNUG}.get(memory)
    return found if share is None else found.with_memory(math.ceil(share * peak_of(graph, found)))


def preset_of(cluster: str, memory: str) -> lm.Cluster:
    """A preset, with the memory of some devices given as ``gpu0=1MiB gpu1=1MiB``."""
    found = lm.Cluster.preset(cluster)
    for part in memory.split() if "=" in memory else []:
        device, _, size = part.partition("=")
        found = found.with_memory(size, device)
    return found


def peak_of(graph: str, cluster: lm.Cluster) -> int:
    """Bytes that the first device holds at most, if it runs all ops in the graph's own order."""
    model = graph_of(graph)
    alone = cluster.subset([0]).with_memory("1PiB")
    return int(lm.simulate(model, alone, np.zeros(model.n_ops, dtype=np.int32)).memory.peak[0])


# -- one plan ------------------------------------------------------------------------------------


def planned(case: Case) -> Row:
    """The row of a case."""
    options = json.loads(case.options)
    if "constraints" in options:
        options["constraints"] = lm.Constraints(**options["constraints"])
    model = graph_of(case.graph)
    cluster = cluster_of(case.graph, case.cluster, case.memory)
    if case.method.startswith(TARGET):
        options["target"] = case.method.removeprefix(TARGET)
    else:
        options["method"] = case.method
    options |= what_costs()
    return row_of(case, lambda: lm.place(model, cluster, **options))


def what_costs() -> dict[str, str]:
    """Times by data sheets, which all versions have; those of kernels change with their tables."""
    known = importlib.util.find_spec("loadmaster.costs.kernels") is not None
    return {"costs": "roofline"} if known else {}


def row_of(case: Case, place: Callable[[], lm.Plan]) -> Row:
    """Row of a plan, or of its refusal."""
    try:
        plan = place()
    except lm.LoadmasterError as error:
        status = f"{type(error).__name__} {digest(str(error).encode())[:16]}"
        return blank(case, status) | {"refusal": str(error)[:SHOWN]}
    devices, priority, policy = what_runs(plan)
    transfers, moved = what_is_sent(plan)
    found = {
        "status": "ok" if plan.fits else "does not fit",
        "ops": len(devices),
        "devices": digest(np.ascontiguousarray(devices, dtype="<i4").tobytes()),
        "priority": digest(np.ascontiguousarray(priority, dtype="<i4").tobytes()),
        "policy": policy,
        "makespan": repr(float(plan.makespan)),
        "peak": what_is_held(plan),
        "recipe": what_is_split(plan),
        "lower_bound": repr(float(plan.lower_bound)),
        "bound_source": plan.bound_source,
        "transfers": transfers,
        "bytes": moved,
    }
    return blank(case) | {name: str(value) for name, value in found.items()}


def blank(case: Case, status: str = "") -> Row:
    """A row without a plan."""
    return dict.fromkeys(FIELDS, "") | dict(zip(KEY, case.key, strict=True)) | {"status": status}


def digest(data: bytes) -> str:
    """SHA-256, in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


# -- all plans -----------------------------------------------------------------------------------


class Table:
    """A file of rows that grows a row at a time."""

    def __init__(self, path: Path) -> None:
        is_new = not path.exists()
        self.keys = set() if is_new else set(read(path))
        self._file = path.open("a", newline="")
        self._writer = csv.DictWriter(self._file, FIELDS)
        self._lock = threading.Lock()
        if is_new:
            self._writer.writeheader()

    def add(self, row: Row) -> None:
        """Writes a row at once."""
        with self._lock:
            self._writer.writerow(row)
            self._file.flush()
            self.keys.add(key_of(row))


def read(path: Path) -> dict[Key, Row]:
    """The rows of a file, by key."""
    with path.open(newline="") as file:
        return {key_of(row): row for row in csv.DictReader(file)}


def key_of(row: Row) -> Key:
    """Columns by which a row is found."""
    return tuple(row[name] for name in KEY)


def work(todo: list[Case], connection: Connection) -> None:
    """Plans case after case; runs in a process of its own."""
    for case in todo:
        began = time.process_time()
        connection.send((planned(case), time.process_time() - began))


def supervised(todo: list[Case], table: Table) -> None:
    """Plans cases of a graph, in as many processes as that takes."""
    context = multiprocessing.get_context("spawn")
    while todo:
        ours, theirs = context.Pipe()
        process = context.Process(target=work, args=(todo, theirs))
        process.start()
        theirs.close()
        status = ""
        while todo and not status:
            try:
                row, seconds = ours.recv() if ours.poll(LATE) else (blank(todo[0], "late"), LATE)
            except EOFError:
                process.join()
                row, seconds = blank(todo[0], f"ended with {process.exitcode}"), 0.0
            status = row["status"] if row["status"].startswith(UNFINISHED) else ""
            case = todo.pop(0)
            table.add(row)
            print(f"{seconds:8.2f} s  {row['status']:14.14}  {' | '.join(case.key)}", flush=True)
        process.kill()
        process.join()


def run(path: Path, jobs: int, names: list[str], takes: Callable[[Case], bool]) -> None:
    """Plans those cases of graphs that are taken and that the file lacks."""
    table = Table(path)

    def planned_of(graph: str) -> None:
        todo = [case for case in cases(graph) if case.key not in table.keys and takes(case)]
        supervised(todo, table)

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(planned_of, names))


def run_as_asked(arguments: argparse.Namespace) -> None:
    """Plans the cases that the command line asks for."""
    only, methods = arguments.only, arguments.methods
    wanted = [name for name in graphs() if not only or any(text in name for text in only)]
    if arguments.quick:
        wanted = [name for name in wanted if is_in_quick_run(name)]
    if not target_cases():
        print(f"{GRAPHS} has no captured graphs: the cases of targets are left out")

    def takes(case: Case) -> bool:
        if methods and case.method not in methods:
            return False
        return not arguments.quick or is_quick(case)

    run(arguments.output, arguments.jobs, wanted, takes)


# -- captured graphs -----------------------------------------------------------------------------


def save_captured() -> None:
    """Captures the models of :data:`TARGETS_TABLE` with PyTorch, and saves those that lack.

    Raises
    ------
    RuntimeError
        What was saved is read as another graph.
    """
    sys.path.insert(0, str(MODELS))
    from target_models import graph_of as captured
    from target_models import onnx_file

    GRAPHS.mkdir(parents=True, exist_ok=True)
    for row in tomllib.loads(TARGETS_TABLE.read_text())["case"]:
        file = file_of(CAPTURED + captured_name(row))
        if file.exists():
            continue
        if row["target"] in OF_ONNX and row["model"] not in EXAMPLES:
            graph = lm.read(onnx_file(row["model"]))
        else:
            graph = captured(row["model"], train=row.get("train", False))
        graph.save(file)
        again = lm.read(file)
        if again.digest != graph.digest or again.meta != graph.meta:
            raise RuntimeError(f"{file} is read as another graph than was saved")
        print(f"{graph.n_ops:8} ops  {file.name}", flush=True)


# -- solvers -------------------------------------------------------------------------------------


def instances() -> dict[str, Callable[[], tuple[lm.OpGraph, lm.Cluster]]]:
    """Thirty graphs of 12 to 20 ops with their clusters: 12 of ``shared/data/scheduling``, with one
    bandwidth for all links, and 18 layered ones. Each device can hold all ops: where memory is
    tight, solvers charge it in a way of their own, and what they prove is no bound of the plan.
    """
    found: dict[str, Callable[[], tuple[lm.OpGraph, lm.Cluster]]] = {}
    for i in range(18):
        graph = f"layered-{12 + i // 2}-{(0.1, 1.0, 10.0)[i % 3]:g}-{i}"
        found[graph] = partial(layered_instance, graph, (2, 3)[i % 2])
    for path in sorted((DATA / "scheduling").glob("n20-*.json")):
        found[path.name.removesuffix(".json")] = partial(scheduling_instance, path)
    return found


def scheduling_instance(path: Path) -> tuple[lm.OpGraph, lm.Cluster]:
    """An instance of ``shared/data/scheduling``; a byte takes a microsecond on each link."""
    raw = json.loads(path.read_text())
    types = ["t"] * raw["K"] if raw["hom"] else [f"t{d}" for d in range(raw["K"])]
    edges = [
        (t["src"], dst, i, t["c"][0][1]) for i, t in enumerate(raw["tensors"]) for dst in t["dsts"]
    ]
    src, dst, tensor, size = zip(*edges, strict=True)
    seconds = np.array(raw["p"]) * 1e-6
    ops = {
        "name": [f"o{i}" for i in range(raw["n"])],
        "time": {name: seconds[:, types.index(name)] for name in dict.fromkeys(types)},
    }
    devices = [lm.Device(f"d{i}", name, 2**40) for i, name in enumerate(types)]
    links = [lm.Link(a.name, b.name, 1e6, 0.0) for a in devices for b in devices if a != b]
    graph = lm.OpGraph(ops, {"src": src, "dst": dst, "tensor": tensor, "bytes": size})
    return graph, lm.Cluster(devices, links)


def layered_instance(graph: str, devices: int) -> tuple[lm.OpGraph, lm.Cluster]:
    """A small layered graph, on equal devices with memory to spare."""
    return graph_of(graph), mesh(graph, devices)


def exact(path: Path, only: list[str]) -> None:
    """Plans all instances by all solvers, but for what the file has."""
    table = Table(path)
    for name, make in instances().items():
        for method, options in SOLVERS:
            case = Case(name, "its own", "to spare", method, json.dumps(options, sort_keys=True))
            if case.key in table.keys or not any(text in name for text in only or [""]):
                continue
            graph, cluster = make()
            began = time.perf_counter()
            row = row_of(case, partial(lm.place, graph, cluster, method, **options))
            table.add(row)
            seconds = time.perf_counter() - began
            outcome = "proved" if proved(row) else row["status"]
            print(f"{seconds:8.2f} s  {outcome:14.14}  {' | '.join(case.key)}", flush=True)


def proved(row: Row) -> bool:
    """True if bound and makespan meet."""
    if row["status"] != "ok":
        return False
    makespan, bound = float(row["makespan"]), float(row["lower_bound"])
    return makespan - bound <= PROVED * makespan


# -- comparison ----------------------------------------------------------------------------------


#: Outcomes of a row, in the order in which they are printed. A plan is lost if there is none any
#: more, or none that fits; it is gained if it is the other way round. Another plan has the same
#: step, and another memory, recipe, placement or bound.
OUTCOMES = (
    "equal",
    "shorter",
    "longer",
    "other plan",
    "lost",
    "gained",
    "other refusal",
    "not compared",
)


def outcome_of(old: Row, new: Row) -> str:
    """The name in :data:`OUTCOMES` of what became of a row."""
    if old["status"].startswith(UNFINISHED) or new["status"] == "late":
        return "not compared"
    if old["method"] in {method for method, _ in SOLVERS}:
        return outcome_of_solver(old, new)
    rank = [2 * (row["makespan"] != "") - (row["status"] == "does not fit") for row in (old, new)]
    if rank[0] != rank[1]:
        return "lost" if rank[0] > rank[1] else "gained"
    if not rank[0]:
        return "equal" if old["status"] == new["status"] else "other refusal"
    if differs("makespan", old, new):
        return "longer" if float(new["makespan"]) > float(old["makespan"]) else "shorter"
    return "other plan" if any(differs(name, old, new) for name in FOUND) else "equal"


def outcome_of_solver(old: Row, new: Row) -> str:
    """The name in :data:`OUTCOMES` of what became of the row of a solver."""
    if not (proved(old) and proved(new)):
        return "not compared"
    makespans = float(old["makespan"]), float(new["makespan"])
    if math.isclose(*makespans, rel_tol=2 * PROVED):
        return "equal"
    return "longer" if makespans[1] > makespans[0] else "shorter"


def differs(name: str, old: Row, new: Row) -> bool:
    """True if a column differs by more than rounding."""
    if name in SECONDS and old[name] and new[name]:
        return not math.isclose(float(old[name]), float(new[name]), rel_tol=ROUNDING)
    return old[name] != new[name]


def described(old: Row, new: Row) -> str:
    """A line about a row: by how much the step changed, and the columns that differ."""
    parts = []
    if old["makespan"] and new["makespan"] and differs("makespan", old, new):
        parts.append(f"{float(new['makespan']) / float(old['makespan']) - 1:+.4%}")
    for name in [name for name in FIELDS if name not in KEY and differs(name, old, new)]:
        length = SHOWN if name == "refusal" else 24
        parts.append(f"{name} {old[name][:length]} -> {new[name][:length]}")
    return f"{' | '.join(key_of(old))}: {'; '.join(parts)}"


def compare(old: dict[Key, Row], new: dict[Key, Row], allowed: dict[str, float]) -> int:
    """Prints how two tables differ; the number of rows that are worse and not allowed."""
    found: dict[str, dict[str, list[Key]]] = {}
    for key in [key for key in old if key in new]:
        of_method = found.setdefault(old[key]["method"], {name: [] for name in OUTCOMES})
        of_method[outcome_of(old[key], new[key])].append(key)
    print_table(found)
    print(
        f"\n{len({key[:3] for key in old if key in new})} cases: graphs on clusters of some memory"
    )
    for name, one, other in (("old", old, new), ("new", new, old)):
        if alone := len(one.keys() - other.keys()):
            print(f"{alone} rows are only in the {name} table")
    for outcome in OUTCOMES[1:]:
        keys = [key for of_method in found.values() for key in of_method[outcome]]
        if keys:
            print(f"\n{outcome}: {len(keys)}")
        for key in keys:
            print(f"  {described(old[key], new[key])}")
    worse = 0
    for method, of_method in found.items():
        longer = of_method["longer"]
        if longer and method in allowed:
            share = mean_change(method, old, new)
            is_allowed = share <= allowed[method]
            print(f"\n{method}: {share:+.3%} in the mean, of {allowed[method]:+.3%} allowed")
            longer = [] if is_allowed else longer
        worse += len(longer) + len(of_method["lost"])
    return worse


def print_table(found: dict[str, dict[str, list[Key]]]) -> None:
    """Prints a line per method: how many rows have which outcome."""
    print(f"| method | rows | {' | '.join(OUTCOMES)} |")
    print(f"| --- |{' ---: |' * (1 + len(OUTCOMES))}")
    totals = [0] * (1 + len(OUTCOMES))
    for method, of_method in found.items():
        counts = [len(of_method[name]) for name in OUTCOMES]
        cells = [sum(counts), *counts]
        totals = [total + cell for total, cell in zip(totals, cells, strict=True)]
        print(f"| {method} | {' | '.join(map(str, cells))} |")
    print(f"| all | {' | '.join(map(str, totals))} |")


def mean_change(method: str, old: dict[Key, Row], new: dict[Key, Row]) -> float:
    """Mean share by which the steps of a method are longer, over all rows with plans in both."""
    changes = [
        float(new[key]["makespan"]) / float(row["makespan"]) - 1
        for key, row in old.items()
        if row["method"] == method and key in new and row["makespan"] and new[key]["makespan"]
    ]
    return sum(changes) / len(changes)


def allowance(text: str) -> tuple[str, float]:
    """A method and a share, of ``os-dpos=0.01``."""
    method, _, share = text.rpartition("=")
    return method, float(share)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("graphs")
    for name in ("run", "exact"):
        command = commands.add_parser(name)
        command.add_argument("-o", "--output", type=Path, required=True)
        command.add_argument("--only", nargs="+", default=[], help="graphs whose name has one")
        if name == "run":
            command.add_argument("--quick", action="store_true")
            command.add_argument("--jobs", type=int, default=1)
            command.add_argument("--methods", nargs="+", default=[])
    command = commands.add_parser("compare")
    command.add_argument("tables", type=Path, nargs=2)
    command.add_argument("--allow", nargs="+", default=[], type=allowance, metavar="METHOD=SHARE")
    arguments = parser.parse_args()
    if arguments.command in ("run", "exact") and not DATA.is_dir():
        parser.error(f"{DATA} is no folder: name the data's in LOADMASTER_DATA")
    if arguments.command == "graphs":
        save_captured()
    elif arguments.command == "run":
        run_as_asked(arguments)
    elif arguments.command == "exact":
        exact(arguments.output, arguments.only)
    else:
        old, new = map(read, arguments.tables)
        sys.exit(compare(old, new, dict(arguments.allow)) > 0)


if __name__ == "__main__":
    main()
