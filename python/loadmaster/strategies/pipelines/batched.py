"""A micro-batched problem, and what is known of its ops whatever their stages.

It is found once, for all stages that are tried.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

import loadmaster.fast as fast
from loadmaster.judge.problem import Problem, ranks
from loadmaster.model.orders import program_order
from loadmaster.strategies.pipelines.phases import Flows, passes


@dataclass(frozen=True, eq=False)
class MicroBatched:
    """A problem of a program with micro-batches, and what is known of its ops.

    Attributes
    ----------
    problem : Problem
    """

    problem: Problem

    @cached_property
    def m(self) -> int:
        """Micro-batches."""
        return int(self.problem.program.micro.max()) + 1

    @cached_property
    def serves(self) -> NDArray[np.int32]:
        """The user's op that each reduced op serves."""
        return self.problem.program.serves[self.problem.reduced.op_of]

    @cached_property
    def rank(self) -> NDArray[np.int32]:
        """The rank of each reduced op; 0 for those of none."""
        return np.maximum(self.problem.program.rank[self.problem.reduced.op_of], 0)

    @cached_property
    def micro(self) -> NDArray[np.int32]:
        """The micro-batch of each reduced op; -1: none."""
        return self.problem.program.micro[self.problem.reduced.op_of]

    @cached_property
    def parts(self) -> NDArray[np.int8]:
        """The pass that each reduced op is a part of, as :func:`passes` has it."""
        return passes(self.problem.program)[self.problem.reduced.op_of]

    @cached_property
    def is_late(self) -> NDArray[np.bool_]:
        """Mask of the reduced ops of the backward pass or an update, by their phase."""
        phases = self.problem.model.phases
        return np.array([phases[op] in ("b", "o") for op in self.problem.reduced.op_of.tolist()])

    @cached_property
    def program_rank(self) -> NDArray[np.int32]:
        """The rank of each reduced op in the program's own order."""
        return ranks(program_order(self.problem.graph))

    @cached_property
    def flows(self) -> Flows:
        """Tensors that flow between reduced ops."""
        return self.problem.graph.flows()

    @cached_property
    def edges(self) -> tuple[NDArray[np.int64], ...]:
        """Source, destination, tensor and bytes of edges with data that is made in the step."""
        src, dst, tensor, size, is_home = fast.edges(self.problem.graph)
        data = (tensor >= 0) & ~is_home
        return tuple(column[data].astype(np.int64) for column in (src, dst, tensor, size))
