"""Pipelines built by hand: programs with micro-batches and stages, op by op."""

from __future__ import annotations

import itertools

import numpy as np

import loadmaster as lm
from loadmaster.judge.problem import Problem
from loadmaster.model.program import Program
from loadmaster.strategies.pipelines.batched import MicroBatched
from loadmaster.strategies.pipelines.staged import Staged

MS = 1e-3


def cluster(p: int, memory: int | str = "1GiB", latency: float = 0.0) -> lm.Cluster:
    """Devices whose links carry one byte per millisecond."""
    return lm.Cluster.mesh(p, memory=memory, bandwidth=1000.0, latency=latency)


def program(m: int, forward, backward=(), weight=(), update=(), *, kept: int = 0, sent: int = 0):
    """A program of stages that follow each other; times per stage in ms, bytes of what is kept for
    the backward pass and of what is sent.

    The forward op of a stage reads the stage before it. Its backward op reads the forward op and
    the backward op of the stage after it. Gradients of weights (if they are apart) are summed over
    micro-batches, and an update reads the sum.
    """
    source, where = _step(1, forward, backward, weight, update, kept, sent)
    graph, columns = _step(m, forward, backward, weight, update, kept, sent)
    at = {key: i for i, key in enumerate(zip(*where, strict=True))}
    kinds, stages, micros = columns
    serves = [
        at[kind, stage, -1 if kind == "U" else 0] for kind, stage in zip(kinds, stages, strict=True)
    ]
    made = Program.made(source, graph, np.array(serves), micro=np.array(micros, dtype=np.int32))
    return made, np.array(where[1], dtype=np.int32)


def _step(m, forward, backward, weight, update, kept, sent):
    """The graph of m micro-batches, and for each op its kind, its stage and its micro-batch."""
    rows: list[tuple[str, int, int]] = []
    for j in range(m):
        rows += [("F", k, j) for k in range(len(forward))]
        for k in reversed(range(len(backward))):
            rows.append(("B", k, j))
            rows += [("W", k, j)] * bool(len(weight))
    rows += [("U", k, -1) for k in range(len(update))]
    at = {row: i for i, row in enumerate(rows)}
    edges: list[tuple[int, int, int, int]] = []
    fresh = itertools.count()

    def tensor(source, readers, size):
        """A tensor that ops of the rows ``readers`` read, of those that there are."""
        if some := [at[reader] for reader in readers if reader in at]:
            name = next(fresh)
            edges.extend((at[source], reader, name, size) for reader in some)

    for j in range(m):
        for k in range(len(forward)):
            tensor(("F", k, j), [("F", k + 1, j)], sent)
            tensor(("F", k, j), [("B", k, j)], kept)
            tensor(("F", k, j), [("W", k, j)], kept)
        for k in range(len(backward)):
            tensor(("B", k, j), [("B", k - 1, j)], sent)
            tensor(("B", k, j), [("W", k, j)] if len(weight) else [("U", k, -1)], 0)
        for k in range(len(weight)):
            tensor(("W", k, j), [("U", k, -1)], 0)
    times = {"F": forward, "B": backward, "W": weight, "U": update}
    phases = {"F": "f", "B": "b", "W": "b", "U": "o"}
    src, dst, ids, sizes = zip(*edges, strict=True)
    graph = lm.OpGraph(
        {
            "name": [f"{kind}{k}" + (f"@m{j}" if j >= 0 else "") for kind, k, j in rows],
            "kind": ["op"] * len(rows),
            "phase": [phases[kind] for kind, _, _ in rows],
            "time": {"*": [times[kind][k] * MS for kind, k, _ in rows]},
        },
        {"src": src, "dst": dst, "tensor": ids, "bytes": sizes},
    )
    return graph, tuple(zip(*rows, strict=True))


def staged(m: int, times, *, virtual=1, in_v=False, memory="1GiB", latency=0.0, **bytes_) -> Staged:
    """The same as a problem, with stage k on device k mod p, or through the devices and back."""
    made, stage = program(m, *times, **bytes_)
    n = len(times[0])
    p = n // virtual
    devices = cluster(p, memory, latency)
    whole = Problem.make(made.source, devices, lm.costs.estimate(made.source, devices))
    of = np.arange(n)
    batched = MicroBatched(whole.transformed(made))
    return Staged.of(batched, stage, np.minimum(of, n - 1 - of) if in_v else of % p)


def uniform(p: int, m: int, *passes, virtual: int = 1, **more) -> Staged:
    """Stages that all take the same: ms of each pass; (): there is none."""
    times = [[] if ms == () else [ms] * (p * virtual) for ms in passes]
    return staged(m, times, virtual=virtual, **more)


def plan_of(candidate, method: str = "pipeline") -> lm.Plan:
    """A candidate as the plan that it would be."""
    return lm.Plan(
        problem=candidate.problem,
        assignment=candidate.assignment,
        verdict=candidate.verdict,
        method=method,
        options={},
        lower_bound=0.0,
        bound_source="nothing",
        notes=candidate.notes,
    )
