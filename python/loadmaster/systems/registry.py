"""Systems by name: what each makes of a plan, the function that plans for it, and its writer.

A system is a folder. Its file ``semantics.py`` declares it, under every name that it has, and names
the functions of ``plan.py`` and ``write.py``. These are imported when they are asked for. Planning
stays within the semantics and prices them, so that the writer never refuses a plan that was made
for the system.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cache
from importlib import import_module, metadata
from inspect import signature
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

from loadmaster.base.errors import InputError
from loadmaster.base.later import imported
from loadmaster.base.text import meant
from loadmaster.model.runtime import SessionCost
from loadmaster.strategies.options import Option, check_options, listed, options_type
from loadmaster.strategies.registry import METHODS

if TYPE_CHECKING:
    from loadmaster.judge.problem import Problem
    from loadmaster.model.graph import OpGraph
    from loadmaster.strategies.candidate import Candidate


class Launcher(StrEnum):
    """The one who pays for launching ops."""

    #: Each device launches its own ops, as the cluster has it.
    DEVICES = "devices"
    #: One thread launches the ops of all devices, one after another.
    ONE_THREAD = "one thread"
    #: Nobody launches during a step: kernels were captured or compiled before.
    NOBODY = "nobody"


@dataclass(frozen=True)
class Semantics:
    """The limits of a system on plans. Words are for people; the last two members steer planning.

    Attributes
    ----------
    system : str
        Its name where it comes from.
    models : str
        The kind of models that it takes.
    splits : str
        Things that may be split, and how.
    unit : str
        The unit of placement.
    moves : str
        Things that move between devices, and when.
    launches : str
        Who launches ops.
    memory : str
        Things that count as memory.
    framework : str
        The beginning of the ``framework`` of the graphs that it takes, where it runs the model
        itself. Empty: it takes a graph of any.
    launcher : Launcher
        The one who pays for launches: a plan is priced so.
    runtimes : tuple of str
        The runtimes that it has, of :data:`~loadmaster.costs.runtimes.priced.RUNTIMES`. Empty: one
        of its own.
    own_all_reduce : bool
        True if it sums inside a host by a kernel of its own, instead of by NCCL.
    """

    system: str
    models: str
    splits: str
    unit: str
    moves: str
    launches: str
    memory: str
    framework: str = ""
    launcher: Launcher = Launcher.DEVICES
    runtimes: tuple[str, ...] = ()
    own_all_reduce: bool = False


@dataclass(frozen=True)
class WrittenForm:
    """A form that a plan can be written in.

    Attributes
    ----------
    place : str
        The writer, as :func:`~loadmaster.base.later.imported` takes it: a function of a plan, a
        path or None, and options as keywords.
    text : str
        The form in a few words, for people.
    is_file : bool
        True if the writer's result is of use in a file only.
    in_segments : bool
        True if the plan is cut into :class:`~loadmaster.plans.segments.Segments`, so that its step
        may be another than planned.
    session : SessionCost or None
        The cost of running a segment on device types that do not say theirs; None: nothing.
    """

    place: str
    text: str
    is_file: bool = False
    in_segments: bool = False
    session: SessionCost | None = None

    @property
    def write(self) -> Callable[..., Any]:
        """The writer."""
        writer: Callable[..., Any] = imported(self.place)
        return writer

    @property
    def options(self) -> dict[str, bool]:
        """Options of the writer beside the plan and the path; True: it cannot do without."""
        taken = signature(self.write).parameters.values()
        return {p.name: p.default is p.empty for p in taken if p.kind is p.KEYWORD_ONLY}


@dataclass(frozen=True)
class Checked:
    """The outcome of a check of what was written by the system's own code.

    Attributes
    ----------
    is_done : bool
        False: it was not checked.
    words : str
        The things that ran, or why nothing did.
    collectives : mapping of str to (int, int)
        The number and the bytes of collectives that ran, by kind.
    planned : mapping of str to (int, int)
        Those of the plan.
    differs : str
        In words, where what ran is not what the plan has; "" where it is, or nothing says it.
    """

    is_done: bool
    words: str
    collectives: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    planned: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    differs: str = ""

    def __str__(self) -> str:
        return f"{'checked' if self.is_done else 'not checked'}: {self.words}"


@dataclass(frozen=True)
class System:
    """A system that runs or reads plans, under one of its names.

    Attributes
    ----------
    name : str
        As ``--target`` takes it.
    semantics : Semantics or None
        None: nothing is planned for it, it reads any plan that it can.
    planner : str
        The function that plans for it, as :func:`~loadmaster.base.later.imported` takes it: from a
        :class:`~loadmaster.judge.problem.Problem` and options with defaults, as keywords, to a
        :class:`~loadmaster.strategies.Candidate` that the system can run. The problem is at the
        system's prices. Keywords ``time_limit`` and ``progress`` are passed on as methods get them.
        It refuses a model of another kind with an :class:`~loadmaster.base.errors.InputError` that
        names the kind (:func:`refused`). Empty: there is none.
    form : Form or None
        The form of its files; None: nothing is written for it.
    beside : tuple of str
        Other functions of ``loadmaster.writers``, as ``planner`` is given.
    packages : tuple of str
        Distributions of Python any of which is the system. Empty: it is none, or it is none that
        Python has.
    checker : str
        The function that runs or parses what was written by the system's own code, as ``planner``
        is given: from a plan, a path, and ``FILE.py:FUNCTION`` or None to a :class:`Checked`. It
        raises an InputError where the system refuses it. Empty: there is none.
    """

    name: str
    semantics: Semantics | None = None
    planner: str = ""
    form: WrittenForm | None = None
    beside: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    checker: str = ""

    def check(self, plan: Any, path: Any, model: str | None = None) -> Checked:
        """Checks what was written to a path by the system's own code, where it is installed.

        Raises
        ------
        InputError
            The system refuses it.
        """
        if not self.checker:
            reads = f": {self.packages[0]} reads them when it starts" if self.packages else ""
            return Checked(False, f"nothing checks files for {self.name}{reads}")
        if self.version is None:
            return Checked(False, f"{' or '.join(self.packages)} is not installed")
        outcome: Checked = imported(self.checker)(plan, path, model)
        return outcome

    @property
    def version(self) -> str | None:
        """The installed package and its version, which is not imported for that; None: there is
        none.
        """
        for package in self.packages:
            with suppress(metadata.PackageNotFoundError):
                return f"{package} {metadata.version(package)}"
        return None

    @property
    def plan(self) -> Callable[..., Candidate]:
        """The function that plans for it."""
        planner: Callable[..., Candidate] = imported(self.planner)
        return planner

    @property
    def says(self) -> Semantics:
        """The semantics of a system that is planned for."""
        assert self.semantics is not None, f"nothing is planned for {self.name}"
        return self.semantics

    def priced(self, problem: Problem) -> Problem:
        """The problem at the prices of the system.

        Raises
        ------
        InputError
            One thread launches, and the cluster does not say what a launch takes.
        """
        from loadmaster.model.clusters.measured_collectives import as_served
        from loadmaster.systems.shared import launches

        match self.says.launcher:
            case Launcher.DEVICES:
                priced = problem
            case Launcher.ONE_THREAD:
                priced = launches.by_one_thread(problem, self.name)
            case Launcher.NOBODY:
                priced = launches.by_nobody(problem)
        if self.says.own_all_reduce:
            priced = replace(priced, cluster=as_served(priced.cluster))
        return priced

    def check_framework(self, graph: OpGraph) -> None:
        """Refuses a graph that says that it is from another framework than the system runs.

        Raises
        ------
        InputError
        """
        framework = str(graph.meta.get("framework", ""))
        if framework and not framework.startswith(self.says.framework):
            raise refused(self.name, f"{graph.name or 'the graph'!r} is of {framework}")

    def check_runtime(self, runtime: str | None) -> None:
        """Refuses a runtime that the system does not have; None: nobody asks for one.

        Raises
        ------
        InputError
        """
        known = self.says.runtimes
        if runtime is not None and runtime not in known:
            has = f"has {' or '.join(known)}" if known else "runs ops in a way of its own"
            raise InputError(f"target {self.name!r} {has}: leave out runtime {runtime!r}")

    def decides_alone(self, others: Mapping[str, bool]) -> None:
        """Refuses what else would decide: each by its name, with whether it is given."""
        for other in (name for name, is_given in others.items() if is_given):
            raise InputError(
                f"target {self.name!r} has a way of planning of its own: leave out {other}"
            )

    def checked(self, options: Mapping[str, object]) -> None:
        """Refuses options that planning for it does not take, or that are of another kind."""
        check_options(f"target {self.name!r}", self.plan, options)

    @property
    def options(self) -> list[Option]:
        """The options that planning for it takes."""
        return listed(options_type(self.plan))


class _Systems(Mapping[str, System]):
    """Systems by name, in the order of their names. Folders are looked into when asked for."""

    def __init__(self) -> None:
        self.declared: dict[str, System] = {}

    def __getitem__(self, name: str) -> System:
        if name not in self.declared:
            self._look_for(name)
        return self.declared[name]

    def __iter__(self) -> Iterator[str]:
        self._look_into_all()
        return iter(sorted(self.declared))

    def __len__(self) -> int:
        self._look_into_all()
        return len(self.declared)

    def _look_for(self, name: str) -> None:
        """Looks into the folder that has the name of a system; into all, if that has no such."""
        folder = str(name).replace("-", "_")
        if folder in _folders():
            self._look_into(folder)
        if name not in self.declared:
            self._look_into_all()

    def _look_into_all(self) -> None:
        for folder in _folders():
            self._look_into(folder)

    def _look_into(self, folder: str) -> None:
        """Declares the systems of a folder, if it has any: the folder of shared parts has none."""
        for system in _declared_in(folder):
            self.declared[system.name] = system


#: Every system that plans are made for, or written for.
SYSTEMS = _Systems()


def _folders() -> list[str]:
    assert __package__ is not None
    return [m.name for m in iter_modules(import_module(__package__).__path__) if m.ispkg]


@cache
def _declared_in(folder: str) -> tuple[System, ...]:
    """The systems that the file ``semantics`` of a folder declares; none: there is no such file."""
    name = f"{__package__}.{folder}"
    if not any(m.name == "semantics" for m in iter_modules(import_module(name).__path__)):
        return ()
    declared: tuple[System, ...] = import_module(f"{name}.semantics").SYSTEMS
    return declared


def planned_for() -> list[str]:
    """The names of the systems that plans are made for, in their order."""
    return [name for name, system in SYSTEMS.items() if system.semantics is not None]


def is_planned_for(name: str) -> bool:
    """True if plans are made for a system of that name."""
    return name in SYSTEMS and SYSTEMS[name].semantics is not None


def target_of(name: str) -> System:
    """The system of a name, which plans are made for.

    Raises
    ------
    InputError
        There is none.
    """
    if not isinstance(name, str) or not is_planned_for(name):
        other = f"; {name} is a method (--method {name})" if name in METHODS else ""
        raise InputError(f"no target is named {name!r}{other or meant(name, planned_for())}")
    return SYSTEMS[name]


def written_by(name: str, plan: object, *arguments: object, **options: object) -> Any:
    """The result of a system's writer: for the files of others that start it."""
    form = SYSTEMS[name].form
    assert form is not None, f"nothing is written for {name}"
    return form.write(plan, *arguments, **options)


def limits_of(name: str) -> tuple[tuple[str, str], ...]:
    """Plans that a system leaves out, and why: as :attr:`loadmaster.Plan.left_out` has them."""
    splits = SYSTEMS[name].says.splits
    return ((f"what the target {name} cannot run", f"it may split {splits}"),)


def check_no_target(method: object) -> None:
    """Refuses a system's name where a method's is wanted, with the option that takes it.

    Raises
    ------
    InputError
    """
    if isinstance(method, str) and method not in METHODS and is_planned_for(method):
        raise InputError(f"no method is named {method!r}; {method} is a target (--target {method})")


def refused(name: str, because: str) -> InputError:
    """The error for a model that is not of the kind that a system takes."""
    return InputError(f"target {name!r} takes {SYSTEMS[name].says.models}: {because}")
