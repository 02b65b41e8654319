"""JAX: ``PartitionSpec`` per array, and XLA's partitioner for what lies between.

Parameters, state and inputs lie as they are told. How an op is shared follows from the arrays that
it reads, or from a constraint (``with_sharding_constraint``). The outer axis shares the batch, with
parameters whole or in parts. The inner one cuts features, heads and experts, and between the
products tokens. The solver takes the cheapest labels of those that specs can say.
"""

from __future__ import annotations

from typing import Literal

from loadmaster.base.progress import Progress
from loadmaster.base.units import counted
from loadmaster.judge.problem import Problem
from loadmaster.strategies.candidate import Candidate
from loadmaster.systems.jax.axis_names import named_axes
from loadmaster.systems.jax.semantics import NAME
from loadmaster.systems.shared.meshes_of_specs import by_specs
from loadmaster.systems.shared.own_constraints import OwnConstraints, constraints_of

#: The way out where no rule says how ops can be cut.
_WAY_OUT = (
    ". Of a program of JAX, read StableHLO: jax.jit(step).lower(...).as_text(debug_info=True)"
)


def place(
    problem: Problem,
    *,
    tp: int | None = None,
    axis_names: str | None = None,
    model_constraints: Literal["drop", "keep"] = "drop",
    time_limit: float | None = None,
    progress: Progress | None = None,
) -> Candidate:
    """The best mesh of data and tensor parallelism, and specs on it.

    Parameters
    ----------
    problem : Problem
    tp : int, optional
        Size of the inner axis, which must divide the number of devices in use; absent: the best.
    axis_names : str, optional
        Names that the written mesh has for the outer and the inner axis: ``"data,model"``. If
        absent: ``"dp,tp"``, or those of the constraints that are kept.
    model_constraints : "drop" (default) or "keep"
        Whether constraints that the program has of itself (``with_sharding_constraint``) are
        dropped, or fix how their arrays lie, on a mesh of the axes that they speak of.
    time_limit : float, optional
        Seconds on the clock; what is under way is finished first.
    progress : callable, optional
        Called with the mesh and the best step time whenever there is a better plan.

    Raises
    ------
    InputError
        The graph says no shapes; a size that does not divide; nothing can be shared evenly;
        constraints that are to be kept are of another mesh.
    InfeasibleError
        It does not fit.
    """
    names = None if axis_names is None else named_axes(axis_names)
    own, graph = None, problem.model
    if model_constraints == "keep":
        own = OwnConstraints.of(graph, names)
    candidate = by_specs(problem, NAME, tp, time_limit, progress, _WAY_OUT, own)
    if not (n := len(constraints_of(graph))):
        return candidate
    fate = "kept" if own else "dropped: model_constraints='keep' plans with them"
    return candidate.noted(
        f"{counted(n, 'sharding constraint')} of the program {'is' if n == 1 else 'are'} {fate}"
    )
