"""PyTorch in one process, without and with graphs: whole ops, and who pays for launches.

``eager``: one thread of Python launches every op, of all devices, one after another
(:class:`~loadmaster.model.runtime.Dispatch`). A device runs ahead of nothing: where ops are short,
the thread is what limits the step, and a second device gains less than its share.

``graph``: kernels were captured before (CUDA graphs, ``torch.compile`` with
``mode="reduce-overhead"``), so that launching costs no op anything.

Both place whole ops, by the search of ``auto``.
"""

from __future__ import annotations

from loadmaster.base.effort import Effort
from loadmaster.base.progress import Progress
from loadmaster.judge.problem import Problem
from loadmaster.strategies.auto import auto
from loadmaster.strategies.candidate import Candidate


def whole_ops(
    problem: Problem,
    *,
    effort: Effort | float | None = None,
    time_limit: float | None = None,
    progress: Progress | None = None,
) -> Candidate:
    """Whole ops at the target's prices of launches; options as those of ``auto``."""
    return auto.place(
        problem, effort=effort, split="none", time_limit=time_limit, progress=progress
    )
