"""Stages along which a pass comes back to a stage that it has left: what the user is told of them.

A device does a pass of a micro-batch in one go. If the forward pass goes from a stage to a later
one and back, the first waits for the second, which waits for the first.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from loadmaster.base.errors import InputError
from loadmaster.model.module_paths import module_path
from loadmaster.strategies.pipelines.phases import FORWARD
from loadmaster.strategies.pipelines.staged import Staged

#: Number of modules that are named.
_NAMED = 4


def came_back(staged: Staged) -> InputError | None:
    """The error for the first op that takes a pass back to a stage that it has left; None: none.

    O(V + E).
    """
    program, stage = staged.problem.program, staged.of_op
    source, serves = program.source, program.serves[staged.problem.reduced.op_of]
    for name, side, step in (("forward", "later", 1), ("backward", "earlier", -1)):
        src, dst = _reads(staged, is_forward=step > 0)
        least = _least(staged, src, dst, step)
        back = np.flatnonzero(step * stage[src] > step * stage[dst])
        if not len(back):
            continue
        first = back[np.argmin(staged.batched.program_rank[dst[back]])]
        maker, reader = (source.names[int(serves[end[first]])] for end in (src, dst))
        left = int(stage[src[first]])
        others = np.flatnonzero(step * stage < least)
        others = others[np.argsort(staged.batched.program_rank[others])]
        modules = [*dict.fromkeys(_module(source.modules[serves[op]]) for op in others.tolist())]
        more = f" and {len(modules) - _NAMED} more" if len(modules) > _NAMED else ""
        return InputError(
            f"op {reader!r} is in stage {stage[dst[first]]} and reads {maker!r} of stage {left}: a "
            f"{name} pass goes to {side} stages alone, and does not come back to one that it has "
            f"left. What no line of [stages] means is in stage 0: give lines with stage {left} or "
            f"{side} to the modules {', '.join(modules[:_NAMED])}{more}"
        )
    return None


def _reads(staged: Staged, *, is_forward: bool) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Pairs of ops of a pass of the first micro-batch, of which the second reads the first."""
    src, dst, _, _ = staged.batched.flows
    part = staged.passes
    here = (staged.micro == 0) & ((part == FORWARD) if is_forward else (part > FORWARD))
    some = here[src] & here[dst]
    return src[some], dst[some]


def _least(
    staged: Staged, src: NDArray[np.int64], dst: NDArray[np.int64], step: int
) -> NDArray[np.int64]:
    """Per op ``step`` times the stage that a pass has come to when the op reads it."""
    least = np.full(len(staged.of_op), -len(staged.devices), dtype=np.int64)
    stage = (step * staged.of_op).tolist()
    order = np.argsort(staged.batched.program_rank[src], kind="stable")
    for a, b in zip(src[order].tolist(), dst[order].tolist(), strict=True):
        least[b] = max(least[b], least[a], stage[a])
    return least


def _module(path: str) -> str:
    """A layer, or a module that is in none."""
    words = list(module_path(path))
    number = next((i for i, word in enumerate(words) if word.isdecimal()), len(words))
    return repr(".".join(words[: number + 1]) or ".")
