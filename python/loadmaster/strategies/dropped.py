"""Candidates that a search made itself and that are refused: each is dropped, and its reason kept.

A user asked for none of them, so none of their errors is the user's to read. Only what this project
raises on purpose of an input or of memory is a refusal; any other error is a fault, and passes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from loadmaster.base.errors import InfeasibleError, InputError

T = TypeVar("T")

#: An error that refuses a candidate.
Refusal = InfeasibleError | InputError


@dataclass
class Refusals:
    """The refusals of one search.

    Attributes
    ----------
    reasons : dict of str to InfeasibleError or InputError
        The last refusal of each candidate, by the candidate in words.

    Examples
    --------
    >>> from loadmaster.strategies.simple import single
    >>> import loadmaster as lm
    >>> tiny = lm.Cluster.preset("2xV100-NVLink").with_memory(1)
    >>> graph = lm.read("example:lenet")
    >>> problem = lm.judge.problem.Problem.make(graph, tiny, lm.costs.estimate(graph, tiny))
    >>> refusals = Refusals()
    >>> refusals.tried("one device", lambda: single.place(problem)) is None
    True
    >>> list(refusals.reasons)
    ['one device']
    """

    reasons: dict[str, Refusal] = field(default_factory=dict)

    def tried(self, words: str, make: Callable[[], T]) -> T | None:
        """The candidate that a function makes; None: it was refused."""
        try:
            return make()
        except (InfeasibleError, InputError) as error:
            self.reasons[words] = error
            return None

    @property
    def last(self) -> Refusal | None:
        """The last refusal; None: nothing was refused."""
        return next(reversed(self.reasons.values()), None)

    @property
    def in_words(self) -> str:
        """The last refusal: the candidate, and why; empty: nothing was refused."""
        return next((f"{words}: {why}" for words, why in reversed(self.reasons.items())), "")

    def each(self, words: str, candidates: Iterator[T]) -> Iterator[T]:
        """Candidates as they come, until one is refused."""
        while (one := self.tried(words, lambda: next(candidates, None))) is not None:
            yield one
