"""A placement: where every op of the graph that runs goes, and when."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loadmaster.judge.policies import PlanPolicy


@dataclass(frozen=True)
class Assignment:
    """Device and priority per op of the reduced graph: the one form of a placement.

    Attributes
    ----------
    devices : int32 [n_reduced]
        Index of the device that runs the op.
    priority : int32 [n_reduced]
        The smaller, the sooner.
    policy : "priority" or "fixed"
        How devices follow the priorities: "priority" takes, of the ops that are ready, the one with
        the smallest value; "fixed" runs the ops of a device exactly in that order, and waits where
        the next one is not ready. A strategy that returns "fixed" says that its priorities are the
        sequence of a schedule; it is judged by both policies, and the better one counts.
    estimate : float or None
        Seconds per step that its maker expects.

    Examples
    --------
    >>> import numpy as np
    >>> ops = np.arange(3, dtype=np.int32)
    >>> Assignment(ops * 0, ops).policy
    'priority'
    """

    devices: NDArray[np.int32]
    priority: NDArray[np.int32]
    policy: PlanPolicy = "priority"
    estimate: float | None = None
