"""Schedules of pipelines as data: what each device does to which micro-batch, in which order.

Every schedule but the last is one pattern with other numbers. A device does some forward passes
*ahead*, then a backward pass and a forward pass in turn. Where gradients of weights are apart from
those of inputs, they come some backward passes later, after a *delay*.

* GPipe (Huang et al. 2019): all forward passes ahead.
* 1F1B (Narayanan et al. 2019, PipeDream; 2021, PipeDream-Flush): p - s ahead on stage s of p.
* Interleaved 1F1B (Narayanan et al. 2021, Megatron-LM): each device has several stages, virtual of
  the model. Micro-batches go through them in groups of p.
* Zero-bubble (Qi et al. 2023, ZB-H1): as many ahead as 1F1B; gradients of weights wait for s
  further backward passes, and so fill the time in which stage s would wait for the stages after it.
* Zero-bubble in a V (Qi et al. 2023, ZB-V; :mod:`.v_schedule`): stages go through the devices and
  back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from loadmaster.base import checks
from loadmaster.base.errors import InputError
from loadmaster.model.micro import IN_V as IN_V
from loadmaster.model.micro import NAMED as NAMED
from loadmaster.model.micro import Named as Named
from loadmaster.strategies.pipelines import v_schedule
from loadmaster.strategies.pipelines.phases import PASSES

#: Work on a micro-batch: the forward pass, the backward pass, and the gradients of weights
#: where these are apart. Else they are a part of the backward pass.
Kind = Literal["F", "B", "W"]


#: Named schedules of several stages per device.
INTERLEAVED: tuple[Named, ...] = ("interleaved-1f1b", "zb-v")


def named_for(virtual: int) -> tuple[Named, ...]:
    """The named schedules of so many stages per device, stage k of which is on device k mod p.

    >>> named_for(1), named_for(2)
    (('gpipe', '1f1b', 'zero-bubble'), ('interleaved-1f1b',))
    """
    return tuple(name for name in NAMED if name != IN_V and (name in INTERLEAVED) == (virtual > 1))


class Action(NamedTuple):
    """Something that a device does: its ``kind``, the ``virtual_stage`` that it is for, and the
    micro-batch.
    """

    kind: Kind
    virtual_stage: int
    micro: int


@dataclass(frozen=True)
class Windows:
    """The numbers of a schedule, one per device in the order of the pipeline.

    Attributes
    ----------
    ahead : tuple of int
        Forward passes that a device has done more than backward passes, at most. At least 1.
    delay : tuple of int, or None
        Backward passes by which gradients of weights come later than those of inputs. None: they
        are a part of the backward pass.
    in_order : bool
        Whether a device waits for what is next in its order, as frameworks run a schedule. Else it
        takes what is ready, and waits only where more micro-batches would be alive.
    in_v : bool
        Whether it is the schedule in a V. Its order is one of its own; ``ahead`` is how many
        micro-batches are alive.
    """

    ahead: tuple[int, ...]
    delay: tuple[int, ...] | None = None
    in_order: bool = True
    in_v: bool = False

    def __str__(self) -> str:
        """In words; of devices that are alike once.

        >>> print(Windows((3, 2, 1), (1, 1, 1), in_order=False))
        3, 2, 1 ahead, gradients of weights 1 later, out of order
        """
        if self.in_v:
            return f"zero-bubble in a V, {_each(self.ahead)} alive"
        said = [f"{_each(self.ahead)} ahead"]
        if self.delay is not None:
            said.append(f"gradients of weights {_each(self.delay)} later")
        return ", ".join(said + ["out of order"] * (not self.in_order))

    @property
    def alive(self) -> tuple[int, ...]:
        """Micro-batches, of each virtual stage, whose activations a device holds at most."""
        if self.delay is None:
            return self.ahead
        return tuple(a + d for a, d in zip(self.ahead, self.delay, strict=True))

    def stage(self, device: int, virtual_stage: int) -> int:
        """The stage that is one of a device's.

        >>> [windows("zb-v", 2, 3, 2).stage(*of) for of in ((0, 0), (0, 1), (1, 1))]
        [0, 3, 2]
        """
        p = len(self.ahead)
        return 2 * p - 1 - device if self.in_v and virtual_stage else virtual_stage * p + device

    def device(self, stage: int) -> int:
        """The device that has a stage.

        >>> [windows("zb-v", 2, 3, 2).device(stage) for stage in range(4)]
        [0, 1, 1, 0]
        """
        p = len(self.ahead)
        return 2 * p - 1 - stage if self.in_v and stage >= p else stage % p


def _each(numbers: tuple[int, ...]) -> str:
    return ", ".join(map(str, numbers if len(set(numbers)) > 1 else numbers[:1]))


def actions(schedule: Named, p: int, m: int, virtual: int = 1) -> list[list[Action]]:
    """Actions of each device, in order.

    Parameters
    ----------
    schedule : "gpipe", "1f1b", "interleaved-1f1b", "zero-bubble" or "zb-v"
    p : int
        Devices. Stage k of p x virtual is on device k mod p; of "zb-v", the later stages are on the
        devices in reverse.
    m : int
        Micro-batches.
    virtual : int
        Stages per device: at least 2 for "interleaved-1f1b", 2 for "zb-v", 1 for the others.

    Raises
    ------
    InputError
        Another name, or numbers that the schedule does not have.

    Notes
    -----
    O(p m virtual).

    Examples
    --------
    >>> for device in actions("1f1b", 2, 3):
    ...     print(*(f"{kind}{micro}" for kind, _, micro in device))
    F0 F1 B0 F2 B1 B2
    F0 B0 F1 B1 F2 B2
    """
    return in_windows(windows(schedule, p, m, virtual), m, virtual)


@lru_cache(maxsize=1024)
def windows(schedule: Named, p: int, m: int, virtual: int = 1) -> Windows:
    """The numbers of a named schedule; parameters and errors as those of :func:`actions`.

    >>> found = windows("zero-bubble", 4, 8)
    >>> found.ahead, found.delay
    ((4, 3, 2, 1), (0, 1, 2, 3))
    """
    checks.one_of("schedule", schedule, NAMED)
    for name, value in (("p", p), ("m", m), ("virtual", virtual)):
        checks.integer(name, value)
    is_v = schedule == IN_V and virtual == v_schedule.CHUNKS
    if not is_v and schedule not in named_for(virtual):
        raise InputError(
            f"schedule {schedule!r} with {virtual} stages per device: interleaved-1f1b needs at "
            "least 2, zb-v needs 2, and the other schedules need 1"
        )
    if is_v:
        devices = _in_v(p, m)
        return Windows(tuple(map(_most_alive, devices)), (0,) * p, in_v=True)
    most = m * virtual
    ahead = {
        "gpipe": [most] * p,
        "interleaved-1f1b": [2 * (p - 1 - s) + (virtual - 1) * p + 1 for s in range(p)],
    }.get(schedule, [p - s for s in range(p)])
    fitting = tuple(min(a, most) for a in ahead)
    return Windows(fitting, tuple(range(p)) if schedule == "zero-bubble" else None)


def in_windows(windows: Windows, m: int, virtual: int = 1) -> list[list[Action]]:
    """The schedule of some numbers: what each device does, in order. O(p m virtual).

    >>> (only,) = in_windows(Windows((2,), (1,)), 3)
    >>> print(*(f"{kind}{micro}" for kind, _, micro in only))
    F0 F1 B0 F2 B1 W0 B2 W1 W2
    """
    p = len(windows.ahead)
    if windows.in_v:
        return _in_v(p, m)
    forward = _in_groups(p, m, virtual)
    backward = [(virtual - 1 - virtual_stage, micro) for virtual_stage, micro in forward]
    delays = [None] * p if windows.delay is None else windows.delay
    return [
        _in_turn(forward, backward, ahead, delay)
        for ahead, delay in zip(windows.ahead, delays, strict=True)
    ]


@lru_cache(maxsize=1024)
def alive_of_stages(windows: Windows, m: int, virtual: int) -> tuple[int, ...]:
    """Micro-batches that are alive in each stage at most: of a device with several stages in turn,
    its mean.

    >>> alive_of_stages(windows("1f1b", 3, 8), 8, 1)
    (3, 2, 1)
    >>> alive_of_stages(windows("zero-bubble", 3, 2), 2, 1)
    (2, 2, 2)
    >>> alive_of_stages(windows("zb-v", 2, 8, 2), 8, 2)
    (4, 3, 2, 1)
    """
    if not windows.in_v:
        return tuple(min(-(-alive // virtual), m) for alive in windows.alive) * virtual
    devices, p = _in_v(len(windows.ahead), m), len(windows.ahead)
    places = [(windows.device(stage), stage // p) for stage in range(virtual * p)]
    return tuple(
        _most_alive([action for action in devices[s] if action.virtual_stage == virtual_stage])
        for s, virtual_stage in places
    )


def _in_v(p: int, m: int) -> list[list[Action]]:
    return [
        [Action(cast(Kind, row[0]), *row[1:]) for row in rows] for rows in v_schedule.in_v(p, m)
    ]


def _most_alive(device: Sequence[Action]) -> int:
    """Micro-batches that are alive at once at most, from forward passes to weights' gradients."""
    alive: Counter[str] = Counter()
    most = 0
    for action in device:
        alive[action.kind] += 1
        most = max(most, alive["F"] - alive["W"])
    return most


def _in_groups(p: int, m: int, virtual: int) -> list[tuple[int, int]]:
    """Virtual stages and micro-batches in the order of forward passes: p micro-batches through each
    virtual stage, then the next p.
    """
    group = p if virtual > 1 else m
    return [
        (virtual_stage, micro)
        for first in range(0, m, group)
        for virtual_stage in range(virtual)
        for micro in range(first, min(first + group, m))
    ]


def _in_turn(
    forward: Sequence[tuple[int, int]],
    backward: Sequence[tuple[int, int]],
    ahead: int,
    delay: int | None,
) -> list[Action]:
    """A device's actions, from the order of its passes."""
    done = [Action("F", *which) for which in forward[:ahead]]
    for k, which in enumerate(backward):
        done.append(Action("B", *which))
        if delay is not None and k >= delay:
            done.append(Action("W", *backward[k - delay]))
        done += [Action("F", *which) for which in forward[ahead + k : ahead + k + 1]]
    if delay:
        done += [Action("W", *which) for which in backward[-delay:]]
    return done


@dataclass(frozen=True, eq=False)
class ActionColumns:
    """Actions of a device, in order, a value per action.

    Attributes
    ----------
    kinds : tuple of str
    passes : int64 column
        The same as indices into :data:`~loadmaster.strategies.pipelines.phases.PASSES`.
    stages, micro : int64 columns
    """

    kinds: tuple[Kind, ...]
    passes: NDArray[np.int64]
    stages: NDArray[np.int64]
    micro: NDArray[np.int64]


@lru_cache(maxsize=256)
def columns(windows: Windows, m: int, virtual: int = 1) -> tuple[ActionColumns, ...]:
    """The schedule of some numbers as :func:`in_windows` has it, in columns. O(p m virtual).

    >>> (only,) = columns(Windows((2,), (1,)), 2)
    >>> only.kinds, only.passes.tolist(), only.micro.tolist()
    (('F', 'F', 'B', 'B', 'W', 'W'), [0, 0, 1, 1, 2, 2], [0, 1, 0, 1, 0, 1])
    """
    of_devices = []
    for s, device in enumerate(in_windows(windows, m, virtual)):
        kinds, of_chunks, micro = zip(*device, strict=True)
        passes = np.array([PASSES.index(kind) for kind in kinds])
        stages = np.array([windows.stage(s, virtual_stage) for virtual_stage in range(virtual)])
        of_devices.append(ActionColumns(kinds, passes, stages[list(of_chunks)], np.array(micro)))
    return tuple(of_devices)


def waits(kinds: Sequence[Kind], in_order: bool) -> NDArray[np.int64]:
    """Pairs of a device's actions, of which the second has to wait for the first: their places,
    int64 [n_pairs, 2]. ``kinds`` has the kind of each action.

    In order, each action waits for the one before it. Else each forward pass waits for the last
    action before it by which activations are let go, and so no more micro-batches are alive than in
    order.

    >>> waits("FFBFBB", in_order=False).tolist()
    [[2, 3]]
    """
    places = np.arange(len(kinds))
    if in_order:
        return np.stack([places[:-1], places[1:]], axis=1)
    kind = np.array(list(kinds), dtype="U1")
    lets_go = kind == ("W" if "W" in kinds else "B")
    last = np.maximum.accumulate(np.where(lets_go, places, -1))
    after = np.flatnonzero((kind == "F") & (last >= 0))
    return np.stack([last[after], after], axis=1)
