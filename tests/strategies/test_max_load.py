"""Stages with the smallest largest load, beside brute force and beside cuts of linear orders."""

from __future__ import annotations

import gzip
import json
from itertools import combinations, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from folders import DATA

from loadmaster.base.errors import InfeasibleError, InputError
from loadmaster.readers.planners.max_load import MaxLoad
from loadmaster.strategies.pipelines.max_load import MaxLoadSplit, loads, split

INF = float("inf")


def node(number: int, work: float = 1.0, **more: Any) -> dict[str, Any]:
    return {
        "id": number,
        "supportedOnFpga": 1,
        "cpuLatency": 10 * work,
        "fpgaLatency": work,
        "isBackwardNode": 0,
        "colorClass": number,
        "size": 1.0,
        **more,
    }


def document(
    nodes: list[dict[str, Any]],
    edges: list[tuple[int, int, float]],
    devices: Any = (2, 0),
    **more: Any,
) -> dict[str, Any]:
    rows = [{"sourceId": a, "destId": b, "cost": c} for a, b, c in edges]
    head = {"maxFPGAs": devices[0], "maxCPUs": devices[1], "maxSizePerFPGA": 1e9}
    return {**head, "nodes": nodes, "edges": rows, **more}


def random_document(seed: int) -> dict[str, Any]:
    """Four to six nodes, some of one colour, some not for accelerators, perhaps a backward pass."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(4, 7))
    nodes = [
        node(i, round(float(rng.uniform(0, 5)), 2), size=float(rng.integers(1, 5)))
        for i in range(n)
    ]
    for one in nodes:
        one["cpuLatency"] = one["fpgaLatency"] * float(rng.choice([0.5, 1, 3, 10]))
        one["supportedOnFpga"] = int(rng.random() < 0.9)
        if rng.random() < 0.15:
            one["colorClass"] = int(rng.integers(n))
    cost = [round(float(c), 2) for c in rng.exponential(1.0, n)]
    pairs = [(i, j) for i, j in combinations(range(n), 2) if rng.random() < 0.35]
    edges = [(i, j, cost[i]) for i, j in pairs]
    if rng.random() < 0.4:
        back = [{**one, "id": one["id"] + 100, "isBackwardNode": 1} for one in nodes]
        nodes += back
        edges += [(j + 100, i + 100, cost[j]) for i, j in pairs]
        edges += [(i, i + 100, cost[i]) for i in range(n)] if rng.random() < 0.5 else []
        if rng.random() < 0.5:
            have = dict.fromkeys(a for a, _, _ in edges)
            edges = [(a, b, 0.25 if a >= 100 else c) for a, b, c in edges if a in have]
    rng.shuffle(nodes)
    devices = (int(rng.integers(0, 4)), int(rng.integers(0, 2)))
    return document(nodes, edges, devices, maxSizePerFPGA=float(rng.integers(6, 20)))


def brute(doc: dict[str, Any]) -> float:
    """The smallest largest load over all ways to give each node a stage, from the definition."""
    accelerators, cpus = doc["maxFPGAs"], doc["maxCPUs"]
    colours = sorted({one["colorClass"] for one in doc["nodes"]})
    place = {one["id"]: colours.index(one["colorClass"]) for one in doc["nodes"]}
    back = {one["id"] for one in doc["nodes"] if one["isBackwardNode"]}
    best = INF
    stages = accelerators + cpus
    if not stages:
        return INF
    for at in product(range(stages), repeat=len(colours)):
        ordered = all(
            at[place[e["sourceId"]]] <= at[place[e["destId"]]]
            for e in doc["edges"]
            if e["destId"] not in back
        ) and all(
            at[place[e["sourceId"]]] >= at[place[e["destId"]]]
            for e in doc["edges"]
            if e["sourceId"] in back
        )
        if ordered:
            for cores in combinations(range(stages), cpus):
                best = min(best, max(load(doc, place, at, s, s in cores) for s in range(stages)))
    return best


def load(doc: dict[str, Any], place: dict[int, int], at: Any, stage: int, on_cpu: bool) -> float:
    mine = [one for one in doc["nodes"] if at[place[one["id"]]] == stage]
    if on_cpu:
        return sum(one["cpuLatency"] for one in mine)
    if sum(one["size"] for one in mine) > doc["maxSizePerFPGA"]:
        return INF
    if not all(one["supportedOnFpga"] for one in mine):
        return INF
    ids = {one["id"] for one in mine}
    moved = {
        (e["sourceId"], e["cost"])
        for e in doc["edges"]
        if (e["sourceId"] in ids) != (e["destId"] in ids)
    }
    return sum(one["fpgaLatency"] for one in mine) + sum(cost for _, cost in moved)


def check(problem: MaxLoad, found: MaxLoadSplit) -> None:
    """The stages fit the devices."""
    assert found.on_cpu.sum() <= problem.cpus
    assert (~found.on_cpu).sum() <= problem.accelerators
    held = np.bincount(found.stage, problem.bytes, len(found.on_cpu))
    assert (held[~found.on_cpu] <= problem.memory).all()
    assert np.isfinite(found.loads).all()


@pytest.mark.parametrize("seed", range(150))
def test_no_contiguous_split_is_better(seed: int) -> None:
    doc = random_document(seed)
    problem = MaxLoad.from_document(doc)
    best = brute(doc)
    if best == INF:
        with pytest.raises(InfeasibleError, match="no contiguous stages fit"):
            split(problem)
        return
    found = split(problem)
    assert found.is_optimal
    check(problem, found)
    assert found.period == pytest.approx(best, rel=1e-9, abs=1e-9)


#: Optima by the authors' own program.
OPTIMA = {
    "bert24_inference": 17.7899,
    "bert24_training": 41.7458,
    "resnet50_inference": 33.7747,
    "resnet50_training": 78.6318,
    "op-resnet50_inference": 124.349,
    "op-bert_l-3_inference": 27.9186,
}


@pytest.mark.parametrize("name", OPTIMA)
def test_the_optima_of_the_authors_own_files(name: str) -> None:
    problem = MaxLoad.read(DATA / "pipelines" / f"max-load-{name}.json.gz")
    found = split(problem)
    assert found.is_optimal
    check(problem, found)
    assert found.period == pytest.approx(OPTIMA[name], rel=1e-5)


def test_an_output_is_paid_once_by_its_sender_and_once_by_each_reader() -> None:
    edges = [(0, 1, 0.5), (0, 2, 0.5), (0, 3, 0.5)]
    problem = MaxLoad.from_document(document([node(i) for i in range(4)], edges, (3, 0)))
    stage, cores = np.array([0, 1, 1, 2], dtype=np.int32), np.zeros(3, dtype=bool)
    assert loads(problem, stage, cores).tolist() == [1.5, 2.5, 1.5]
    assert loads(problem, stage, np.array([False, True, False])).tolist() == [1.5, 20, 1.5]


def test_backward_edges_may_point_either_way() -> None:
    nodes = [node(i) for i in range(3)]
    nodes += [node(10 + i, 2.0, isBackwardNode=1, colorClass=i) for i in range(3)]
    forward = [(0, 1, 0.1), (1, 2, 0.1)]
    mirrored = split(
        MaxLoad.from_document(document(nodes, [*forward, (12, 11, 0.1), (11, 10, 0.1)], (3, 0)))
    )
    along = split(
        MaxLoad.from_document(document(nodes, [*forward, (10, 11, 0.1), (11, 12, 0.1)], (3, 0)))
    )
    assert mirrored.period == along.period == pytest.approx(3.4)


def layered(rng: np.random.Generator, n: int, width: int, devices: Any = (4, 1)) -> dict[str, Any]:
    """Layers of ``width`` nodes that each read one or two of the layer before."""
    nodes = [node(i, float(rng.uniform(0.1, 2))) for i in range(n)]
    cost = rng.exponential(0.3, n).round(3)
    edges = [
        (int(a), i, float(cost[a]))
        for i in range(width, n)
        for a in set(rng.integers((i // width - 1) * width, i // width * width, 2).tolist())
    ]
    return document(nodes, edges, devices)


def linear_orders(n: int, edges: list[dict[str, Any]]) -> list[list[int]]:
    """Kahn's order by id, depth first, least live bytes."""
    after: list[list[int]] = [[] for _ in range(n)]
    before: list[list[int]] = [[] for _ in range(n)]
    cost = [0.0] * n
    for e in edges:
        after[e["sourceId"]].append(e["destId"])
        before[e["destId"]].append(e["sourceId"])
        cost[e["sourceId"]] = e["cost"]
    orders = []
    for kind in ("id", "depth", "bytes"):
        waits, unread = [len(b) for b in before], [len(a) for a in after]
        ready, order = [v for v in range(n) if not waits[v]][::-1], []

        def more(v: int, unread: list[int] = unread) -> tuple[float, int]:
            freed = sum(cost[u] for u in before[v] if unread[u] == 1)
            return ((cost[v] if after[v] else 0) - freed, v)

        while ready:
            v = {"id": min, "depth": lambda r: r[-1], "bytes": lambda r: min(r, key=more)}[kind](
                ready
            )
            ready.remove(v)
            order.append(v)
            for u in before[v]:
                unread[u] -= 1
            for w in after[v]:
                waits[w] -= 1
                if not waits[w]:
                    ready.append(w)
        orders.append(order)
    return orders


def best_cut(doc: dict[str, Any], order: list[int]) -> float:
    """The best contiguous cut of an order on accelerators alone, by the plain dynamic program."""
    n, k = len(order), doc["maxFPGAs"]
    work = {one["id"]: one["fpgaLatency"] for one in doc["nodes"]}
    at = {v: p for p, v in enumerate(order)}
    ends: dict[int, list[int]] = {}
    cost = {}
    for e in doc["edges"]:
        ends.setdefault(e["sourceId"], []).append(at[e["destId"]])
        cost[e["sourceId"]] = e["cost"]
    table = [[0.0] + [INF] * n] + [[INF] * (n + 1) for _ in range(k)]
    for a in range(n):
        for b in range(a + 1, n + 1):
            sent = sum(
                cost[v]
                for v, r in ends.items()
                if (a <= at[v] < b and any(not a <= p < b for p in r))
                or (at[v] < a and any(a <= p < b for p in r))
            )
            one = sum(work[v] for v in order[a:b]) + sent
            for f in range(k):
                table[f + 1][b] = min(table[f + 1][b], max(table[f][a], one))
    return min(row[n] for row in table)


@pytest.mark.parametrize("seed", range(4))
def test_where_downsets_explode_no_order_has_a_better_cut(seed: int) -> None:
    doc = layered(np.random.default_rng(seed), 80, 16)
    found = split(MaxLoad.from_document(doc))
    assert not found.is_optimal
    check(MaxLoad.from_document(doc), found)
    cuts = [best_cut(doc, order) for order in linear_orders(80, doc["edges"])]
    assert found.period <= min(cuts) * (1 + 1e-9)


def test_the_same_split_every_time() -> None:
    problem = MaxLoad.from_document(layered(np.random.default_rng(5), 600, 12))
    first, second = split(problem), split(problem)
    assert (first.stage == second.stage).all()
    assert (first.on_cpu == second.on_cpu).all()


def test_tens_of_thousands_of_nodes() -> None:
    problem = MaxLoad.from_document(layered(np.random.default_rng(0), 20_000, 40, (8, 0)))
    found = split(problem)
    check(problem, found)
    assert found.period < 1.25 * problem.times[:, 0].sum() / 8


def test_a_file_is_read_packed_or_not(tmp_path: Path) -> None:
    text = json.dumps(document([node(0), node(1)], [(0, 1, 0.5)])).encode()
    (tmp_path / "plain.json").write_bytes(text)
    (tmp_path / "packed.json.gz").write_bytes(gzip.compress(text))
    for name in ("plain.json", "packed.json.gz"):
        assert split(MaxLoad.read(tmp_path / name)).loads.tolist() == [1.5, 1.5]


TWO = [node(0), node(1)]


@pytest.mark.parametrize(
    ("doc", "said"),
    [
        ([], "no maxFPGAs"),
        ({"maxFPGAs": 1, "nodes": 3, "edges": []}, "nodes is no list"),
        (document([], []), "no nodes"),
        (document([node(0), node(0)], []), "two nodes have the id 0"),
        (document([node(0, id="a")], []), "has the id 'a'"),
        (document([node(7, cpuLatency=-1)], []), "node 7: cpuLatency is -1"),
        (document([node(7, fpgaLatency=INF)], []), "node 7: fpgaLatency is inf"),
        (document([node(7, size=1e30)], []), "node 7 has 1e\\+30 bytes"),
        (document([node(7, supportedOnFpga=2)], []), "node 7 has the supportedOnFpga 2"),
        (document([node(7, colorClass=0.5)], []), "node 7 has the colorClass 0.5"),
        (document(TWO, [(0, 9, 1.0)]), "edge 0 has the destId 9"),
        (document(TWO, [(0, 1, float("nan"))]), "edge 0: cost is nan"),
        (
            document([*TWO, node(2)], [(0, 1, 1.0), (0, 2, 2.0)]),
            "node 0 has an output that costs 1",
        ),
        (document(TWO, [], (-1, 0)), "maxFPGAs is -1"),
        (document(TWO, [], (1, 10**9)), "maxCPUs is 1000000000"),
        (document([node(0), node(1, isBackwardNode=1)], []), "node 1 is a backward node"),
        (
            document([*TWO, node(2, isBackwardNode=1, colorClass=0)], [(2, 1, 1.0)]),
            "edge 0 leads from the backward node 2",
        ),
    ],
)
def test_bad_input_is_refused_by_name(doc: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        split(MaxLoad.from_document(doc))


def test_times_that_add_up_to_infinity_are_refused() -> None:
    nodes = [node(i, fpgaLatency=1e308) for i in range(3)]
    with pytest.raises(InputError, match="too long"):
        split(MaxLoad.from_document(document(nodes, [])))


def test_too_many_devices_for_the_table_are_refused() -> None:
    problem = MaxLoad.from_document(layered(np.random.default_rng(0), 2000, 4, (1024, 1024)))
    with pytest.raises(InputError, match="at most 67108864 are supported"):
        split(problem)


def test_too_little_memory_for_many_nodes() -> None:
    doc = layered(np.random.default_rng(0), 5000, 50, (8, 0))
    with pytest.raises(InfeasibleError, match="no contiguous stages were found"):
        split(MaxLoad.from_document({**doc, "maxSizePerFPGA": 600.0}))


def test_too_little_memory_says_what_is_held() -> None:
    doc = document(TWO, [(0, 1, 1.0)], maxSizePerFPGA=0.0)
    with pytest.raises(InfeasibleError, match="hold 2 B in all"):
        split(MaxLoad.from_document(doc))
