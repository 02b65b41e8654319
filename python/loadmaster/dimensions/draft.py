"""A pattern in the making: words are given to axes, and in the end numbered and checked."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from loadmaster.dimensions.call import NamedCall
from loadmaster.dimensions.form import Meaning, Pattern

#: The word of an axis that is never cut.
NONE = ""


class Draft:
    """Words for the axes of a call's tensors; what has none is never cut."""

    def __init__(self, call: NamedCall) -> None:
        self.call = call
        self.inputs: list[list[str] | None] = [[NONE] * len(sizes) for sizes in call.inputs]
        self.outputs: list[list[str]] = [[NONE] * len(sizes) for sizes in call.outputs]
        self.meanings: dict[str, Meaning] = {}
        #: Words whose axes may differ in length: parts have the same shares of them.
        self.unequal: set[str] = set()

    def means(self, words: Iterable[str], meaning: Meaning) -> None:
        for word in words:
            self.meanings[word] = meaning

    def shared(self, words: Sequence[str], inputs: Iterable[int], outputs: Iterable[int]) -> None:
        """Gives words to the axes of several tensors, as broadcasting aligns these."""
        for j in inputs:
            self.inputs[j] = aligned(words, len(self.call.inputs[j]))
        for j in outputs:
            self.outputs[j] = aligned(words, len(self.call.outputs[j]))

    def finished(self, linear: Iterable[Iterable[int]] = ()) -> Pattern | None:
        """The pattern; None if axes of one word cannot be one dimension."""
        lengths = self._lengths()
        kept: dict[str, int] = {}
        for word, sizes_of in lengths.items():
            meaning = self.meanings.get(word, Meaning())
            if not _agree(sizes_of, meaning, word in self.unequal):
                return None
            if (meaning.period or min(sizes_of) // meaning.least) > 1:
                kept[word] = len(kept)
        return Pattern(
            words=tuple(kept),
            meanings=tuple(self.meanings.get(word, Meaning()) for word in kept),
            inputs=tuple(
                None if words is None else _numbered(words, sizes, kept)
                for words, sizes in zip(self.inputs, self.call.inputs, strict=True)
            ),
            outputs=tuple(
                _numbered(words, sizes, kept)
                for words, sizes in zip(self.outputs, self.call.outputs, strict=True)
            ),
            linear=tuple(tuple(sorted(each)) for each in linear),
        )

    def reshape(self) -> Pattern:
        """The pattern of a view that has the same elements in the same order."""
        pattern = self.finished([[0]])
        assert pattern is not None
        return replace(pattern, is_reshape=True)

    def _lengths(self) -> dict[str, list[int]]:
        """Per word, the lengths of its axes, but for those of length 1, which are broadcast."""
        lengths: dict[str, list[int]] = {}
        every = [*zip(self.outputs, self.call.outputs, strict=True)]
        every += [
            (words, sizes)
            for words, sizes in zip(self.inputs, self.call.inputs, strict=True)
            if words is not None
        ]
        for words, sizes in every:
            for word, size in zip(words, sizes, strict=True):
                if word and size > 1:
                    lengths.setdefault(word, []).append(size)
        return lengths


def aligned(words: Sequence[str], rank: int) -> list[str]:
    """Words for the last axes of a tensor of some rank.

    >>> aligned(["row", "column"], 1), aligned(["row", "column"], 3)
    (['column'], ['', 'row', 'column'])
    """
    return [NONE] * (rank - len(words)) + list(words[max(len(words) - rank, 0) :])


def _agree(lengths: Sequence[int], meaning: Meaning, unequal: bool) -> bool:
    """True if axes of these lengths can be one dimension."""
    if meaning.halos:
        return True
    if meaning.period:
        return all(size % meaning.period == 0 for size in lengths)
    least = min(lengths)
    if least % meaning.least:
        return False
    return all(
        size == least or (unequal and size % (least // meaning.least) == 0) for size in lengths
    )


def _numbered(words: Sequence[str], sizes: Sequence[int], of: dict[str, int]) -> tuple[int, ...]:
    return tuple(
        of.get(word, -1) if size > 1 else -1 for word, size in zip(words, sizes, strict=True)
    )
