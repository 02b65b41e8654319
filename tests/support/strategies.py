"""Graphs and clusters that tests build: by hand in a line, or drawn by hypothesis.

Drawn times are whole milliseconds and drawn links carry whole bytes per millisecond, so that every
schedule is exact on the simulator's clock and can be compared for equality.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from hypothesis import strategies as st

import loadmaster as lm
from loadmaster import fast

MS = 1e-3


#: Figures of a V100: what the issue's clusters are made of.
V100 = lm.DeviceType(
    "V100-32GB", {"f64": 7.8e12, "f32": 15.7e12, "f16": 112e12}, memory_bandwidth=900e9, launch=5e-6
)


def v100_mesh(n_devices: int, memory: int | str = "32GiB") -> lm.Cluster:
    """V100s with 12 GB/s and 10 us between every pair."""
    return lm.Cluster.mesh(n_devices, memory=memory, bandwidth=12e9, latency=10e-6, type=V100)


def ms_mesh(n_devices: int, memory: int | str = "1GiB", latency: int = 0) -> lm.Cluster:
    """A mesh that carries one byte per millisecond."""
    return lm.Cluster.mesh(n_devices, memory=memory, bandwidth=1000.0, latency=latency * MS)


def graph_of(times: dict[str, float], edges: list[tuple] = (), **columns) -> lm.OpGraph:
    """A graph from ms per op and (source, destination, bytes[, tensor]) by name."""
    names = list(times)
    at = {name: i for i, name in enumerate(names)}
    table = {
        "src": [at[e[0]] for e in edges],
        "dst": [at[e[1]] for e in edges],
        "bytes": [e[2] for e in edges],
    }
    if any(len(e) > 3 for e in edges):
        table["tensor"] = [e[3] for e in edges]
    ops = {"name": names, "time": {"*": [t * MS for t in times.values()]}, **columns}
    return lm.OpGraph(ops, table)


def tried(call):
    """What a call gives, and None; or None, and the InfeasibleError it raises."""
    try:
        return call(), None
    except lm.InfeasibleError as error:
        return None, error


def in_ms(seconds) -> list[int]:
    """Seconds that are whole milliseconds, as integers."""
    scaled = np.asarray(seconds, dtype=np.float64) / MS
    whole = np.rint(scaled)
    assert np.allclose(scaled, whole, rtol=0, atol=1e-6), scaled
    return whole.astype(int).tolist()


# -- drawn -----------------------------------------------------------------------------------


@dataclass
class Plain:
    """A plain graph as columns, and as :class:`fast.Graph`."""

    n: int
    src: list[int]
    dst: list[int]
    tensor: list[int]
    tensor_bytes: list[int]
    time: list[int]
    resident: list[int] = field(default_factory=list)
    workspace: list[int] = field(default_factory=list)
    output_bytes: list[int] | None = None
    colocation: list[int] | None = None

    def fast(self) -> fast.Graph:
        optional = {}
        if self.output_bytes is not None:
            optional["output_bytes"] = np.array(self.output_bytes, dtype=np.uint64)
        if self.colocation is not None:
            optional["colocation"] = np.array(self.colocation, dtype=np.int64)
        return fast.Graph(
            self.n,
            np.array(self.src, dtype=np.int64),
            np.array(self.dst, dtype=np.int64),
            np.array(self.tensor, dtype=np.int64),
            tensor_bytes=np.array(self.tensor_bytes, dtype=np.uint64),
            resident=np.array(self.resident, dtype=np.uint64),
            workspace=np.array(self.workspace, dtype=np.uint64),
            **optional,
        )

    @property
    def seconds(self) -> np.ndarray:
        return np.array(self.time, dtype=np.float64) * MS

    @property
    def edges(self) -> list[tuple[int, int, int]]:
        """Distinct edges as (source, destination, tensor or -1)."""
        return sorted(set(zip(self.src, self.dst, self.tensor, strict=True)))


@st.composite
def plain_graphs(draw, max_ops: int = 8, min_ops: int = 1, zero_times: bool = True):
    """Graphs with up to two tensors per op, shared tensors, control edges and unread outputs."""
    n = draw(st.integers(min_ops, max_ops))
    numbering = draw(st.permutations(range(n)))
    ids: dict[tuple[int, int], int] = {}
    src, dst, tensor = [], [], []
    for j in range(1, n):
        for i in draw(st.lists(st.integers(0, j - 1), max_size=3)):
            which = draw(st.sampled_from([0, 0, 0, 1, -1]))
            src.append(numbering[i])
            dst.append(numbering[j])
            tensor.append(-1 if which < 0 else ids.setdefault((i, which), len(ids)))
    size = st.integers(0, 6)

    def column(values):
        return draw(st.lists(values, min_size=n, max_size=n))

    return Plain(
        n,
        src,
        dst,
        tensor,
        draw(st.lists(size, min_size=len(ids), max_size=len(ids))),
        column(st.integers(0 if zero_times else 1, 5)),
        column(size),
        column(st.sampled_from([0, 0, 3])),
        draw(st.none() | st.lists(st.integers(0, 12), min_size=n, max_size=n)),
    )


@st.composite
def clusters(draw, max_devices: int = 4, memory: int = 10**6, runtime: bool = False):
    """Clusters of every kind of link: own channels, a bridge, one-port NICs, a line of hops.

    With ``runtime``, a half also has costs of sending, and a half a host that launches.
    """
    k = draw(st.integers(1, max_devices))
    kind = draw(st.sampled_from(["mesh", "bridge", "one-port", "full-duplex", "line"]))
    n_types = draw(st.integers(1, 2))
    devices = [lm.Device(f"d{i}", f"t{i % n_types}", memory) for i in range(k)]
    speeds = st.sampled_from([1000.0, 1000.0, 500.0])
    links = []
    for i in range(k):
        for j in range(k):
            if i == j or (kind == "line" and abs(i - j) != 1):
                continue
            channels = {
                "bridge": ("bridge",),
                "one-port": (f"nic{i}", f"nic{j}"),
                "full-duplex": (f"tx{i}", f"rx{j}"),
            }.get(kind, ())
            latency = draw(st.integers(0, 2)) * MS
            links.append(lm.Link(f"d{i}", f"d{j}", draw(speeds), latency, channels))
    if not runtime:
        return lm.Cluster(devices, links)
    costs = st.builds(lm.SendCost, st.integers(0, 2).map(lambda ms: ms * MS), speeds)
    types = [lm.DeviceType(f"t{i}", send_cost=draw(st.none() | costs)) for i in range(n_types)]
    dispatch = draw(st.none() | st.builds(lm.Dispatch, st.just(MS), st.booleans()))
    return lm.Cluster(devices, links, types, dispatch=dispatch)


@st.composite
def op_graphs(draw, max_ops: int = 10, rules: bool = True, zero_times: bool = True):
    """Users' graphs: placeholders, views, in-place ops, control edges, sets that stay together."""
    n = draw(st.integers(2, max_ops))
    kinds, views, alias = [], [], []
    edges: list[tuple[int, int, int]] = []
    out: list[int] = []
    size = st.integers(1, 8)
    for j in range(n):
        role = draw(st.sampled_from(["op", "op", "op", "placeholder", "view", "inplace"]))
        if j == 0 and role != "placeholder":
            role = "op"
        if j == n - 1 and all(k != "op" or v for k, v in zip(kinds, views, strict=True)):
            role = "op"
        readers = draw(st.lists(st.integers(0, j - 1), max_size=3, unique=True)) if j else []
        base = draw(st.integers(0, j - 1)) if role in ("view", "inplace") else -1
        kinds.append("parameter" if role == "placeholder" else "op")
        views.append(int(role == "view"))
        alias.append(base)
        if role == "placeholder":
            out.append(draw(size))
        elif role == "view":
            out.append(draw(st.integers(1, out[base])))
            edges.append((base, j, base))
        else:
            out.append(out[base] if role == "inplace" else draw(size))
            if role == "inplace":
                edges.append((base, j, base))
            for i in readers:
                if i != base:
                    edges.append((i, j, draw(st.sampled_from([i, i, i, -1]))))
    least = 0 if zero_times else 1
    free = [k == "parameter" or v for k, v in zip(kinds, views, strict=True)]
    time = [0 if f else draw(st.integers(least, 5)) for f in free]
    new = [
        0 if f or a >= 0 else b for f, a, b in zip(free, alias, out, strict=True)
    ]  # bytes allocated
    ops = {
        "name": [f"op{i}" for i in range(n)],
        "kind": kinds,
        "view": views,
        "alias_of": alias,
        "output_bytes": new,
        "param_bytes": [b if k == "parameter" else 0 for k, b in zip(kinds, out, strict=True)],
        "workspace": draw(st.lists(st.sampled_from([0, 0, 4]), min_size=n, max_size=n)),
        "time": {"*": [t * MS for t in time]},
    }
    if rules:
        labels = st.sampled_from(["", "", "", "left", "right"])
        ops["colocation"] = draw(st.lists(labels, min_size=n, max_size=n))
    if not any(time):
        ops["time"] = {"*": [0.0 if f else MS for f in free]}
    table = {
        "src": [e[0] for e in edges],
        "dst": [e[1] for e in edges],
        "tensor": [e[2] for e in edges],
        "bytes": [out[e[0]] if e[2] >= 0 else 0 for e in edges],
    }
    return lm.OpGraph(ops, table, name="drawn", meta={"drawn": True})


@st.composite
def placements(draw, graph: lm.OpGraph, cluster: lm.Cluster):
    """A device per user op that keeps together what must be together."""
    reduced = graph.reduced
    sets = reduced.graph.colocation
    device = draw(
        st.lists(
            st.integers(0, cluster.n_devices - 1),
            min_size=int(sets.max()) + 1,
            max_size=int(sets.max()) + 1,
        )
    )
    return np.array(device, dtype=np.int32)[sets][reduced.map]


#: Methods that call a solver: without time for it they return where it starts.
EXACT = ("ilp", "cpsat", "pesto", "moirai")

#: Methods that cut ops by what they were called with, or by sizes.
CUTTING = ("sharded", "megatron", "fsdp")

#: Methods that cut the batch.
PIPELINES = ("gpipe", "pipedream", "max-load", "piper", "pipeline")


def brief(method):
    """Options under which a method that searches stops early, the same on every run."""
    if method in EXACT:
        return {"time_limit": 0}
    if method == "auto":
        return {"effort": 0.01}
    if method == "pipeline":
        return {"schedule": "1f1b"}
    return {"steps": 30} if method in ("mcmc", "cross-entropy", "policy-gradient") else {}
