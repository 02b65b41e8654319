"""The zero-bubble schedule of stages in a V: what each device does, in order.

Qi, Wan, Huang, Lin, "Zero Bubble Pipeline Parallelism" (ICLR 2024), section 6 (ZB-V), in the order
in which PyTorch's ScheduleZBVZeroBubble has it. Device s of p has the stages s and 2 p - 1 - s, so
that the last stage is on the device of the first one, and its backward pass begins at once.
"""

from __future__ import annotations

from collections import Counter

#: Stages per device.
CHUNKS = 2

#: An action by its kind ("F", "B", "W"), which of its device's stages, and its micro-batch.
Row = tuple[str, int, int]


def in_v(p: int, m: int) -> list[list[Row]]:
    """Actions of each device. O(p (p + m)).

    >>> for device in in_v(2, 2):
    ...     print(*(f"{kind}{'ab'[virtual_stage]}{micro}" for kind, virtual_stage, micro in device))
    Fa0 Fa1 Fb0 Bb0 Wb0 Fb1 Bb1 Wb1 Ba0 Wa0 Ba1 Wa1
    Fa0 Fb0 Fa1 Fb1 Bb0 Wb0 Ba0 Wa0 Bb1 Wb1 Ba1 Wa1
    """
    return [[row for row in _device(p, max(2 * p - 1, m), s) if row[2] < m] for s in range(p)]


def _device(p: int, m: int, s: int) -> list[Row]:
    """The same of one device, for 2 p - 1 micro-batches or more."""
    done: list[Row] = []
    count: Counter[tuple[str, int]] = Counter()

    def do(actions: str, times: int = 1) -> None:
        for action in actions.split() * times:
            kind, virtual_stage = action[0], int(action[1])
            done.append((kind, virtual_stage, count[kind, virtual_stage]))
            count[kind, virtual_stage] += 1

    do("F0", 2 * (p - s) - 1)
    do("F1 F0", s)
    do("F1 B1 W1", p - s)
    while count["F", 1] < m:
        do("F0", int(count["F", 0] < m))
        do("B0 W0 F1 B1 W1")
    do("B0 B1", s)
    do("B0 W0", p - s)
    do("W1", count["B", 1] - count["W", 1])
    do("W0", count["B", 0] - count["W", 0])
    return done
