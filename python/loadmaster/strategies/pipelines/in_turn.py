"""Stages whose devices take micro-batches in turn: PipeDream's 1F1B-RR.

Narayanan et al., "PipeDream: Generalized Pipeline Parallelism for DNN Training" (SOSP 2019),
section 3.2. A micro-batch is on one device of each stage, in both passes. Devices send their
gradients to the first of their stage, which has the weights.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from loadmaster.judge.assignment import Assignment
from loadmaster.judge.problem import Problem, ranks
from loadmaster.model.orders import program_order
from loadmaster.strategies.candidate import Candidate, judged
from loadmaster.strategies.pipelines.phases import BACKWARD, ONCE, WEIGHT, passes


def in_turn(
    placed: Problem,
    stage: NDArray[np.integer],
    devices: Sequence[int] | NDArray[np.integer],
    counts: Sequence[int],
) -> Candidate:
    """A micro-batched problem in stages, judged.

    Parameters
    ----------
    placed : Problem
    stage : int [n_user_ops]
    devices : int [sum of counts]
        Those of the first stage first.
    counts : sequence of int
        Devices of each stage. Micro-batch j is on the one with number j mod their count.
    """
    first = np.concatenate([[0], np.cumsum(counts)[:-1]])
    program, op_of = placed.program, placed.reduced.op_of
    of_op = stage[program.serves[op_of]]
    micro = np.maximum(program.micro[op_of], 0)
    # Gradients are summed, in place, where the first micro-batch's are made.
    at = (first[of_op] + micro % np.array(counts)[of_op])[placed.graph.lead]
    kind = passes(program)[op_of]
    # Backward passes before forward passes, the first micro-batch first, updates last.
    later = np.where(kind == ONCE, 2, np.isin(kind, (BACKWARD, WEIGHT), invert=True))
    order = np.lexsort((ranks(program_order(placed.graph)), micro, later))
    chosen = np.asarray(devices, dtype=np.int32).ravel()[at]
    return judged(placed, Assignment(chosen, ranks(order.astype(np.int32))))
