"""Plans of small random graphs on small random clusters under random constraints. Each plan is
judged again in plain Python, each refusal is held against every placement there is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import permutations
from random import Random
from typing import Any
from unittest.mock import patch

import numpy as np
from rejudge import Asked, Meaning, Step, claim
from strategies import MS, brief

import loadmaster as lm
from loadmaster.judge.assignment import Assignment
from loadmaster.judge.policies import POLICIES
from loadmaster.judge.problem import Problem, ranks
from loadmaster.model.orders import ORDERS
from loadmaster.strategies import least_overflow

from .frame import target

#: Placements that are tried, at most, to hold a refusal or a bound against.
MOST = 400

#: Simulations of a walk for the least overflow. It comes after every placement was tried, and is
#: most of the time that a refusal takes.
WALK = 50


@target("placements", in_ci=100)
def one(random: Random) -> None:
    """A plan, a refusal, or a placement that nobody chose."""
    graph, cluster = drawn_graph(random, 9), drawn_cluster(random)
    if cluster is None:
        return
    methods = ["heft", "etf", "celeritas", "metis", "random", "given"] * 3
    # Where types differ, one of the seeds of auto starts a solver, which takes half a second.
    if len(cluster.types) == 1 or random.random() < 0.1:
        methods.append("auto")
    method = random.choice(methods)
    if method == "given":
        placed_at_random(random, graph, cluster)
    else:
        # The second judge knows no replicas.
        whole = {"split": "none"} if method == "auto" else {}
        planned(random, graph, cluster, method, brief(method) | whole)


@target("solvers", in_ci=2)
def solved(random: Random) -> None:
    """A plan by a solver, or a refusal."""
    graph, cluster = drawn_graph(random, 5), drawn_cluster(random)
    if cluster is not None:
        planned(random, graph, cluster, random.choice(["ilp", "cpsat"]), {"time_limit": 3})


# -- what is held against what ------------------------------------------------------------------


def planned(
    random: Random, graph: lm.OpGraph, cluster: lm.Cluster, method: str, options: dict[str, Any]
) -> None:
    """Places a graph; what comes of it must hold."""
    rules = drawn_rules(random, graph, cluster)
    asked = Asked(Meaning(graph), cluster, rules)
    on_oom = random.choice(["error", "error", "error", "best_effort"])
    try:
        with patch.object(least_overflow, "SIMULATIONS", WALK):
            plan = lm.place(graph, cluster, method, constraints=rules, on_oom=on_oom, **options)
    except lm.InfeasibleError as error:
        refusal_holds(asked, str(error))
        return
    except lm.InputError as error:
        claim(not asked.placements, "refused as contradictory:", error)
        return
    broken = asked.broken(plan.devices.tolist())
    claim(not broken, broken)
    Step(asked.meaning, cluster, plan.schedule).check()
    peak = plan.memory.peak.tolist()
    claim(plan.fits == fits(peak, cluster.memory), "fits is", plan.fits, "of", peak)
    claim(fits(peak, asked.room) or on_oom == "best_effort", "over the memory:", peak)
    steps = [plan.makespan]
    if "time_limit" in options or random.random() < 0.25:
        steps += [step for _, step, _ in judged(asked, ORDERS[:1])]
    least = min(steps) * (1 + 1e-9)
    claim(plan.lower_bound <= least, "the bound is above a step of", least)


def refusal_holds(asked: Asked, message: str) -> None:
    """No order in which one device may run the ops lets a placement fit, and what is said to be
    proved is so. A cut into stages need not be found: that promises less.
    """
    if asked.rules.contiguous and "proved" not in message:
        return
    for devices, _, peak in judged(asked, ORDERS):
        claim(not fits(peak, asked.room), devices, "fits, but:", message)


def judged(asked: Asked, orders: Sequence[Any]) -> Iterator[tuple[list[int], float, list[int]]]:
    """Every placement in some orders, by both policies, if there are few: devices, step, peaks."""
    placements = asked.placements
    if len(placements) > MOST:
        return
    graph, cluster = asked.meaning.graph, asked.cluster
    problem = Problem.make(graph, cluster, lm.costs.estimate(graph, cluster))
    priorities = [ranks(make(problem.graph)) for make in orders]
    for devices in placements:
        row = np.array(devices, dtype=np.int32)[problem.reduced.op_of]
        for priority in priorities:
            for policy in ("priority", "fixed"):
                verdict = problem.verdict(Assignment(row, priority, policy))
                yield devices, verdict.step_time, verdict.peak.tolist()


def placed_at_random(random: Random, graph: lm.OpGraph, cluster: lm.Cluster) -> None:
    """Simulates a placement that was drawn, under any policy."""
    asked = Asked(Meaning(graph), cluster, lm.Constraints())
    if not asked.placements:
        return
    devices = np.maximum(random.choice(asked.placements), 0)
    priority = [random.randrange(4) for _ in range(graph.n_ops)]
    policy = random.choice(POLICIES)
    try:
        seen = lm.simulate(graph, cluster, devices, priority, policy, seed=random.randrange(9))
    except lm.InputError as error:
        claim(policy == "fixed" and "fixed order" in str(error), "refused:", error)
        return
    Step(asked.meaning, cluster, seen).check()


def fits(peak: Sequence[int], room: Sequence[int]) -> bool:
    """Whether no peak is over its device's room."""
    return all(p <= r for p, r in zip(peak, room, strict=True))


# -- what is drawn ------------------------------------------------------------------------------


def drawn_graph(random: Random, most: int) -> lm.OpGraph:
    """Ops, parameters, views and in-place ops; shared tensors, control edges, sets, types."""
    n = random.randint(2, most)
    roles = [random.choice(["op", "op", "op", "parameter", "view", "in place"]) for _ in range(n)]
    roles[0] = random.choice(["op", "parameter"])
    roles[-1] = "op"
    out: list[int] = []
    alias = [-1] * n
    owner = list(range(n))
    edges: list[tuple[int, int, int]] = []
    for u, role in enumerate(roles):
        others = random.sample(range(u), min(u, random.randint(0, 3)))
        out.append(random.randint(1, 8))
        if role in ("view", "in place"):
            base = random.randrange(u)
            alias[u] = owner[u] = owner[base]
            out[u] = random.randint(1, out[base]) if role == "view" else out[base]
            edges.append((base, u, base))
            others = [s for s in others if s != base]
        if role != "parameter":
            edges += [(s, u, -1 if role == "view" or random.random() < 0.25 else s) for s in others]
    runs = [role in ("op", "in place") for role in roles]
    columns = {
        "name": [f"op{u}" for u in range(n)],
        "kind": [r if r == "parameter" else random.choice(["mm", "add"]) for r in roles],
        "module": [random.choice(["", "a", "b"]) for _ in range(n)],
        "phase": sorted((random.choice("fffbo") for _ in range(n)), key="fbo".index),
        "view": [int(role == "view") for role in roles],
        "alias_of": alias,
        "output_bytes": [
            (size if role == "op" else 0) + random.choice([0, 0, 0, 5]) * run
            for size, role, run in zip(out, roles, runs, strict=True)
        ],
        "param_bytes": [
            size if role == "parameter" else random.choice([0, 0, 0, 6]) * run
            for size, role, run in zip(out, roles, runs, strict=True)
        ],
        "workspace": [random.choice([0, 0, 4]) * run for run in runs],
        "colocation": random.choices(["", "left", "right"], [8, 1, 1], k=n),
        "device_types": [
            random.choice([""] * 16 + ["t0", "t1", "t0,t1"]) * (role != "view") for role in roles
        ],
        "time": {t: [random.randint(1, 5) * MS * run for run in runs] for t in ("t0", "t1")},
    }
    table = {
        "src": [s for s, _, _ in edges],
        "dst": [d for _, d, _ in edges],
        "tensor": [t for *_, t in edges],
        "bytes": [out[s] if t >= 0 else 0 for s, _, t in edges],
    }
    return lm.OpGraph(columns, table, name="drawn")


def drawn_cluster(random: Random) -> lm.Cluster | None:
    """Two or three devices, alike or not; None: some pair has no route, which is refused."""
    k, n_types = random.randint(2, 3), random.randint(1, 2)
    memory = random.choice([12, 20, 40, 1000])
    devices = [
        lm.Device(f"d{i}", f"t{i % n_types}", random.choice([memory, memory, memory // 2]))
        for i in range(k)
    ]
    kind = random.choice(["own", "bridge", "one-port", "line"])
    pairs = [(a, b) for a, b in permutations(range(k), 2) if kind != "line" or abs(a - b) == 1]
    pairs = [pair for pair in pairs if random.random() < 0.98]
    links = []
    for a, b in pairs:
        channels = {"bridge": ("bridge",), "one-port": (f"nic{a}", f"nic{b}")}.get(kind, ())
        speed, latency = random.choice([1000.0, 500.0]), random.randint(0, 2) * MS
        links.append(lm.Link(f"d{a}", f"d{b}", speed, latency, channels))
    reached = {(a, a) for a in range(k)} | set(pairs)
    for _ in range(k):
        reached |= {(a, d) for a, b in reached for c, d in reached if b == c}
    types, dispatch = drawn_runtime(random, n_types)
    try:
        cluster = lm.Cluster(devices, links, types, dispatch=dispatch)
    except lm.InputError as error:
        claim(len(reached) < k * k, "every pair has a route, but:", error)
        return None
    claim(len(reached) == k * k, "a pair has no route, but the cluster was made")
    return cluster


def drawn_runtime(random: Random, n_types: int) -> tuple[list[lm.DeviceType], lm.Dispatch | None]:
    """Device types, one of which may pay for sending, and what launches cost, if anything."""
    costs: list[lm.SendCost | None] = [None] * n_types
    if random.random() < 0.2:
        latency, speed = random.randint(0, 2) * MS, random.choice([1000.0, 500.0])
        costs[random.randrange(n_types)] = lm.SendCost(latency, speed)
    types = [lm.DeviceType(f"t{i}", send_cost=cost) for i, cost in enumerate(costs)]
    is_launched = random.random() < 0.2
    launch = lm.Dispatch(random.randint(1, 3) * MS, random.random() < 0.7)
    return types, launch if is_launched else None


def drawn_rules(random: Random, graph: lm.OpGraph, cluster: lm.Cluster) -> lm.Constraints:
    """None, or some of each kind that name what is there."""
    names = [device.name for device in cluster.devices]
    given: dict[str, Any] = {}
    if random.random() < 0.3:
        patterns = [f"op{random.randrange(graph.n_ops)}" for _ in range(random.randint(1, 2))]
        patterns += [m for m in ("a", "b") if m in graph.modules and random.random() < 0.1]
        given["pin"] = {p: random.sample(names, random.randint(1, 2)) for p in patterns}
    if random.random() < 0.1:
        given["reserve"] = {random.choice([*names, "*"]): random.randint(1, 6)}
    running = {m for m, k, v in zip(graph.modules, graph.kinds, graph.view, strict=True)
               if k != "parameter" and not v}  # fmt: skip
    if random.random() < 0.15:
        given["no_split"] = [m for m in ("a", "b") if m in running]
    if random.random() < 0.1:
        kinds = {k for k, v in zip(graph.kinds, graph.view, strict=True) if not v}
        given["kinds"] = {random.choice(names): random.choice(sorted(kinds - {"parameter"}))}
    given["contiguous"] = random.random() < 0.1
    return lm.Constraints(**given)
