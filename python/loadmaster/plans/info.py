"""Facts about a graph: sizes, FLOPs, CCR and parallelism, before and after coarsening.

The columns of Celeritas' Table 2, with parallelism (work / critical path) beside the CCR, since a
coarse graph that serialises branches looks good by the CCR alone.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

import loadmaster.fast as fast
from loadmaster.base.errors import InputError
from loadmaster.base.text import in_lines
from loadmaster.base.units import counted, format_bytes, format_count, format_seconds
from loadmaster.judge.coarsening import Report, coarsen_problem
from loadmaster.judge.problem import Problem, parallelism
from loadmaster.judge.simulation import as_costs
from loadmaster.model.cluster import Cluster
from loadmaster.model.graph import INPUT, OpGraph
from loadmaster.strategies.groups.segments import segmented


@dataclass(frozen=True)
class GraphShape:
    """One graph as schedulers see it.

    Attributes
    ----------
    ops, edges : int
    ccr : float
        Sum of transfer times / sum of op times (Celeritas eq. (1)); a tensor counts once per op
        that reads it.
    parallelism : float
        Work / critical path, transfers free.
    largest_share : float
        Share of the time that the longest op takes.
    """

    ops: int
    edges: int
    ccr: float
    parallelism: float
    largest_share: float


@dataclass(frozen=True)
class Info:
    """Facts about a graph; those that need times are absent without a cluster that has them.

    Attributes
    ----------
    name : str
    ops, edges : int
        As the user's graph has them.
    kinds : dict of str to int
        Ops by kind, most frequent first.
    flops, parameter_bytes : int
        Parameters are all that stays for the whole step but inputs: buffers, optimizer state and
        constants, too.
    cluster : str
        Whose times and links the rest is counted with.
    work : float or None
        Seconds of compute on an average device.
    peak_bytes : int or None
        What one device would need.
    reduced, coarse : Shape or None
        Without views and placeholders; after sequential fusion.
    parallel : Report or None
        Of the coarsening that keeps parallelism, to 200 groups.
    """

    name: str
    ops: int
    edges: int
    kinds: dict[str, int]
    flops: int
    parameter_bytes: int
    cluster: str = ""
    work: float | None = None
    peak_bytes: int | None = None
    reduced: GraphShape | None = None
    coarse: GraphShape | None = None
    parallel: Report | None = None
    missing: str = ""

    def to_document(self) -> dict[str, Any]:
        """As plain data for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        lines = [
            f"{self.name or 'graph'}: {counted(self.ops, 'op')}, {counted(self.edges, 'edge')}",
            f"FLOPs        {format_count(self.flops)}",
            f"parameters   {format_bytes(self.parameter_bytes)} (with buffers, optimizer state)",
        ]
        if self.work is None or self.reduced is None or self.coarse is None:
            return in_lines([*lines, f"no times: {self.missing}"])
        lines += [
            f"on {self.cluster}: {format_seconds(self.work)} of work, "
            f"{format_bytes(self.peak_bytes or 0)} at the peak of one device",
            "             ops      edges    CCR      parallelism  largest op",
        ]
        # Without views and placeholders; and then by sequential fusion, as celeritas places it.
        for label, shape in (("reduced", self.reduced), ("fused", self.coarse)):
            lines.append(
                f"{label:<12} {shape.ops:<8} {shape.edges:<8} {shape.ccr:<8.3g} "
                f"{shape.parallelism:<12.2f} {shape.largest_share:.1%}"
            )
        return "\n".join([in_lines(lines), *([str(self.parallel)] if self.parallel else [])])


def info(graph: OpGraph, cluster: Cluster) -> Info:
    """Facts about a graph, with times and links of a cluster.

    Examples
    --------
    >>> import loadmaster as lm
    >>> from loadmaster.plans.info import info
    >>> info(lm.read("example:lenet"), lm.Cluster.preset("4xV100-PCIe")).ops
    104
    """
    counts = Counter(kind or "op" for kind in graph.kinds)
    facts = Info(
        name=graph.name,
        ops=graph.n_ops,
        edges=graph.n_edges,
        kinds=dict(sorted(counts.items(), key=lambda item: (-item[1], item[0]))),
        flops=int(graph.flops.sum()),
        parameter_bytes=int(graph.resident[graph.stands_for != INPUT].sum()),
    )
    try:
        problem = Problem.make(graph, cluster, as_costs(None, graph, cluster))
    except InputError as error:
        return replace(facts, missing=str(error))
    segments = segmented(problem)
    peak, _ = fast.peak_bytes(problem.graph)
    return replace(
        facts,
        cluster=cluster.name,
        work=float(problem.op_time.sum()),
        peak_bytes=peak,
        reduced=_shape(problem, problem.graph, problem.op_time),
        coarse=_shape(problem, segments.contracted, segments.sum(problem.op_time)),
        parallel=coarsen_problem(problem, "parallel", 200).report,
    )


def _shape(problem: Problem, graph: fast.Graph, op_time: NDArray[np.float64]) -> GraphShape:
    src, _, tensors, sizes = graph.flows()
    latency, per_byte = problem.links.mean_link
    sent = float(tensors.sum()) * latency + float(sizes.sum(dtype=np.float64)) * per_byte
    work = float(op_time.sum())
    return GraphShape(
        ops=graph.n_ops,
        edges=len(src),
        ccr=sent / work,
        parallelism=parallelism(graph, op_time),
        largest_share=float(op_time.max()) / work,
    )
