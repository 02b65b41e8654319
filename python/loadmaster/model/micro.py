"""The way of micro-batches through stages, as recipes say it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from loadmaster.base import checks
from loadmaster.base.errors import InputError
from loadmaster.base.text import shown

#: The schedules that have a name of their own in the field.
Named = Literal["gpipe", "1f1b", "interleaved-1f1b", "zero-bubble", "zb-v"]
NAMED: tuple[Named, ...] = get_args(Named)

#: The schedule whose stages go through the devices and back: of 2 p stages, stage k and stage
#: 2 p - 1 - k are on the same one.
IN_V = "zb-v"

#: The schedule that the numbers of a recipe say.
WINDOWS = "windows"


@dataclass(frozen=True)
class Micro:
    """Micro-batches and their schedule.

    Attributes
    ----------
    n : int
        Micro-batches, at least 1. One: the batch goes through one stage after another.
    schedule : str
        One of :data:`NAMED`, or "windows": what ``ahead``, ``delay`` and ``in_order`` say.
    virtual : int
        Stages of each device (virtual stages). Older recipes say ``chunks``.
    ahead : tuple of int
        Per device, forward passes that it has done more than backward passes, at most.
    delay : tuple of int
        Per device, backward passes by which gradients of weights come later than those of inputs;
        empty: they are a part of the backward pass.
    in_order : bool
        Whether a device waits for what is next in its order.
    in_turn : tuple of int
        Per stage, the devices that take its micro-batches in turn: of r, micro-batch j is on the
        one with number j mod r. Only with "1f1b". Empty: what a stage is on has all of them.

    Raises
    ------
    InputError
        No such schedule, or numbers that do not fit each other.

    Examples
    --------
    >>> Micro(8, "zero-bubble").to_document()
    {'n': 8, 'schedule': 'zero-bubble'}
    """

    n: int
    schedule: str = "1f1b"
    virtual: int = 1
    ahead: tuple[int, ...] = ()
    delay: tuple[int, ...] = ()
    in_order: bool = True
    in_turn: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        checks.integer("micro: n", self.n)
        checks.integer("micro: virtual", self.virtual)
        checks.one_of("micro: schedule", self.schedule, (*NAMED, WINDOWS))
        if not isinstance(self.in_order, bool):
            raise InputError(f"micro: in_order is {shown(self.in_order)}: wants true or false")
        for name, least in (("ahead", 1), ("delay", 0), ("in_turn", 1)):
            values = getattr(self, name)
            if not isinstance(values, Sequence) or isinstance(values, str):
                raise InputError(f"micro: {name} is {shown(values)}: wants a list of numbers")
            numbers = tuple(checks.integer(f"micro: {name}", value, least) for value in values)
            object.__setattr__(self, name, numbers)
        if bool(self.ahead) != (self.schedule == WINDOWS):
            raise InputError(
                f"micro: schedule {self.schedule!r} with {len(self.ahead)} numbers ahead: these "
                f"are for the schedule {WINDOWS!r}, one per device"
            )
        if self.delay and len(self.delay) != len(self.ahead):
            raise InputError("micro: delay wants as many numbers as ahead")
        if self.schedule == IN_V and self.virtual != 2:
            raise InputError(
                f"micro: schedule {IN_V!r} with virtual {self.virtual}: devices have 2 stages each"
            )
        if self.in_turn and (self.schedule != "1f1b" or self.virtual > 1):
            raise InputError(
                f"micro: in_turn with schedule {self.schedule!r} and virtual {self.virtual}: "
                'devices take micro-batches in turn by "1f1b" alone, each with one stage'
            )

    def to_document(self) -> dict[str, Any]:
        """As plain data; what is usual is left out."""
        usual = {"virtual": 1, "ahead": (), "delay": (), "in_order": True, "in_turn": ()}
        document: dict[str, Any] = {"n": self.n, "schedule": self.schedule}
        for name, value in usual.items():
            if (now := getattr(self, name)) != value:
                document[name] = list(now) if isinstance(now, tuple) else now
        return document

    @classmethod
    def from_document(cls, document: Any) -> Micro:
        """From plain data with the attributes' names."""
        if not isinstance(document, Mapping) or "n" not in document:
            raise InputError(f"micro is {shown(document)}: wants a table, with n = 8 in it")
        document = {"virtual" if key == "chunks" else key: v for key, v in document.items()}
        checks.known_keys("micro", document, tuple(cls.__dataclass_fields__))
        return cls(**document)
