"""Small instances, and their optima by trying everything: placements, orders, links' orders."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
from strategies import MS

import loadmaster as lm
from loadmaster.judge.bounds import bound
from loadmaster.judge.problem import Problem, ranks
from loadmaster.milp.instance import Message, MilpInstance, instance_of
from loadmaster.milp.memory import least_relaxation
from loadmaster.milp.timing import Timed, timed


def drawn(seed: int, max_ops: int = 6, max_devices: int = 3, shared: bool = False) -> Problem:
    """A problem of up to six ops of 1 to 9 ms on up to three devices of one or two types: shared
    tensors, control edges, links of different speeds, colocation, forbidden types, little memory.
    """
    random = np.random.default_rng(seed)
    n, k = int(random.integers(2, max_ops + 1)), int(random.integers(2, max_devices + 1))
    src, dst, tensor, size = [], [], [], random.integers(0, 9, 2 * n)
    ids: dict[tuple[int, bool], int] = {}
    for j in range(1, n):
        for i in random.permutation(j)[: random.integers(0, 3)].tolist():
            which = int(random.integers(0, 5))
            src.append(i)
            dst.append(j)
            number = ids.setdefault((i, which == 3), len(ids))
            tensor.append(-1 if which == 4 else number)
    n_types = int(random.integers(1, 3))
    devices = [f"t{d % n_types}" for d in range(k)]
    kinds = ["", "", "", "t0", "t1" if n_types == 2 else ""]
    sets = ["", "", "", "left", "right"]
    allowed = [kinds[i] for i in random.integers(0, 5, n)]
    groups = [sets[i] for i in random.integers(0, 5, n)]
    for name in ("left", "right"):
        # Colocated ops allow the same types.
        members = [i for i in range(n) if groups[i] == name]
        for i in members:
            allowed[i] = allowed[members[0]]
    weight = random.integers(1, 9, n)
    ops = {
        "name": [f"o{i}" for i in range(n)],
        "param_bytes": weight.tolist(),
        "colocation": groups,
        "device_types": allowed,
        "time": {f"t{t}": (random.integers(1, 10, n) * MS).tolist() for t in range(n_types)},
    }
    table = {
        "src": src,
        "dst": dst,
        "tensor": tensor,
        "bytes": [int(size[t]) if t >= 0 else 0 for t in tensor],
    }
    total = int(weight.sum() + size.sum())
    memory = int(random.choice([total, 3 * total // 4, total // 2 + 4]))
    links = [
        lm.Link(
            f"d{a}",
            f"d{b}",
            float(random.choice([1000.0, 500.0])),
            int(random.integers(0, 3)) * MS,
            (f"tx{a}", f"rx{b}") if shared else (),
        )
        for a, b in itertools.permutations(range(k), 2)
    ]
    cluster = lm.Cluster([lm.Device(f"d{i}", t, memory) for i, t in enumerate(devices)], links)
    graph = lm.OpGraph(ops, table)
    return Problem.make(graph, cluster, lm.costs.estimate(graph, cluster))


def static_instance(problem: Problem) -> MilpInstance:
    """Resident bytes and outputs charged for the whole step."""
    return instance_of(problem, problem.graph.static_bytes, bound(problem).seconds)


def some_start(instance: MilpInstance) -> Timed | None:
    """Any schedule; None: no placement fits."""
    found = least_relaxation(instance.unit_allowed, instance.unit_charge, instance.capacity)
    if found.total:
        return None
    devices = instance.canonical(found.devices[instance.unit])
    return timed(instance, devices, np.array(instance.topological, dtype=np.int32))


def placements(instance: MilpInstance) -> Iterator[np.ndarray]:
    """All that fit."""
    choices = [np.flatnonzero(row).tolist() for row in instance.unit_allowed]
    for chosen in itertools.product(*choices):
        used = np.bincount(chosen, instance.unit_charge, minlength=instance.n_devices)
        if (used <= instance.capacity).all():
            yield np.array(chosen, dtype=np.int32)[instance.unit]


def orders(instance: MilpInstance, devices: np.ndarray) -> Iterator[np.ndarray]:
    """Topological orders, one for each set of sequences of the devices."""
    seen = set()
    for order in _topological(instance, []):
        key = tuple(tuple(u for u in order if devices[u] == d) for d in range(instance.n_devices))
        if key not in seen:
            seen.add(key)
            yield np.array(order, dtype=np.int32)


def _topological(instance: MilpInstance, done: list[int]) -> Iterator[list[int]]:
    if len(done) == instance.n_ops:
        yield list(done)
    for op in range(instance.n_ops):
        if op not in done and all(s in done for s, r in instance.edges if r == op):
            done.append(op)
            yield from _topological(instance, done)
            done.pop()


def simulated_optimum(problem: Problem, instance: MilpInstance) -> float | None:
    """The least that the judge sees, channels first come, first served; None: nothing fits."""
    return min(
        (
            problem.simulate(devices, ranks(order), policy="fixed").makespan
            for devices in placements(instance)
            for order in orders(instance, devices)
        ),
        default=None,
    )


def free_optimum(instance: MilpInstance) -> int | None:
    """Ticks of the best schedule where transfers that share no channel overlap, in any order."""
    best = None
    for devices in placements(instance):
        upper = min(timed(instance, devices, order).makespan for order in orders(instance, devices))
        best = upper if best is None else min(best, upper)
        best = _Search(instance, devices, best).run()
    return best


class _Search:
    """Branch and bound over ops and transfers in order of their starts."""

    def __init__(self, instance: MilpInstance, devices: np.ndarray, best: int) -> None:
        self.instance, self.best = instance, best
        on = devices.tolist()
        self.length = {u: int(instance.time[u, on[u]]) for u in range(instance.n_ops)}
        self.holds = {u: {("device", on[u])} for u in range(instance.n_ops)}
        self.after: dict = {u: {s for s, r in instance.edges if r == u} for u in self.length}
        for t, tensor in enumerate(instance.tensors):
            here = on[tensor.source]
            for d in {on[r] for r in tensor.readers} - {here}:
                message = Message(t, d)
                self.length[message] = int(tensor.time[here, d])
                self.holds[message] = {
                    ("channel", c) for c, held in enumerate(instance.channels) if (here, d) in held
                }
                self.after[message] = set() if tensor.home else {tensor.source}
                for r in tensor.readers:
                    if on[r] == d:
                        self.after[r] = self.after[r] | {message}
        self.tail = {u: int(instance.tail[u, on[u]]) for u in range(instance.n_ops)}

    def run(self) -> int:
        self._go({}, {})
        return self.best

    def _go(self, finish: dict, free: dict) -> None:
        if len(finish) == len(self.length):
            self.best = min(self.best, max(finish.values()))
            return
        eligible = {
            task: max(
                [finish[p] for p in self.after[task]] + [free.get(h, 0) for h in self.holds[task]],
                default=0,
            )
            for task in self.length
            if task not in finish and all(p in finish for p in self.after[task])
        }
        first = min(eligible, key=lambda task: eligible[task] + self.length[task])
        soon = eligible[first] + self.length[first]
        for task, start in eligible.items():
            if task is not first and start >= soon:
                continue
            end = start + self.length[task]
            if end + self.tail.get(task, 0) >= self.best:
                continue
            self._go({**finish, task: end}, {**free, **dict.fromkeys(self.holds[task], end)})
