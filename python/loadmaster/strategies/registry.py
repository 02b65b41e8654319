"""Strategies by name, with the options each takes; where users add their own."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache, wraps
from typing import Any, Literal, TypeVar, get_args

import numpy as np

from loadmaster.base.errors import InputError
from loadmaster.judge.assignment import Assignment
from loadmaster.judge.problem import Problem
from loadmaster.strategies.attempts import Outcome, settled
from loadmaster.strategies.auto import auto
from loadmaster.strategies.candidate import Candidate, judged
from loadmaster.strategies.exact import cpsat, ilp, moirai, pesto
from loadmaster.strategies.groups import celeritas, dsc, glb, lc, order_place
from loadmaster.strategies.lists import (
    cpop,
    dpos,
    etf,
    getf,
    heft,
    m_etf,
    m_sct,
    m_topo,
    os_dpos,
    peft,
)
from loadmaster.strategies.rivals import cross_entropy, mcmc, policy_gradient
from loadmaster.strategies.simple import data_parallel, expert, metis, random, round_robin, single

Method = Literal[
    "auto",
    "celeritas",
    "order-place",
    "heft",
    "cpop",
    "peft",
    "etf",
    "getf",
    "m-topo",
    "m-etf",
    "m-sct",
    "dpos",
    "os-dpos",
    "lc",
    "dsc",
    "glb",
    "metis",
    "ilp",
    "cpsat",
    "pesto",
    "moirai",
    "mcmc",
    "cross-entropy",
    "policy-gradient",
    "expert",
    "random",
    "round-robin",
    "single",
    "data-parallel",
]

#: What each method does, in a line for a person.
METHODS: dict[str, tuple[Callable[..., Candidate], str]] = {
    "auto": (auto.place, "the best of many, then local search for as long as there is time"),
    "celeritas": (celeritas.place, "fuse, then Adjusting Placement or Order-Place (Celeritas)"),
    "order-place": (order_place.place, "fuse, then fill one device after another (Celeritas)"),
    "heft": (heft.place, "by upward rank, each where it finishes earliest (HEFT)"),
    "cpop": (cpop.place, "the critical path on one device, the rest as HEFT (CPoP)"),
    "peft": (peft.place, "HEFT with a table of optimistic costs to the end (PEFT)"),
    "etf": (etf.place, "the ready op and device that start first (ETF)"),
    "getf": (getf.place, "ETF within groups of devices of like speed (GETF)"),
    "m-etf": (m_etf.place, "ETF within memory, ties in topological order (Baechi)"),
    "m-sct": (m_sct.place, "m-ETF in which favourite children follow their parents (Baechi)"),
    "dpos": (dpos.place, "critical-path ops on critical-path devices, the rest as HEFT (FastT)"),
    "os-dpos": (os_dpos.place, "DPOS, splitting ops of the critical path where it helps (FastT)"),
    "lc": (lc.place, "critical paths as groups, mapped by load (LC + GLB)"),
    "dsc": (dsc.place, "dominant sequences as groups, mapped by load (DSC + GLB)"),
    "glb": (glb.place, "fused groups, mapped by load (GLB)"),
    "m-topo": (m_topo.place, "fill devices to an equal share in Kahn order (Baechi)"),
    "metis": (metis.place, "parts of equal weight that cut least, one per device (METIS)"),
    "ilp": (ilp.place, "a strengthened mixed-integer program, from where the search ends"),
    "cpsat": (cpsat.place, "constraint programming, from where the search ends (CP-SAT)"),
    "pesto": (pesto.place, "batch merging, then placement and schedule as an ILP (Pesto)"),
    "moirai": (moirai.place, "fusion rules, then placement and schedule as a MILP (Moirai)"),
    "mcmc": (mcmc.place, "a Metropolis walk over placements of groups (FlexFlow)"),
    "cross-entropy": (
        cross_entropy.place,
        "distributions over devices that learn from the best draws (Post)",
    ),
    "policy-gradient": (
        policy_gradient.place,
        "a policy that learns to place groups from simulated steps (HRL, Placeto)",
    ),
    "expert": (expert.place, "contiguous balanced layers by module path, the human's way"),
    "random": (random.place, "devices drawn at random"),
    "round-robin": (round_robin.place, "deal ops out in turn"),
    "single": (single.place, "everything on the fastest device that holds it"),
    "data-parallel": (
        data_parallel.place,
        "a replica on every device, gradients summed",
    ),
}
assert set(METHODS) == set(get_args(Method))

#: Those that come along: their names are taken.
_OURS = frozenset(METHODS)

#: What :func:`loadmaster.place` itself passes on to methods that take it.
SEARCHING = ("time_limit", "progress", "warm_start")


@cache
def _keywords(function: Callable[..., Candidate]) -> tuple[str, ...]:
    parameters = inspect.signature(function).parameters.items()
    return tuple(name for name, p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY)


def takes(function: Callable[..., Candidate], name: str) -> bool:
    """Whether a strategy has a keyword of this name."""
    return name in _keywords(function)


def function_of(method: str, options: dict[str, object]) -> Callable[..., Candidate]:
    """The function behind a method's name, after checking its options.

    Raises
    ------
    InputError
        An unknown method, or an option that the method does not take.
    """
    if not isinstance(method, str) or method not in METHODS:
        raise InputError(f"no method is named {method!r}; there are {', '.join(METHODS)}")
    function = METHODS[method][0]
    known = [name for name in _keywords(function) if name not in SEARCHING]
    unknown = sorted(set(options) - set(known))
    if unknown:
        takes = f"takes {', '.join(known)}" if known else "takes no options"
        raise InputError(f"method {method!r} has no option {unknown[0]!r}; it {takes}")
    return function


Function = TypeVar("Function", bound=Callable[..., "Assignment | Candidate"])


def strategy(name: str, summary: str) -> Callable[[Function], Function]:
    """Makes a function a method: :func:`loadmaster.place` and all that compares methods know it.

    The function takes a :class:`~loadmaster.judge.problem.Problem` and, as keywords, options of its
    own with defaults. It returns an :class:`~loadmaster.strategies.Assignment` (device and priority
    per op of the reduced graph, ``problem.graph``), which is then simulated and held to the memory;
    or a :class:`~loadmaster.strategies.Candidate` that it judged itself. If it has keywords
    ``time_limit`` or ``progress``, those of ``place`` are passed on. Worker processes know it if
    the module that registers it is imported there.

    Parameters
    ----------
    name : str
        Of the method, in small letters, digits and dashes. A name may be registered again, unless
        it is one of the methods that come along.
    summary : str
        What it does, in a line.

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
    if name in _OURS:
        raise InputError(f"{name!r} is a method that comes along: give yours another name")

    def register(function: Function) -> Function:
        @wraps(function)
        def method(problem: Problem, **options: Any) -> Candidate:
            found = function(problem, **options)
            if isinstance(found, Candidate):
                return found
            placement = _checked(problem, name, found)
            return settled(problem, Outcome(judged(problem, placement), 1.0))

        METHODS[name] = (method, summary)
        return function

    return register


def _checked(problem: Problem, name: str, found: object) -> Assignment:
    """What a user's strategy returned, if it is a placement of this problem."""
    if not isinstance(found, Assignment):
        raise InputError(f"method {name!r} returned {found!r}: wants an Assignment or a Candidate")
    n, columns = problem.graph.n_ops, []
    for what, given in (("devices", found.devices), ("priority", found.priority)):
        column = np.asarray(given)
        if column.shape != (n,) or column.dtype.kind not in "iu":
            raise InputError(
                f"method {name!r}: {what} has shape {column.shape} ({column.dtype}), wants {n} "
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
    return replace(found, devices=devices.astype(np.int32), priority=columns[1].astype(np.int32))
