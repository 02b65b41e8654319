"""Strategies by name, with the options each takes; where users add their own."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import replace
from functools import cache, wraps
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, Literal, TypeVar, get_args

import numpy as np

from loadmaster.base.errors import InputError
from loadmaster.base.text import meant
from loadmaster.judge.assignment import Assignment
from loadmaster.judge.problem import Problem
from loadmaster.strategies.attempts import Outcome, accepted
from loadmaster.strategies.candidate import Candidate, judged
from loadmaster.strategies.options import Option, check_options, listed, options_type

#: The methods that type checkers know, and the order in which they are listed. Others come after.
Method = Literal[
    "auto",
    "celeritas",
    "order-place",
    "heft",
    "cpop",
    "peft",
    "etf",
    "getf",
    "m-etf",
    "m-sct",
    "dpos",
    "os-dpos",
    "lc",
    "dsc",
    "glb",
    "m-topo",
    "metis",
    "ilp",
    "cpsat",
    "pesto",
    "moirai",
    "mcmc",
    "cross-entropy",
    "policy-gradient",
    "layers",
    "random",
    "round-robin",
    "single",
    "data-parallel",
    "sharded",
    "megatron",
    "fsdp",
    "gpipe",
    "pipedream",
    "max-load",
    "piper",
    "pipeline",
    "recipe",
]

#: The method that plans are made by unless another is named. Methods that start from where a search
#: ends are given it.
DEFAULT: Method = "auto"

#: Names that methods had, and still answer to. A plan has the name of today.
FORMER_NAMES = {"expert": "layers"}

#: A function that makes plans, and what it does, in a line for a person.
Entry = tuple[Callable[..., Candidate], str]


class _Methods(MutableMapping[str, Entry]):
    """Methods by name: those of :data:`Method` in its order, then all others.

    One that needs an option, such as a recipe, is there by its name and is not listed: whoever goes
    through all methods has nothing to give it.

    Those that come along register themselves when their files are imported. That happens when they
    are asked for: the file that is called like the method first, the others if that is not enough.
    """

    def __init__(self) -> None:
        self._registered: dict[str, Entry] = {}

    def __getitem__(self, name: str) -> Entry:
        name = FORMER_NAMES.get(name, name)
        if name not in self._registered:
            _import(str(name).replace("-", "_"))
        if name not in self._registered:
            _import_all()
        return self._registered[name]

    def __setitem__(self, name: str, entry: Entry) -> None:
        self._registered[name] = entry

    def __delitem__(self, name: str) -> None:
        del self._registered[name]

    def __iter__(self) -> Iterator[str]:
        _import_all()
        ours = [name for name in get_args(Method) if name in self._registered]
        known = dict.fromkeys([*ours, *self._registered])
        return iter([name for name in known if not _needs(self._registered[name][0])])

    def __len__(self) -> int:
        return len(list(iter(self)))

    def comes_along(self, name: str) -> bool:
        """True if a method of this name comes along. Its file is called like it."""
        _import(name.replace("-", "_"))
        return name in self._registered and _is_ours(self._registered[name][0])


def _is_ours(function: Callable[..., object]) -> bool:
    """True if the file of a function is in a family's folder."""
    return function.__module__.startswith(f"{__package__}.")


@cache
def _files() -> tuple[str, ...]:
    """Full names of the modules in the families' folders."""
    assert __package__ is not None
    package = import_module(__package__)
    families = [one.name for one in iter_modules(package.__path__, f"{__package__}.") if one.ispkg]
    return tuple(
        file.name
        for family in families
        for file in iter_modules(import_module(family).__path__, f"{family}.")
    )


def _import(file: str) -> None:
    for module in _files():
        if module.endswith(f".{file}"):
            import_module(module)


@cache
def _import_all() -> None:
    for module in _files():
        import_module(module)


#: Method to its summary.
METHODS = _Methods()

#: Methods whose plans compete with another one's where stages must be contiguous.
_RIVALS_IN_STAGES: dict[str, tuple[str, ...]] = {}

#: Methods whose refusal stands: nothing is placed in their stead.
_FINAL: set[str] = set()


def _needs(function: Callable[..., Candidate]) -> bool:
    """True if a strategy has an option that it cannot do without."""
    return any(option.is_needed for option in listed(options_type(function)))


def options_of(method: str) -> list[Option]:
    """The options that a method takes.

    Raises
    ------
    InputError
        An unknown method.
    """
    if not isinstance(method, str) or method not in METHODS:
        raise InputError(f"no method is named {method!r}{meant(method, METHODS)}")
    return listed(options_type(METHODS[method][0]))


def function_of(method: str, options: Mapping[str, object]) -> Callable[..., Candidate]:
    """The function behind a method's name, after checking its options.

    Raises
    ------
    InputError
        An unknown method, an option that the method does not take, or of another kind, or none
        where it needs one.
    """
    options_of(method)
    function = METHODS[method][0]
    check_options(f"method {method!r}", function, options)
    return function


Function = TypeVar("Function", bound=Callable[..., "Assignment | Candidate"])


def rivals_in_stages(method: str) -> list[Callable[..., Candidate]]:
    """The methods that compete with one where stages must be contiguous."""
    return [METHODS[name][0] for name in _RIVALS_IN_STAGES.get(method, ())]


def is_final(method: str) -> bool:
    """True if a method's refusal stands; else a search for the least overflow stands in for it."""
    return method in _FINAL


def strategy(
    name: str, summary: str, *, rivals_in_stages: tuple[str, ...] = (), is_final: bool = False
) -> Callable[[Function], Function]:
    """Makes a function a method: :func:`loadmaster.place` and all that compares methods know it.

    The function takes a :class:`~loadmaster.judge.problem.Problem` and, as keywords, options of its
    own with defaults. It returns an :class:`~loadmaster.strategies.Assignment` (device and priority
    per op of the reduced graph, ``problem.graph``), which is then simulated, or a
    :class:`~loadmaster.strategies.Candidate` that it judged itself. Both are held to the memory.
    If it has keywords ``time_limit``, ``progress`` or ``warm_start``, those of ``place`` are passed
    on; a keyword ``start_search`` is given the method that plans are made by unless another is
    named. Worker processes know it if the module that registers it is imported there.

    Parameters
    ----------
    name : str
        Of the method, in small letters, digits and dashes. A name may be registered again, unless
        it is one of the methods that come along.
    summary : str
        What it does, in a line.
    rivals_in_stages : tuple of str
        Methods whose plans compete with its own where stages must be contiguous.
    is_final : bool
        Whether its refusal stands. If not, a search for the least overflow decides where the
        method finds nothing that fits (:mod:`loadmaster.strategies.least_overflow`).

    Raises
    ------
    InputError
        A name that is taken, or no name.

    Examples
    --------
    >>> import loadmaster as lm, numpy as np
    >>> from loadmaster.strategies import Assignment
    >>> @lm.strategy("last-device", "everything on the last device")
    ... def last_device(problem):
    ...     ops = np.arange(problem.graph.n_ops, dtype=np.int32)
    ...     return Assignment(np.full_like(ops, problem.cluster.n_devices - 1), ops)
    >>> plan = lm.place(lm.read("example:lenet"), lm.Cluster.preset("2xV100-NVLink"), "last-device")
    >>> plan.device("convolution")
    'gpu1'
    """
    if not isinstance(name, str) or not re.fullmatch(r"[a-z0-9][a-z0-9-]*", name):
        raise InputError(f"{name!r} is no name for a method: wants small letters, digits, dashes")

    def register(function: Function) -> Function:
        if not _is_ours(function) and METHODS.comes_along(name):
            raise InputError(f"{name!r} is a method that comes along: give yours another name")

        @wraps(function)
        def method(problem: Problem, **options: Any) -> Candidate:
            result = function(problem, **options)
            if not isinstance(result, Candidate):
                result = judged(problem, _checked(problem, name, result))
            return accepted(result.problem, Outcome(result, 1.0))

        METHODS[name] = (method, summary)
        _RIVALS_IN_STAGES[name] = rivals_in_stages
        (_FINAL.add if is_final else _FINAL.discard)(name)
        return function

    return register


def _checked(problem: Problem, name: str, result: object) -> Assignment:
    """A user's strategy's result, if it is a placement of this problem."""
    if not isinstance(result, Assignment):
        raise InputError(f"method {name!r} returned {result!r}: wants an Assignment or a Candidate")
    n, columns = problem.graph.n_ops, []
    for name_of, values in (("devices", result.devices), ("priority", result.priority)):
        column = np.asarray(values)
        if column.shape != (n,) or column.dtype.kind not in "iu":
            raise InputError(
                f"method {name!r}: {name_of} has shape {column.shape} ({column.dtype}), wants {n} "
                "integers, one per op of the reduced graph"
            )
        columns.append(column)
    devices, last = columns[0], problem.cluster.n_devices - 1
    wrong = np.flatnonzero((devices < 0) | (devices > last))
    if len(wrong):
        op = problem.model.names[int(problem.reduced.op_of[wrong[0]])]
        raise InputError(
            f"method {name!r} put op {op!r} on device {devices[wrong[0]]}: wants 0 to {last}"
        )
    return replace(result, devices=devices.astype(np.int32), priority=columns[1].astype(np.int32))
