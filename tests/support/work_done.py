"""The user's work in a program: how much of every op its copies do, and that what they read comes
from the ops that the user's op reads. Plain Python.
"""

from __future__ import annotations

from collections import defaultdict

from rejudge import claim

from loadmaster.model.program import Program

#: What sums of shares may be off by.
_NEAR = 1e-6


def check_work(program: Program) -> None:
    """Raises where work of the user's is missing, or flows from elsewhere."""
    sources, adds = _sources(program), program.own.tolist()
    parts = [program.parts_of(u).tolist() for u in range(program.source.n_ops)]
    for op, kind in enumerate(program.graph.kinds):
        phase = program.source.phases[program.serves[op]]
        claim(kind != "aggregate" or phase == "b", program.graph.names[op], "adds no gradients")
    reads, read_by = _reads(program), _read_by(program)
    for u, copies in enumerate(parts):
        _check_shares(program, u, copies)
        for copy in copies:
            reached = _reached(reads[copy], sources, adds)
            for s in read_by[u]:
                _check_edge(program, copy, s, [r for r in reached if program.serves[r] == s])


def _check_shares(program: Program, u: int, copies: list[int]) -> None:
    """The copies of an op do it once, or as a whole on several devices."""
    ranks = int(program.rank.max()) + 1 or 1
    replicas = int(program.replica.max()) + 1 or 1
    total = sum(float(program.share[copy]) for copy in copies)
    most = max(ranks, replicas) * _passes(program, u)
    name = program.source.names[u]
    claim(abs(total - round(total)) < _NEAR, name, "is done", total, "times")
    claim(1 <= round(total) <= most, name, "is done", total, "times on", most)


def _passes(program: Program, u: int) -> int:
    """How often a step does an op: a weight's copy per micro-batch is whole each time."""
    return max(int(program.micro.max()) + 1, 1) * 2


def _check_edge(program: Program, copy: int, s: int, reached: list[int]) -> None:
    """A copy reads some copy of what the user's op reads, of its own micro-batch; an update reads
    the gradient of every part of the batch.
    """
    names, op = program.source.names, int(program.serves[copy])
    words = (program.graph.names[copy], "reads", names[s])
    claim(bool(reached), *words, "nowhere")
    micro = int(program.micro[copy])
    of = {int(program.micro[r]) for r in reached}
    if micro >= 0:
        claim(of <= {-1, micro}, *words, "of micro-batches", of)
    elif max(of) >= 0:
        claim(of == set(range(int(program.micro.max()) + 1)), *words, "of micro-batches", of)
    if program.source.phases[op] == "o" and program.source.phases[s] == "b":
        share = sum(float(program.share[r]) for r in reached)
        claim(share >= float(program.share[copy]) - _NEAR, *words, "in parts of", share)


def _read_by(program: Program) -> list[set[int]]:
    """The ops whose tensors each of the user's ops reads."""
    source = program.source
    found: list[set[int]] = [set() for _ in range(source.n_ops)]
    for s, d, t in zip(*(c.tolist() for c in (source.src, source.dst, source.tensor)), strict=True):
        if t >= 0:
            found[d].add(s)
    return found


def _reads(program: Program) -> list[list[int]]:
    """The ops whose tensors each op of the program reads."""
    graph = program.graph
    found: list[list[int]] = [[] for _ in range(graph.n_ops)]
    for s, d, t in zip(*(c.tolist() for c in (graph.src, graph.dst, graph.tensor)), strict=True):
        if t >= 0:
            found[d].append(s)
    return found


def _sources(program: Program) -> list[list[int]]:
    """What each op reads; of a collective, what all of its members read."""
    reads, members = _reads(program), defaultdict(list)
    for u, label in enumerate(program.graph.collectives):
        if label:
            members[label].append(u)
    for together in members.values():
        read = sorted({s for u in together for s in reads[u]})
        for u in together:
            reads[u] = read
    return reads


def _reached(begin: list[int], sources: list[list[int]], adds: list[bool]) -> set[int]:
    """The first ops that do the user's work, on the ways back from some ops."""
    done: set[int] = set()
    ahead = list(begin)
    while ahead:
        u = ahead.pop()
        if u not in done:
            done.add(u)
            ahead += sources[u] if adds[u] else []
    return {u for u in done if not adds[u]}
