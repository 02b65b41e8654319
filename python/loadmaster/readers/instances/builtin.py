"""The instances that come along: four sets, each with a module that lists and makes its own."""

from __future__ import annotations

from loadmaster.base.errors import InputError
from loadmaster.base.text import meant
from loadmaster.readers.instances import models, planted, scheduling
from loadmaster.readers.instances.instance import LISTED_BY, Instance

#: Of each set, in the order in which they are listed, the functions that list and that make.
_SETS = {
    "planted": (planted.names, planted.load),
    "scheduling": (scheduling.names, scheduling.load),
    "measured": (models.measured_names, models.load_measured),
    "models": (models.names, models.load),
}


def names() -> list[str]:
    """The names of all that are listed."""
    return [f"{kind}/{name}" for kind, (listed, _) in _SETS.items() for name in listed()]


def load(name: str) -> Instance:
    """The instance of a name: one that is listed, or another of the same form.

    Raises
    ------
    InputError
        No such instance; the way names are made is said.
    """
    kind, slash, rest = name.partition("/")
    if not slash or kind not in _SETS:
        raise InputError(f"no instance is named {name!r}{meant(name, names(), LISTED_BY)}")
    return _SETS[kind][1](rest)
