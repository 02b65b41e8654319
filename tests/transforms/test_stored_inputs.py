"""Graphs where few ops read many stored tensors, where some ops read the shape of a tensor alone,
and where ids of tensors are left out: programs of them are valid, on every mesh and cluster.
"""

from __future__ import annotations

import contextlib
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from labels import drawn
from products import chain

import loadmaster as lm
from loadmaster.dimensions.dimensions import Dimensions
from loadmaster.model.program import Program
from loadmaster.model.recipe import DeviceMesh
from loadmaster.transforms import Layout, micro_batches, recompute, replicate, shard

MESHES = [DeviceMesh.of({"x": 2}), DeviceMesh.of({"x": 3}), DeviceMesh.of({"x": 2, "y": 2})]

SEEDS = st.integers(0, 2**16)


class _Columns:
    """A graph as it is drawn. Each op has one output, of 4-byte elements."""

    def __init__(self) -> None:
        self.ops: list[tuple[str, tuple[int, ...], list[int]]] = []
        self.edges: list[tuple[int, int, int, int]] = []

    def add(self, kind: str, shape: tuple[int, ...], *reads: int, waits: bool = False) -> int:
        """Appends an op; ``waits``: it has control edges from what its call names."""
        for source in dict.fromkeys(reads):
            size = 4 * int(np.prod(self.ops[source][1]))
            self.edges.append((source, len(self.ops), *((-1, 0) if waits else (source, size))))
        self.ops.append((kind, shape, list(reads)))
        return len(self.ops) - 1

    def graph(self, *, has_gaps: bool = False) -> lm.OpGraph:
        """The graph. Tensors have the largest ids that may be, where some are left out."""
        highest = max(tensor for _, _, tensor, _ in self.edges)
        gap = len(self.ops) + len(self.edges) - 1 - highest if has_gaps else 0
        kinds, shapes, reads = map(list, zip(*self.ops, strict=True))
        sizes = np.array([4 * int(np.prod(shape)) for shape in shapes])
        runs = np.array([kind not in ("parameter", "input") for kind in kinds])
        ops = {
            "name": [f"{kind}{i}" for i, kind in enumerate(kinds)],
            "kind": kinds,
            "output": [f"f32[{','.join(map(str, shape))}]" for shape in shapes],
            "args": [[[{"op": at} for at in some]] if some else None for some in reads],
            "output_bytes": sizes * runs,
            "param_bytes": sizes * np.array([kind == "parameter" for kind in kinds]),
            "flops": 10**7 * runs,
            "bytes_accessed": 3 * sizes * runs,
        }
        edges = [(a, b, t if t < 0 else t + gap, size) for a, b, t, size in self.edges]
        columns = zip(*edges, strict=True)
        return lm.OpGraph(ops, dict(zip(("src", "dst", "tensor", "bytes"), columns, strict=True)))


def drawn_graph(random: Random) -> lm.OpGraph:
    """Up to six ops that read up to seven stored tensors each."""
    columns, rows, width = _Columns(), random.choice((1, 4, 6)), random.choice((2, 8, 12))

    def stored(shape: tuple[int, ...]) -> int:
        return columns.add(random.choice(("parameter", "parameter", "input")), shape)

    made = [columns.add("input", (rows, width))]
    for _ in range(random.randint(1, 6)):
        at = random.choice(made[-2:])
        match random.choice(("Relu", "Sum", "MatMul", "Shape", "Sum")):
            case "Relu":
                made.append(columns.add("Relu", (rows, width), at))
            case "Sum":
                few = [stored((rows, width)) for _ in range(random.randint(0, 6))]
                made.append(columns.add("Sum", (rows, width), at, *few, random.choice(made)))
            case "MatMul":
                made.append(columns.add("MatMul", (rows, width), at, stored((width, width))))
            case "Shape":
                shape = columns.add("Shape", (2,), at, waits=True)
                if random.random() < 0.7:
                    made.append(columns.add("ConstantOfShape", (rows, width), shape))
    if len(columns.edges) == 0 or columns.ops[-1][0] == "input":
        columns.add("Relu", (rows, width), made[-1])
    return columns.graph(has_gaps=random.random() < 0.5)


def drawn_cluster(random: Random) -> lm.Cluster:
    """Two to four devices, fast or slow."""
    speeds = [random.choice((1e9, 1e12)) for _ in range(random.randint(2, 4))]
    types = [lm.DeviceType(f"t{i}", {"f32": speed}, 1e11) for i, speed in enumerate(speeds)]
    devices = [lm.Device(f"d{i}", f"t{i}", "1GiB") for i in range(len(speeds))]
    ends = range(len(speeds))
    links = [lm.Link(f"d{a}", f"d{b}", 1e11, 1e-7) for a in ends for b in ends if a != b]
    return lm.Cluster(devices, links, types)


@settings(max_examples=75)
@given(SEEDS, st.sampled_from(MESHES))
def test_programs_of_any_labels_are_graphs_that_a_user_could_give(seed, mesh):
    dimensions = Dimensions.of(drawn_graph(Random(seed)))
    program = shard(dimensions.graph, Layout(dimensions, mesh, drawn(dimensions, mesh, seed)))
    running = program.graph
    again = lm.OpGraph.from_document(running.to_document())
    assert again.is_same(running)


@settings(max_examples=15, deadline=None)
@given(SEEDS)
def test_a_plan_is_found_or_does_not_fit(seed):
    random = Random(seed)
    graph, cluster = drawn_graph(random), drawn_cluster(random)
    with contextlib.suppress(lm.InfeasibleError):
        lm.place(graph, cluster, "sharded")


def test_an_op_that_reads_a_shape_has_no_collective_before_it():
    """A sum of cut tensors whose shape alone is read: nothing is gathered for that."""
    columns = _Columns()
    at = columns.add("Relu", (8, 8), columns.add("input", (8, 8)))
    columns.add("Shape", (2,), at, waits=True)
    dimensions = Dimensions.of(columns.graph())
    mesh = MESHES[0]
    labels = np.array([[1, 1, 0]], dtype=np.int32)
    program = shard(dimensions.graph, Layout(dimensions, mesh, labels))
    assert sorted(program.graph.kinds) == ["Relu", "Relu", "Shape", "Shape", "input", "input"]


def transformed(graph: lm.OpGraph, how: str) -> lm.OpGraph:
    """The graph that runs: shards, replicas, micro-batches, or what is recomputed."""
    dimensions = Dimensions.of(graph)
    programs = {
        "shards": lambda: shard(
            graph, Layout(dimensions, MESHES[1], drawn(dimensions, MESHES[1], 5))
        ),
        "replicas": lambda: replicate(graph, 3),
        "parameter-server": lambda: replicate(graph, 3, aggregation="parameter-server"),
        "micro-batches": lambda: micro_batches(Program.of(graph), 4),
        "recomputation": lambda: recompute(graph, ["**"]),
    }
    return programs[how]().graph


@pytest.mark.parametrize(
    "how", ["shards", "replicas", "parameter-server", "micro-batches", "recomputation"]
)
def test_ids_that_are_left_out_change_nothing(how):
    graph = chain()
    document = graph.to_document()
    highest = graph.n_ops + graph.n_edges - 1
    edges = document["edges"] | {"tensor": (highest - graph.tensor.max() + graph.tensor).tolist()}
    gaps = lm.OpGraph.from_document(document | {"edges": edges})
    assert gaps.tensor.max() == highest
    assert transformed(gaps, how).digest == transformed(graph, how).digest
