"""Coarsening: groups of ops as a graph, with the mapping back and a report of what was lost.

A group runs as one op. With fewer groups, placing is cheaper. With a smaller cut, a plan sends
less. Parallelism that is lost inside groups cannot be won back. The report shows all three.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, cached_property
from importlib import resources
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

import loadmaster.fast as fast
from loadmaster.base import checks
from loadmaster.base.disjoint_sets import DisjointSets
from loadmaster.base.errors import InputError
from loadmaster.base.files import parse_toml, read_text
from loadmaster.base.text import Printed, meant
from loadmaster.base.units import counted, format_bytes
from loadmaster.judge.coarse import CoarseProblem
from loadmaster.judge.problem import Problem, parallelism, summed
from loadmaster.judge.simulation import CostsLike, as_costs
from loadmaster.model.cluster import Cluster
from loadmaster.model.graph import OpGraph

Coarsener = Literal["sequential", "batch", "rules", "parallel", "multilevel"]
Order = Literal["best", "program", "m-topo", "dfs", "cpd"]

#: Rules: chains of kinds. A position of a chain has the kinds that match there, joined by "|".
Rules = Sequence[Sequence[str]]

#: Methods that minimise only the cut: a cap, relative to the mean, keeps their groups even.
_BALANCE = {"sequential": 1.35, "multilevel": 1.35}


@dataclass(frozen=True)
class Report(Printed):
    """The effect of a coarsening on a graph.

    Attributes
    ----------
    method : str
    wanted, groups : int
        Number of groups asked for, and made.
    ops : int
        Ops of the reduced graph.
    cut_bytes : int
        Bytes of the tensors between groups; a tensor counts once per group that reads it.
    cut_share : float
        Their transfer time / transfer time of all tensors; there a tensor counts once per op that
        reads it.
    ccr, ccr_before : float
        Sum of transfer times / sum of op times (Celeritas eq. (1)).
    parallelism, parallelism_before : float
        Work / critical path, with free transfers.
    largest_time, largest_bytes : float
        Largest share of all time, and of all bytes, in one group.
    acyclic : bool
        Whether the coarse graph has no cycle: always true, and checked.
    note : str
        Why there are more groups than asked for; else empty.
    """

    method: str
    wanted: int
    groups: int
    ops: int
    cut_bytes: int
    cut_share: float
    ccr_before: float
    ccr: float
    parallelism_before: float
    parallelism: float
    largest_time: float
    largest_bytes: float
    acyclic: bool
    note: str = ""

    def to_document(self) -> dict[str, Any]:
        """As plain data for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        lines = [
            f"{self.method}: {counted(self.ops, 'op')} -> {counted(self.groups, 'group')}, "
            f"{'no cycle' if self.acyclic else 'A CYCLE'}",
            f"cut          {format_bytes(self.cut_bytes)}, {self.cut_share:.2%} of transfer time",
            f"CCR          {self.ccr_before:.3g} -> {self.ccr:.3g}",
            f"parallelism  {self.parallelism_before:.2f} -> {self.parallelism:.2f}",
            f"largest      {self.largest_time:.1%} of the time, "
            f"{self.largest_bytes:.1%} of the bytes",
        ]
        return "\n".join([*lines, self.note] if self.note else lines)


@dataclass(frozen=True)
class Coarse(CoarseProblem, Printed):
    """A coarsened graph, its groups numbered in a topological order.

    Attributes
    ----------
    report : Report
    """

    report: Report

    def __str__(self) -> str:
        return str(self.report)

    @property
    def mapping(self) -> NDArray[np.int32]:
        """Group per op of the user's graph, int32 [n_ops]: op ``i`` is in op ``mapping[i]`` of
        :attr:`graph`. Views and placeholders are where the op is that decides for them.
        """
        return self.group[self.problem.reduced.map]

    @cached_property
    def graph(self) -> OpGraph:
        """The coarse graph: op ``g`` is group ``g``.

        After the groups come the parameters and inputs that several groups read, as placeholders
        without time or bytes of their own.
        """
        return _as_opgraph(self)


def coarsen(
    graph: OpGraph,
    method: Coarsener = "parallel",
    groups: int = 200,
    *,
    cluster: Cluster | None = None,
    costs: CostsLike | None = None,
    balance: float | None = None,
    max_bytes: int | None = None,
    order: Order = "best",
    rules: Rules | str | os.PathLike[str] | None = None,
) -> Coarse:
    """Merges ops into groups.

    Parameters
    ----------
    graph : OpGraph
    method : str
        ``"parallel"``: first the merge that lengthens paths least, which keeps branches apart;
        ``"multilevel"``: the least cut between even groups; ``"batch"``: heaviest edge first (Pesto
        3.3); ``"sequential"``: segments of an order (Celeritas 5.1); ``"rules"``: chains of kinds
        that one kernel runs (Moirai III-B).
    groups : int
        Number of groups to stop at. Where limits allow no fewer, ``report.note`` says why.
    cluster : Cluster, optional
        Op times and the mean link come from it; the preset ``4xV100-PCIe`` if absent.
    costs : as :func:`loadmaster.place` takes them, optional
        Seconds, as for :func:`loadmaster.place`.
    balance : float, optional
        Most time in a group, as a multiple of the mean over ``groups`` groups (or the longest op,
        if that is longer). If absent 1.35 for ``sequential`` and ``multilevel``, else none.
    max_bytes : int, optional
        Most bytes in a group: resident and outputs.
    order : str
        For ``sequential``: ``"program"`` (the graph's own numbering), ``"m-topo"``, ``"dfs"``,
        ``"cpd"``, or ``"best"``: the one of these whose cut is least.
    rules : path or sequence of sequences of str, optional
        For ``rules``: chains of kinds such as ``["Conv", "Relu|Clip"]``, or a TOML file that has
        them under ``rules``; those for ATen, ONNX and TensorFlow kinds if absent.

    Returns
    -------
    Coarse
        ``.graph`` (OpGraph), ``.mapping`` (group per op) and ``.report``.

    Raises
    ------
    InputError
        An unknown method or order, a bad number, a file that holds no rules.

    Examples
    --------
    >>> import loadmaster as lm
    >>> coarse = lm.coarsen(lm.read("example:inception-v3"), groups=100)
    >>> coarse.report.groups, coarse.report.acyclic
    (100, True)
    >>> len(coarse.mapping) == lm.read("example:inception-v3").n_ops
    True
    """
    cluster = Cluster.preset("4xV100-PCIe") if cluster is None else cluster
    problem = Problem.make(graph, cluster, as_costs(costs, graph, cluster))
    return coarsen_problem(
        problem, method, groups, balance=balance, max_bytes=max_bytes, order=order, rules=rules
    )


def coarsen_problem(
    problem: Problem,
    method: Coarsener,
    groups: int,
    *,
    balance: float | None = None,
    max_bytes: int | None = None,
    order: Order = "best",
    rules: Rules | str | os.PathLike[str] | None = None,
) -> Coarse:
    """As :func:`coarsen`, for a problem that strategies place."""
    if method not in get_args(Coarsener):
        raise InputError(
            f"no coarsening method is named {method!r}{meant(method, get_args(Coarsener))}"
        )
    checks.integer("groups", groups, most=2**63 - 1, wants="an integer, at least 1")
    if balance is not None:
        checks.number("balance", balance, "a number, at least 1", lambda v: v >= 1)
    if max_bytes is not None:
        checks.integer("max_bytes", max_bytes, 0, 2**64 - 1, wants="a number of bytes")
    if order not in get_args(Order):
        raise InputError(f"no order is named {order!r}; there are {', '.join(get_args(Order))}")
    limits = _Limits(groups, _max_time(problem, method, groups, balance), max_bytes)
    if method == "sequential":
        group, obstacles = _sequential(problem, limits, order)
    elif method == "rules":
        group, obstacles = _fuse(problem, limits, rules)
    else:
        group, obstacles = _MERGERS[method](
            problem.weights, groups, max_time=limits.max_time, max_bytes=max_bytes
        )
    return Coarse(problem, group, _report(problem, method, limits, group, obstacles))


_MERGERS: dict[str, Callable[..., tuple[NDArray[np.int32], Mapping[str, Any]]]] = {
    "batch": fast.batch_merge,
    "parallel": fast.parallel_merge,
    "multilevel": fast.multilevel_partition,
}


@dataclass(frozen=True)
class _Limits:
    groups: int
    max_time: float | None
    max_bytes: int | None


def _max_time(problem: Problem, method: str, groups: int, balance: float | None) -> float | None:
    balance = _BALANCE.get(method) if balance is None else balance
    if balance is None or math.isinf(balance):
        return None
    return max(balance * float(problem.op_time.sum()) / groups, float(problem.op_time.max()))


def _sequential(
    problem: Problem, limits: _Limits, order: Order
) -> tuple[NDArray[np.int32], Mapping[str, Any]]:
    graph = problem.graph
    attempts: list[tuple[tuple[int, float], NDArray[np.int32]]] = []
    for sequence in _orders(problem, order):
        cuts, _ = fast.exact_breakpoints(
            problem.weights,
            sequence,
            limits.groups,
            max_time=limits.max_time,
            max_bytes=limits.max_bytes,
        )
        group = fast.segments(sequence, cuts)
        # The cuts ignore the homes of parameters; the coarse graph has them.
        sent = _sent(problem, fast.contract(graph, group))
        attempts.append(((len(cuts), sent), group))
    _, group = min(attempts, key=lambda pair: pair[0])
    return group, _between_segments(problem, limits, group)


def _orders(problem: Problem, order: Order) -> list[NDArray[np.int32]]:
    graph = problem.graph

    def program() -> NDArray[np.int32]:
        src, dst, _, _, home = fast.edges(graph)
        own = np.arange(graph.n_ops, dtype=np.int32)
        return own if np.all((src < dst) | home) else fast.m_topo(graph)

    makers: dict[str, Callable[[], NDArray[np.int32]]] = {
        "program": program,
        "m-topo": lambda: fast.m_topo(graph),
        "dfs": lambda: fast.dfs_topo(graph),
        "cpd": lambda: fast.cpd_topo(problem.weights),
    }
    return [make() for make in makers.values()] if order == "best" else [makers[order]()]


def _between_segments(
    problem: Problem, limits: _Limits, group: NDArray[np.int32]
) -> Mapping[str, Any]:
    """Why neighbouring segments were not merged."""
    n = int(group.max()) + 1
    if n <= limits.groups:
        return {}
    time = np.bincount(group, weights=problem.op_time, minlength=n)
    allowed = np.zeros(n, dtype=np.uint64)
    allowed[group] = problem.graph.allowed
    types = allowed[1:] != allowed[:-1]
    late = ~types & (time[1:] + time[:-1] > (limits.max_time or math.inf))
    counts = {"types": types, "max_time": late, "max_bytes": ~types & ~late}
    return {reason: int(pairs.sum()) for reason, pairs in counts.items()}


def _fuse(
    problem: Problem, limits: _Limits, rules: Rules | str | os.PathLike[str] | None
) -> tuple[NDArray[np.int32], Mapping[str, Any]]:
    if rules is None:
        chains = default_rules()
    elif isinstance(rules, (str, os.PathLike)):
        chains = read_rules(rules)
    else:
        chains = _checked_rules("rules", rules)
    kinds = [_base_kind(problem.model.kinds[op]) for op in problem.reduced.op_of]
    numbers = {kind: i for i, kind in enumerate(dict.fromkeys(kinds))}
    numbered = [
        [[numbers[k] for k in position.split("|") if k in numbers] for position in chain]
        for chain in chains
    ]
    return fast.fuse(
        fast.Weights(problem.graph, problem.op_time),
        np.array([numbers[kind] for kind in kinds], dtype=np.int64),
        numbered,
        limits.groups,
        max_time=limits.max_time,
        max_bytes=limits.max_bytes,
    )


def _base_kind(kind: str) -> str:
    """A kind as rules call it: an ATen op without its overload and trailing underscore."""
    if not kind.startswith("aten."):
        return kind
    return "aten." + kind.split(".")[1].rstrip("_")


def read_rules(path: str | os.PathLike[str]) -> tuple[tuple[str, ...], ...]:
    """Fusion rules from a TOML file: ``rules = [["Conv", "Relu|Clip"], ...]``.

    Raises
    ------
    InputError
        No such file, no TOML, or no lists of kinds.
    """
    return _parsed_rules(read_text(path), str(path))


@cache
def default_rules() -> tuple[tuple[str, ...], ...]:
    """The rules of this package, for ATen, ONNX and TensorFlow kinds."""
    folder = resources.files("loadmaster.judge") / "coarsen_rules"
    names = ("aten.toml", "onnx.toml", "tensorflow.toml")
    return tuple(r for n in names for r in _parsed_rules((folder / n).read_text("utf-8"), n))


def _parsed_rules(text: str, source: str) -> tuple[tuple[str, ...], ...]:
    document = parse_toml(text, source)
    if "rules" not in document:
        raise InputError(f"{source} has no list 'rules'")
    return _checked_rules(f"{source}: rules", document["rules"])


def _checked_rules(argument: str, rules: Any) -> tuple[tuple[str, ...], ...]:
    if isinstance(rules, str) or not isinstance(rules, Sequence):
        raise InputError(f"{argument} is {rules!r}: wants a list of lists of kinds")
    for i, rule in enumerate(rules):
        if isinstance(rule, str) or not isinstance(rule, Sequence) or len(rule) < 2:
            raise InputError(f"{argument}[{i}] is {rule!r}: wants a list of at least two kinds")
        for kind in rule:
            if not isinstance(kind, str) or not all(kind.split("|")):
                raise InputError(f"{argument}[{i}] has {kind!r}: wants kinds, joined by '|'")
    return tuple(tuple(rule) for rule in rules)


# -- the report ------------------------------------------------------------------------------


def _report(
    problem: Problem,
    method: str,
    limits: _Limits,
    group: NDArray[np.int32],
    obstacles: Mapping[str, Any],
) -> Report:
    coarse = fast.contract(problem.graph, group)
    n = coarse.n_ops
    sizes = fast.edges(coarse)[3]
    time = np.bincount(group, weights=problem.op_time, minlength=n).astype(np.float64)
    work, static = float(time.sum()), coarse.static_bytes.astype(np.float64)
    sent, sent_before = _sent(problem, coarse), _sent(problem, problem.graph)
    return Report(
        method=method,
        wanted=limits.groups,
        groups=n,
        ops=problem.graph.n_ops,
        cut_bytes=int(sizes.sum()),
        cut_share=sent / sent_before if sent_before else 0.0,
        ccr_before=sent_before / work if work else 0.0,
        ccr=sent / work if work else 0.0,
        parallelism_before=parallelism(problem.graph, problem.op_time),
        parallelism=parallelism(coarse, time),
        largest_time=float(time.max()) / work if work else 0.0,
        largest_bytes=float(static.max() / static.sum()) if static.any() else 0.0,
        acyclic=len(fast.m_topo(coarse)) == n,
        note=_note(method, limits, n, obstacles),
    )


def _sent(problem: Problem, graph: fast.Graph) -> float:
    """Seconds of transfer; a tensor counts once per op that reads it."""
    _, _, tensor, sizes, _ = fast.edges(graph)
    latency, per_byte = problem.links.mean_link
    return float(len(tensor)) * latency + float(sizes.sum(dtype=np.float64)) * per_byte


def _note(method: str, limits: _Limits, n: int, obstacles: Mapping[str, Any]) -> str:
    if n <= limits.groups:
        return ""
    texts = {
        "types": "they allow different device types",
        "max_time": f"a group may take {limits.max_time or 0:.3g} s at most",
        "max_bytes": f"a group may hold {format_bytes(limits.max_bytes or 0)} at most",
        "cycle": "merging them might close a cycle",
    }
    notes = {key: text for key, text in texts.items() if obstacles.get(key)}
    reasons = [f"{text} ({obstacles[key]} pairs)" for key, text in notes.items()]
    if obstacles.get("slow"):
        reasons.append("merging went on too slowly")
    if not reasons:
        reasons = ["no other rule matches" if method == "rules" else "no two of them are joined"]
    return f"{counted(n, 'group')}, not {limits.groups}: " + "; ".join(reasons)


# -- the coarse graph as a user's graph --------------------------------------------------------


def _as_opgraph(coarse: Coarse) -> OpGraph:
    problem, mapping = coarse.problem, coarse.mapping
    model, graph = problem.model, coarse.contracted
    n = graph.n_ops
    sources, dst, tensors, sizes, home = fast.edges(graph)
    src, tensor = sources.astype(np.int64), tensors.astype(np.int64)
    # A tensor is known by its source and id; a tensor that exists at time 0 gets an op of its own.
    key = (src * 2 + home) * (int(tensor.max(initial=0)) + 2) + tensor
    data = tensor >= 0
    _, number = np.unique(key[data], return_inverse=True)
    tensor[data] = number
    of_home, slot = np.unique(tensor[home], return_inverse=True)
    home_group = np.zeros(len(of_home), dtype=np.int64)
    home_group[slot] = src[home]
    src[home] = n + slot
    sets = _bound_together(problem.graph.colocation, coarse.group, home_group, n)
    extra = len(of_home)
    longest = _longest_member(coarse)

    def column(values: Sequence[str]) -> list[str]:
        return [values[op] for op in longest]

    def total(values: NDArray[np.uint64]) -> list[int]:
        return [*summed(values, mapping, n).tolist(), *[0] * extra]

    ops = {
        "name": [f"{g}: {model.names[op]}" for g, op in enumerate(longest)]
        + [f"{n + i}: read from {g}" for i, g in enumerate(home_group)],
        "kind": column(model.kinds) + ["parameter"] * extra,
        "module": column(model.modules) + [""] * extra,
        "phase": column(model.phases) + [""] * extra,
        "colocation": sets,
        "device_types": _type_names(graph.allowed, problem.costs.types) + [""] * extra,
        "flops": total(model.flops),
        "bytes_accessed": total(model.bytes_accessed),
        "output_bytes": (graph.static_bytes - graph.resident).tolist() + [0] * extra,
        "param_bytes": graph.resident.tolist() + [0] * extra,
        "workspace": graph.workspace.tolist() + [0] * extra,
        "time": {
            name: coarse.sum(np.ascontiguousarray(times)).tolist() + [0.0] * extra
            for name, times in zip(problem.costs.types, problem.time.T, strict=True)
        },
    }
    table = {"src": src, "dst": dst, "tensor": tensor, "bytes": sizes}
    return OpGraph(ops, table, name=f"{model.name or 'graph'} in {counted(n, 'group')}")


def _longest_member(coarse: Coarse) -> NDArray[np.int64]:
    """The longest op of each group, as a user's op; of equals the first."""
    time = coarse.problem.op_time
    by_time = np.lexsort((np.arange(len(time)), -time))
    first = np.full(coarse.report.groups, -1, dtype=np.int64)
    first[coarse.group[by_time[::-1]]] = by_time[::-1]
    return coarse.problem.reduced.op_of[first].astype(np.int64)


def _bound_together(
    set_of: NDArray[np.int32], group: NDArray[np.int32], homes: NDArray[np.int64], n: int
) -> list[str]:
    """A colocation label per group and placeholder.

    Groups that share a colocated set get one label. A placeholder gets the label of its home.
    """
    sets = DisjointSets[int]()
    first: dict[int, int] = {}
    bound = {int(h) for h in homes}
    for s, g in np.unique(np.stack([set_of, group], axis=1), axis=0).tolist():
        root, other = sets.find(first.setdefault(s, g)), sets.find(g)
        if root != other:
            sets[max(root, other)] = min(root, other)
            bound |= {root, other}
    roots = [sets.find(g) for g in range(n)]
    labelled = {roots[g] for g in bound}
    labels = [f"with group {r}" if r in labelled else "" for r in roots]
    return labels + [labels[h] for h in homes]


def _type_names(allowed: NDArray[np.uint64], types: Sequence[str]) -> list[str]:
    every = (1 << len(types)) - 1
    names = {}
    for mask in set(allowed.tolist()):
        some = [name for k, name in enumerate(types) if mask >> k & 1]
        names[mask] = "" if mask & every == every else ",".join(some)
    return [names[mask] for mask in allowed.tolist()]
