"""The bars of a simulated step, for every picture of it.

A bar is an op on a device, or a message on a channel, from its start to its finish. Bars narrower
than a pixel are merged before they are drawn, so that a picture of 50,000 ops costs what one of 500
costs: a pixel takes the colour of what filled most of it, paler the less was filled. The page of a
report merges by the same rule in the browser, where a reader zooms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from loadmaster.plans.plan import Plan
from loadmaster.writers.pictures.messages import Messages

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: Shades between white and a colour; the palest still shows.
SHADES = 8

#: A bar of at least so many pixels is drawn as it is.
_WIDE = 1.5


@dataclass(frozen=True)
class Bars:
    """Bars as columns.

    Attributes
    ----------
    start, finish : float64
        Seconds.
    row : int64
        The device of an op, or the channel of a message, by index.
    item : int64
        The op of the reduced graph, or the message. A message has a bar on each of its channels.
    """

    start: Floats
    finish: Floats
    row: Ints
    item: Ints

    def of_row(self, row: int) -> Bars:
        """The bars of a row that take time, by start."""
        here = np.flatnonzero((self.row == row) & (self.finish > self.start))
        here = here[np.argsort(self.start[here], kind="stable")]
        return Bars(self.start[here], self.finish[here], self.row[here], self.item[here])


def of_ops(plan: Plan) -> Bars:
    """A bar per op of the reduced graph; a member of a collective computes nothing."""
    schedule, op_of = plan.schedule, plan.problem.reduced.op_of
    start, is_member = schedule.start[op_of], plan.program.graph.is_member[op_of]
    return Bars(
        start,
        np.where(is_member, start, schedule.finish[op_of]),
        schedule.devices[op_of].astype(np.int64),
        np.arange(len(op_of)),
    )


def of_messages(messages: Messages) -> Bars:
    """A bar per message and channel that the message holds."""
    held = messages.channels
    message = np.repeat(np.arange(len(held)), [len(channels) for channels in held])
    row = np.array([channel for channels in held for channel in channels], dtype=np.int64)
    return Bars(messages.start[message], messages.finish[message], row, message)


# -- pixels ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pixels:
    """Columns of pixels, and the seconds that they show together."""

    columns: int
    span: float

    @property
    def width(self) -> float:
        """Seconds of one column."""
        return self.span / self.columns

    @cached_property
    def edges(self) -> Floats:
        """Begin of each column, and end of the last one, in seconds."""
        return np.linspace(0.0, self.span, self.columns + 1)

    def filled(self, start: Floats, finish: Floats) -> Floats:
        """Seconds of disjoint, ascending intervals in every column."""
        if not len(start):
            return np.zeros(self.columns)
        done = np.concatenate([[0.0], np.cumsum(finish - start)])
        times = np.stack([start, finish], axis=1).ravel()
        totals = np.stack([done[:-1], done[1:]], axis=1).ravel()
        return np.diff(np.interp(self.edges, times, totals))

    def highest(self, times: Floats, values: Floats) -> Floats:
        """The largest value of a step curve in every column."""
        highest = np.zeros(self.columns)
        if not len(times):
            return highest
        columns = np.searchsorted(self.edges, times, side="right") - 1
        np.maximum.at(highest, np.clip(columns, 0, self.columns - 1), values)
        at = np.searchsorted(times, self.edges[:-1], side="right") - 1
        return np.maximum(highest, np.where(at >= 0, values[at], 0.0))


@dataclass(frozen=True)
class Drawn:
    """Bars of a row: begin and end in seconds, index into the palette, shade."""

    begin: Floats
    end: Floats
    colour: Ints
    shade: Ints


def merged(start: Floats, finish: Floats, colour: Ints, pixels: Pixels) -> Drawn:
    """Disjoint, ascending bars: wide ones as they are, over the rest merged by pixel."""
    wide = finish - start >= _WIDE * pixels.width
    under = _merged_by_pixel(start, finish, colour, wide, pixels)
    return Drawn(
        np.concatenate([under.begin, start[wide]]),
        np.concatenate([under.end, finish[wide]]),
        np.concatenate([under.colour, colour[wide]]),
        np.concatenate([under.shade, np.full(int(wide.sum()), SHADES)]),
    )


def _merged_by_pixel(
    start: Floats, finish: Floats, colour: Ints, wide: NDArray[np.bool_], pixels: Pixels
) -> Drawn:
    """Runs of pixels that look the same, of all bars but the wide ones."""
    filled = np.zeros((int(colour.max(initial=0)) + 1, pixels.columns))
    for c in np.unique(colour[~wide]).tolist():
        which = ~wide & (colour == c)
        filled[c] = pixels.filled(start[which], finish[which])
    room = np.maximum(pixels.width - pixels.filled(start[wide], finish[wide]), 1e-9 * pixels.width)
    part = np.minimum(filled.sum(axis=0) / room, 1.0)
    shade = np.ceil(part * SHADES - 1e-6).astype(np.int64)
    colour = np.where(shade > 0, filled.argmax(axis=0), -1)
    starts = np.concatenate([[0], np.flatnonzero(np.diff(colour * (SHADES + 1) + shade)) + 1])
    ends = np.append(starts[1:], pixels.columns)
    seen = colour[starts] >= 0
    starts, ends = starts[seen], ends[seen]
    return Drawn(pixels.edges[starts], pixels.edges[ends], colour[starts], shade[starts])


def joined(start: Floats, finish: Floats, nearest: float) -> tuple[Floats, Floats]:
    """Intervals, ascending, with gaps of less than ``nearest`` seconds closed."""
    if not len(start):
        return start, finish
    apart = np.flatnonzero(start[1:] - np.maximum.accumulate(finish)[:-1] >= nearest)
    begins = np.concatenate([[0], apart + 1])
    return start[begins], np.maximum.reduceat(finish, begins)


def shades(colours: Sequence[str]) -> Floats:
    """RGB from 0 to 1 per colour (``#rrggbb``) and shade, [n, SHADES + 1, 3]; the last shade is the
    colour itself.
    """
    full = np.array([[int(c[at : at + 2], 16) / 255 for at in (1, 3, 5)] for c in colours])
    strength = 0.15 + 0.85 * np.arange(SHADES + 1)[None, :, None] / SHADES
    return 1 - (1 - full[:, None, :]) * strength
