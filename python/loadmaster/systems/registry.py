"""Targets by name: what each system makes of a plan, and the function that plans for it.

A target states its semantics once. Planning for it stays within them and prices them, so that the
system's writer never refuses a plan that was made for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module, resources
from pkgutil import iter_modules
from typing import TypeVar

from loadmaster.base.errors import InputError
from loadmaster.base.text import meant
from loadmaster.judge.problem import Problem
from loadmaster.model.graph import OpGraph
from loadmaster.strategies.candidate import Candidate
from loadmaster.strategies.registry import METHODS, PASSED_ON, keywords


@dataclass(frozen=True)
class Semantics:
    """What a system makes of a plan, each a sentence or a few words for a person.

    Attributes
    ----------
    system : str
        What it is called where it comes from.
    models : str
        The kind of models that it takes.
    splits : str
        What may be split, and how.
    unit : str
        The unit of placement.
    moves : str
        What moves between devices, and when.
    launches : str
        Who launches ops.
    memory : str
        What counts as memory, and what else it keeps.
    """

    system: str
    models: str
    splits: str
    unit: str
    moves: str
    launches: str
    memory: str


@dataclass(frozen=True)
class Target:
    """A system that runs plans.

    Attributes
    ----------
    name : str
    semantics : Semantics
    plan : callable
        From a :class:`~loadmaster.judge.problem.Problem` and options, as keywords, to a
        :class:`~loadmaster.strategies.Candidate` that the system can run. It refuses a model of
        another kind with an :class:`~loadmaster.base.errors.InputError` that names the kind
        (:func:`refused`).
    priced : callable
        From the problem that was given to the same at the prices of the system: what launches cost,
        for one.
    framework : str
        Whose graphs it takes, where it runs the model itself: what their ``framework`` begins with.
        Empty: it takes a graph of any.
    """

    name: str
    semantics: Semantics
    plan: Callable[..., Candidate]
    priced: Callable[[Problem], Problem]
    framework: str = ""

    def check_framework(self, graph: OpGraph) -> None:
        """Refuses a graph that says that it is from another framework than the system runs.

        Raises
        ------
        InputError
        """
        found = str(graph.meta.get("framework", ""))
        if found and not found.startswith(self.framework):
            raise refused(self.name, f"{graph.name or 'the graph'!r} is of {found}")

    def decides_alone(self, others: Mapping[str, bool]) -> None:
        """Refuses what else would decide: each by its name, with whether it is given."""
        for what in (name for name, is_given in others.items() if is_given):
            raise InputError(
                f"target {self.name!r} has a way of planning of its own: leave out {what}"
            )

    def checked(self, options: Mapping[str, object]) -> None:
        """Refuses options that planning for it does not take."""
        known = [name for name in keywords(self.plan) if name not in PASSED_ON]
        for name in sorted(set(options) - set(known)):
            raise InputError(f"target {self.name!r} has no option {name!r}{meant(name, known)}")


class _Targets(Mapping[str, Target]):
    """Targets by name, in the order of their names. Their files are imported when asked for."""

    def __init__(self) -> None:
        self.registered: dict[str, Target] = {}

    def __getitem__(self, name: str) -> Target:
        if name not in self.registered:
            _import_that_of(name)
        return self.registered[name]

    def __iter__(self) -> Iterator[str]:
        _import_all()
        return iter(sorted(self.registered))

    def __len__(self) -> int:
        _import_all()
        return len(self.registered)


#: Every target that is planned for.
TARGETS = _Targets()


def _import_that_of(name: str) -> None:
    """Imports the folder that has the name of a target; all of them, if none has."""
    folder = str(name).replace("-", "_")
    if folder.isidentifier():
        _import_plan(folder)
    if name not in TARGETS.registered:
        _import_all()


@cache
def _import_all() -> None:
    assert __package__ is not None
    for module in iter_modules(import_module(__package__).__path__):
        if module.ispkg:
            _import_plan(module.name)


def _import_plan(folder: str) -> None:
    """Imports the file ``plan`` of a folder, if there is such a folder with such a file."""
    assert __package__ is not None
    path = resources.files(__package__) / folder
    if (path / "plan.py").is_file():
        import_module(f"{__package__}.{folder}.plan")


Function = TypeVar("Function", bound=Callable[..., Candidate])


def target(
    name: str,
    semantics: Semantics,
    *,
    priced: Callable[[Problem], Problem] = lambda given: given,
    framework: str = "",
) -> Callable[[Function], Function]:
    """Makes a function what plans for a target: ``place(..., target=name)`` calls it.

    The function takes a :class:`~loadmaster.judge.problem.Problem` and, as keywords, options with
    defaults. Keywords ``time_limit`` and ``progress`` are passed on as methods get them. The
    problem is at the system's prices (:attr:`Target.priced`), and so is the plan. Graphs of another
    framework than :attr:`Target.framework` are refused before.
    """

    def register(function: Function) -> Function:
        TARGETS.registered[name] = Target(name, semantics, function, priced, framework)
        return function

    return register


def target_of(name: str) -> Target:
    """The target of a name.

    Raises
    ------
    InputError
        There is none.
    """
    if not isinstance(name, str) or name not in TARGETS:
        other = f"; {name} is a method (--method {name})" if name in METHODS else ""
        raise InputError(f"no target is named {name!r}{other or meant(name, TARGETS)}")
    return TARGETS[name]


def limits_of(name: str) -> tuple[tuple[str, str], ...]:
    """Plans that a target leaves out, and why: as :attr:`loadmaster.Plan.left_out` has them."""
    splits = TARGETS[name].semantics.splits
    return ((f"what the target {name} cannot run", f"it may split {splits}"),)


def check_no_target(method: object) -> None:
    """Refuses a target's name where a method's is wanted, with the option that takes it.

    Raises
    ------
    InputError
    """
    if isinstance(method, str) and method not in METHODS and method in TARGETS:
        raise InputError(f"no method is named {method!r}; {method} is a target (--target {method})")


def refused(name: str, because: str) -> InputError:
    """The error for a model that is not of the kind that a target takes."""
    return InputError(f"target {name!r} takes {TARGETS[name].semantics.models}: {because}")
