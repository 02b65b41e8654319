"""Which ops the patterns of constraints mean."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from loadmaster.base.errors import InputError
from loadmaster.judge.problem import Problem
from loadmaster.model.module_paths import module_path
from loadmaster.rules.constraints import matcher
from loadmaster.transforms.base import AGGREGATE, CONCAT, SPLIT, SUM

#: What parts the name of an op that a transform made from the name of the op it comes from.
_MADE_FROM = "@"

#: Kinds of the ops that transforms add.
_ADDED = frozenset({SPLIT, CONCAT, SUM, AGGREGATE})


class Names:
    """The names of a problem's ops, modules and kinds, to match patterns with."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.map = problem.reduced.map

    @cached_property
    def runs(self) -> NDArray[np.bool_]:
        """Whether each op of the model runs."""
        runs = np.zeros(self.problem.model.n_ops, dtype=bool)
        runs[self.problem.reduced.op_of] = True
        return runs

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
        """Reduced ops that a pin's pattern means."""
        match = matcher(pattern).match
        in_path = [bool(self.outermost(path, match)) for path in self.paths]
        hit = np.array(in_path, dtype=bool)[self.path_of]
        for i in np.flatnonzero(~hit):
            name = self.problem.model.names[i]
            hit[i] = bool(match(name) or match(name.partition(_MADE_FROM)[0]))
        if not hit.any():
            raise self._nothing("op or module", pattern)
        meant = hit & self.runs if (hit & self.runs).any() else hit
        return np.unique(self.map[meant]).astype(np.intp)

    def of_kinds(self, patterns: tuple[str, ...]) -> NDArray[np.bool_]:
        """Whether each reduced op is of a kind that matches one of the patterns."""
        model, op_of = self.problem.model, self.problem.reduced.op_of.tolist()
        kinds = [model.kinds[op] for op in op_of]
        fitting: set[str] = set()
        for pattern in patterns:
            match = matcher(pattern).match
            found = {kind for kind in kinds if match(kind)}
            if not found:
                raise InputError(f"no op is of a kind that matches {pattern!r}")
            fitting |= found
        # What a transform adds goes where the op that it comes from may be.
        rows = zip(kinds, op_of, strict=True)
        added = [kind in _ADDED and _MADE_FROM in model.names[op] for kind, op in rows]
        hits = [kind in fitting or own for kind, own in zip(kinds, added, strict=True)]
        return np.array(hits, dtype=bool)

    def modules(self, patterns: Sequence[str]) -> Iterator[tuple[str, NDArray[np.intp]]]:
        """The outermost modules that match, with their reduced ops."""
        for pattern in patterns:
            match = matcher(pattern).match
            found = [self.outermost(path, match) for path in self.paths]
            names = np.array(found, dtype=object)[self.path_of]
            running = self.runs & (names != "")
            if not running.any():
                raise self._nothing("module", pattern)
            for module in sorted(set(names[running])):
                yield module, np.unique(self.map[running & (names == module)]).astype(np.intp)

    @staticmethod
    def outermost(path: tuple[str, ...], match: Callable[[str], object]) -> str:
        """The shortest part of a path, from its start, that matches; "" if none does."""
        parts = (".".join(path[: i + 1]) for i in range(len(path)))
        return next((part for part in parts if match(part)), "")

    def _nothing(self, what: str, pattern: str) -> InputError:
        import difflib

        words = {".".join(path[: i + 1]) for path in self.paths for i in range(len(path))}
        words |= set(self.problem.model.names) if what != "module" else set()
        near = difflib.get_close_matches(pattern.strip("*"), sorted(words), n=3, cutoff=0.4)
        hint = f"; did you mean {', '.join(map(repr, near))}?" if near else ""
        return InputError(f"no {what} matches {pattern!r}{hint}")
