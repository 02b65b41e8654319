"""Constraints beside memory: pins, reserves, whole modules, kinds of ops, stages.

Users write these constraints as arguments or as TOML.
:mod:`loadmaster.rules.binding` turns them into rules that every strategy obeys.
"""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

import loadmaster.fast as fast
from loadmaster.base import checks
from loadmaster.base.errors import InputError, refusing
from loadmaster.base.files import naming, parse_toml, read_text
from loadmaster.base.text import meant
from loadmaster.base.units import SIZE, format_bytes, parse_bytes
from loadmaster.model.cluster import Cluster

#: A pattern that begins with this is a regular expression.
REGEX = "re:"

#: The selector of all devices.
EVERY = "*"


@dataclass(frozen=True)
class Constraints:
    """Rules that a plan must obey, whatever the method.

    A *pattern* must match a whole name. It is a glob, in which ``*`` matches dots too, or ``re:``
    and a regular expression, in the syntax of :class:`loadmaster.fast.Pattern`. A *selector* is a
    device's index or name, a glob over the names of devices, or a glob over the names of device
    types.

    Patterns match parameters, buffers and inputs as they match ops. Each of these stays at home:
    with the ops of its colocation set, or else with the op that reads it first. So a pin or
    ``no_split`` that means it binds those ops too, also where they are in other modules.

    Attributes
    ----------
    pin : mapping of pattern to selector or list of selectors
        Ops whose name matches, or that are in a module whose name matches, run on these devices.
        A pattern that matches only views pins the ops whose devices they share.
    reserve : bytes, or mapping of selector to bytes
        Memory kept free on every device, or on some: an int, or a string such as ``"2GiB"``. Where
        several selectors match a device, the largest counts.
    no_split : sequence of patterns
        Modules that stay on one device, with their parameters and buffers, and the ops of their
        backward pass and of their optimizer. Of nested modules that match, the outermost counts.
        In a replicated graph, each replica of the module stays whole; in a sharded one, the parts
        that one device of the mesh has stay together. Ops that sum the gradients of replicas belong
        to no module, and collectives are on all devices of their group.
    contiguous : bool
        Whether devices, in the cluster's order, are stages. Then no op feeds a forward op of an
        earlier stage, and no backward op feeds a backward op of a later stage.
    kinds : mapping of selector to pattern or list of patterns
        These devices run only ops whose kind matches.

    Raises
    ------
    InputError
        A value of another form.

    Examples
    --------
    >>> import loadmaster as lm
    >>> rules = lm.Constraints(pin={"convolution*": "gpu1"}, reserve="1GiB")
    >>> graph, cluster = lm.read("example:lenet"), lm.Cluster.preset("2xV100-NVLink")
    >>> plan = lm.place(graph, cluster, "heft", constraints=rules)
    >>> plan.device("convolution"), plan.device("convolution_1")
    ('gpu1', 'gpu1')
    """

    pin: Mapping[str, Any] = field(default_factory=dict)
    reserve: Any = field(default_factory=dict)
    no_split: Sequence[str] = ()
    contiguous: bool = False
    kinds: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        reserve = self.reserve if isinstance(self.reserve, Mapping) else {EVERY: self.reserve}
        checked = {
            "pin": {
                _pattern("pin", k): _devices(f"pin of {k!r}", v) for k, v in _items(self, "pin")
            },
            "reserve": {
                str(k): size
                for k, v in reserve.items()
                if (size := parse_bytes(v, f"reserve of {k}"))
            },
            "no_split": tuple(_pattern("no_split", p) for p in _listed("no_split", self.no_split)),
            "kinds": {
                str(k): tuple(_pattern("kinds", p) for p in _listed(f"kinds of {k!r}", v))
                for k, v in _items(self, "kinds")
            },
        }
        checks.flag("contiguous", self.contiguous)
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    @property
    def is_empty(self) -> bool:
        """True if there is nothing to obey."""
        return self.is_of_memory and not self.reserve

    @property
    def is_of_memory(self) -> bool:
        """True if at most memory is kept free, and any op may be anywhere."""
        return not (self.pin or self.no_split or self.contiguous or self.kinds)

    def __str__(self) -> str:
        parts = [f"pin {pattern}={','.join(to)}" for pattern, to in self.pin.items()]
        parts += [f"reserve {device}={format_bytes(size)}" for device, size in self.reserve.items()]
        parts += [f"no_split {pattern}" for pattern in self.no_split]
        parts += [f"kinds {device}={','.join(kinds)}" for device, kinds in self.kinds.items()]
        parts += ["contiguous"] if self.contiguous else []
        return "; ".join(parts) or "none"

    def merged(self, other: Constraints) -> Constraints:
        """These constraints and others; for a pattern or selector in both, the others count."""
        return Constraints(
            {**self.pin, **other.pin},
            {**self.reserve, **other.reserve},
            tuple(dict.fromkeys((*self.no_split, *other.no_split))),
            self.contiguous or other.contiguous,
            {**self.kinds, **other.kinds},
        )

    # -- on disk -----------------------------------------------------------------------------

    def to_document(self) -> dict[str, Any]:
        """As plain data that :meth:`from_document` reads back; empty constraints are left out."""
        document = {
            "pin": {pattern: list(to) for pattern, to in self.pin.items()},
            "reserve": dict(self.reserve),
            "no_split": list(self.no_split),
            "contiguous": self.contiguous,
            "kinds": {device: list(kinds) for device, kinds in self.kinds.items()},
        }
        return {name: value for name, value in document.items() if value}

    @classmethod
    def from_document(cls, document: Any, source: str = "constraints") -> Constraints:
        """From plain data with the attributes' names; ``source`` is named in errors."""
        if not isinstance(document, Mapping):
            raise InputError(f"{source}: constraints are no table")
        known = [f.name for f in fields(cls)]
        unknown = sorted(set(document) - set(known))
        if unknown:
            raise InputError(
                f"{source}: no constraint is named {unknown[0]!r}{meant(unknown[0], known)}"
            )
        with naming(source):
            return cls(**document)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Constraints:
        """From a TOML file with the attributes' names.

        Raises
        ------
        InputError
            The file cannot be read, is no TOML, or has something else in it.
        """
        source = os.fspath(path)
        document = parse_toml(read_text(path), source)
        reserve = document.get("reserve")
        for on, size in (reserve if isinstance(reserve, Mapping) else {EVERY: reserve}).items():
            if checks.is_number(size):
                SIZE.read(size, f"{source}: reserve of {on}")
        return cls.from_document(document, source)


def as_constraints(constraints: Constraints | None) -> Constraints:
    """Constraints as functions take them: None is an empty set of constraints."""
    if constraints is None:
        return Constraints()
    if not isinstance(constraints, Constraints):
        raise InputError(f"constraints is {constraints!r}: wants lm.Constraints(...)")
    return constraints


# -- patterns and selectors --------------------------------------------------------------------


def matcher(pattern: str) -> Callable[[str], object]:
    """A function that says if a name matches a pattern as a whole, in linear time."""
    if not pattern.startswith(REGEX):
        return re.compile(fnmatch.translate(pattern)).match
    with refusing(f"{pattern!r} is no regular expression that is supported", ValueError):
        return fast.Pattern(pattern.removeprefix(REGEX)).matches


def selected(cluster: Cluster, selector: str) -> NDArray[np.bool_]:
    """Devices that a selector means, bool [n_devices].

    Raises
    ------
    InputError
        The selector means no device; the error lists devices and types.

    Examples
    --------
    >>> import loadmaster as lm
    >>> selected(lm.Cluster.preset("4xV100-PCIe"), "gpu[12]").tolist()
    [False, True, True, False]
    """
    names = [d.name for d in cluster.devices]
    if selector in names:
        return np.array([name == selector for name in names], dtype=bool)
    if selector in map(str, range(len(names))):
        return np.array([str(i) == selector for i in range(len(names))], dtype=bool)
    for words in (names, [d.type for d in cluster.devices]):
        mask = np.array([fnmatch.fnmatchcase(word, selector) for word in words], dtype=bool)
        if mask.any():
            return mask
    types = ", ".join(t.name for t in cluster.types)
    raise InputError(
        f"no device is {selector!r}: the cluster has {', '.join(names)}, of type {types}"
    )


def _items(constraints: Constraints, name: str) -> Iterable[tuple[Any, Any]]:
    value = getattr(constraints, name)
    if not isinstance(value, Mapping):
        raise InputError(f"{name} is {value!r}: wants a mapping")
    return value.items()


def _devices(rule: str, value: Any) -> tuple[str, ...]:
    """Selectors; a text may hold several, separated by commas."""
    if isinstance(value, str):
        value = [word.strip() for word in value.split(",")]
    return _listed(rule, value)


def _listed(rule: str, value: Any) -> tuple[str, ...]:
    """One word or several."""
    values = list(value) if isinstance(value, Sequence) and not isinstance(value, str) else [value]
    for v in values:
        if not checks.is_integer(v) and not (isinstance(v, str) and v):
            raise InputError(f"{rule} is {value!r}: wants a name, or a list of names")
    return tuple(str(v) for v in values)


def _pattern(rule: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise InputError(f"{rule} has the pattern {value!r}: wants a text")
    matcher(value)
    return value
