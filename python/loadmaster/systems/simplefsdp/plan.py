"""SimpleFSDP: a process per device, with a share of the batch and parameters that are DTensors.

Zhang et al., "SimpleFSDP: Simpler Fully Sharded Data Parallel with torch.compile", 2024. There are
no units: every parameter is gathered by a collective of its own when the model reads it, and its
gradient is scattered by another. Ops wait for both, unless the model is compiled: then the compiler
begins them earlier. What is recomputed reads its parameters again; all others are gathered once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from loadmaster.base.progress import Progress
from loadmaster.costs.runtimes.priced import runtime_of
from loadmaster.judge.problem import Problem
from loadmaster.model.graph import OpGraph
from loadmaster.model.program import Program
from loadmaster.strategies.candidate import Candidate
from loadmaster.strategies.sharding.units import ShardSizes, UnitWay
from loadmaster.systems.shared.fully_sharded import planned, recomputed_layers
from loadmaster.systems.simplefsdp.semantics import NAME
from loadmaster.transforms.in_turn import in_turn


@dataclass(frozen=True)
class SingleParameters(ShardSizes):
    """Sizes where every parameter has collectives of its own, and no unit is gathered again."""

    is_compiled: bool = False

    @property
    def name(self) -> str:
        """The name of the recipes."""
        return NAME

    def words(self, graph: OpGraph) -> Callable[[UnitWay], dict[str, str]]:
        """Words for all parameters, and for those of what is recomputed."""
        return lambda way: {".": "each kept", **dict.fromkeys(way.recompute, "each again")}

    def ordered(self, program: Program) -> Program:
        """The program, in which ops wait for collectives unless a compiler moves these."""
        program = super().ordered(program)
        return program if self.is_compiled else in_turn(program)


def plan(
    problem: Problem,
    *,
    replicas: int | None = None,
    shard_size: int | None = None,
    recompute: bool | None = None,
    progress: Progress | None = None,
) -> Candidate:
    """Fully sharded data parallelism on the fastest devices of one family, by single parameters.

    Parameters
    ----------
    problem : Problem
    replicas : int, optional
        How many devices share the batch; the best number if absent.
    shard_size : int, optional
        How many of them share a parameter; it divides their number. The best if absent.
    recompute : bool, optional
        Whether layers are recomputed, and their parameters gathered again for that. If absent: if
        nothing fits otherwise.
    progress : callable, optional

    Raises
    ------
    InputError
        Not a training step of modules with a batch and an optimizer; sizes that do not divide;
        constraints that put an op elsewhere than on its process's device; one device.
    InfeasibleError
        It does not fit.
    """
    levels = recomputed_layers(problem, NAME, recompute)
    is_compiled = runtime_of(problem.model) in ("compiled", "graphs")
    sizes = SingleParameters(shard_size, reshard=False, is_compiled=is_compiled)
    return planned(problem, NAME, levels, replicas, sizes, progress)
