"""The ops that the patterns of constraints match."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from loadmaster.base.errors import InputError
from loadmaster.judge.problem import Problem
from loadmaster.model.module_paths import module_path
from loadmaster.model.program import COLLECTIVE
from loadmaster.rules.constraints import matcher


class Names:
    """The names of a problem's ops, modules and kinds, to match patterns with.

    An op of a program goes by the name of the user's op that it serves.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.map, self.runs = problem.reduced.map, problem.reduced.runs
        #: Ops that run, and placeholders, which are where :attr:`map` says. Views are no ops.
        self.placed = self.runs | problem.model.placeholder

    @cached_property
    def _distinct(self) -> tuple[list[str], NDArray[np.intp]]:
        modules = np.array(self.problem.model.modules, dtype=object)
        paths, which = np.unique(modules, return_inverse=True)
        return paths.tolist(), which

    @cached_property
    def paths(self) -> list[tuple[str, ...]]:
        """Distinct module paths, in parts."""
        return [module_path(path) for path in self._distinct[0]]

    @property
    def path_of(self) -> NDArray[np.intp]:
        """Index in :attr:`paths` per op."""
        return self._distinct[1]

    def matching(self, pattern: str) -> NDArray[np.intp]:
        """Reduced ops that a pin's pattern means: for a placeholder, the op it is placed with.

        Members of collectives are not meant: each is on a device of its own.
        """
        match = matcher(pattern)
        in_path = [bool(self.outermost(path, match)) for path in self.paths]
        hit = np.array(in_path, dtype=bool)[self.path_of]
        program = self.problem.program
        named = np.array([bool(match(name)) for name in program.source.names], dtype=bool)
        hit |= named[program.serves]
        hit &= ~program.graph.is_member
        if not hit.any():
            raise self._nothing("op or module", pattern)
        meant = hit & self.placed if (hit & self.placed).any() else hit
        return np.unique(self.map[meant]).astype(np.intp)

    def of_kinds(self, patterns: tuple[str, ...]) -> NDArray[np.bool_]:
        """Mask of the reduced ops whose kind matches one of the patterns."""
        program, op_of = self.problem.program, self.problem.reduced.op_of
        kinds = [program.graph.kinds[op] for op in op_of.tolist()]
        fitting: set[str] = set()
        for pattern in patterns:
            match = matcher(pattern)
            matching = {kind for kind in kinds if match(kind)}
            if not matching:
                raise InputError(f"no op is of a kind that matches {pattern!r}")
            fitting |= matching
        # An op that the program adds may be where the op that it serves may be.
        return np.array([kind in fitting for kind in kinds], dtype=bool) | program.own[op_of]

    def modules(self, patterns: Sequence[str]) -> Iterator[tuple[str, NDArray[np.intp]]]:
        """The outermost modules that match, with their reduced ops."""
        for pattern in patterns:
            match = matcher(pattern)
            modules = [self.outermost(path, match) for path in self.paths]
            names = np.array(modules, dtype=object)[self.path_of]
            placed = self.placed & (names != "")
            if not (placed & self.runs).any():
                raise self._nothing("module", pattern)
            for module in sorted(set(names[placed])):
                for inside in self._replicas(placed & (names == module)):
                    yield module, np.unique(self.map[inside]).astype(np.intp)

    def _replicas(self, inside: NDArray[np.bool_]) -> Iterator[NDArray[np.bool_]]:
        """Ops of a module, replica by replica, and of shards by device of the mesh.

        Ops that are not replicated count as ops of the first replica. Ops that sum over replicas
        are left out.
        """
        program = self.problem.program
        inside = inside & (program.role != COLLECTIVE)
        place = np.maximum(np.maximum(program.replica, program.rank), 0)
        for one in np.unique(place[inside]).tolist():
            yield inside & (place == one)

    @staticmethod
    def outermost(path: tuple[str, ...], match: Callable[[str], object]) -> str:
        """The shortest beginning of a path that matches; "" if none does."""
        parts = (".".join(path[: i + 1]) for i in range(len(path)))
        return next((part for part in parts if match(part)), "")

    def _nothing(self, rule: str, pattern: str) -> InputError:
        import difflib

        words = {".".join(path[: i + 1]) for path in self.paths for i in range(len(path))}
        words |= set(self.problem.program.source.names) if rule != "module" else set()
        near = difflib.get_close_matches(pattern.strip("*"), sorted(words), n=3, cutoff=0.4)
        hint = f"; did you mean {', '.join(map(repr, near))}?" if near else ""
        return InputError(f"no {rule} matches {pattern!r}{hint}")
