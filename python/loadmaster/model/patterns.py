"""Patterns of recipes: which modules, ops and tensors a line of a recipe means.

A module path and a name are words, parted by dots or slashes. In a pattern ``*`` stands for any
text within a word, and the word ``**`` for any number of words. A backslash takes the meaning of
the character after it away.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from loadmaster.base.errors import InputError
from loadmaster.base.text import fits

#: A selector: a pattern of a module, a space and one of a kind, a number sign and an ordinal.
_SELECTOR = re.compile(r"((?:\\.|[^\\ #])*)(?: ((?:\\.|[^\\#])*))?(?:#(\d{1,9}))?", re.S)
_CHARACTER = re.compile(r"\\.|[^\\]", re.S)
_WORD = re.compile(r"[./][^./]*")
_SPECIAL = re.compile(r"[\\*# ]")

#: A number at the end of a word, as layers have: ``layers.3``, ``cell_3``, ``block3``.
_NUMBER = re.compile(r"\d+(?=[./]|\Z)")


def escaped_pattern(text: str) -> str:
    """The pattern that only this text matches."""
    return _SPECIAL.sub(r"\\\g<0>", text)


def family(key: str, kept: Sequence[int]) -> str | None:
    """The pattern of a key with ``*`` for its numbers, but for some counted from the last.

    None: it has fewer numbers.

    >>> family(".h.3.mlp.0", ()), family(".h.3.mlp.0", (0,)), family(".h.3.mlp", (1,))
    ('.h.*.mlp.*', '.h.*.mlp.0', None)
    """
    pattern = escaped_pattern(key)
    numbers = list(_NUMBER.finditer(pattern))
    if len(numbers) <= max(kept, default=0):
        return None
    for i, number in enumerate(reversed(numbers)):
        if i not in kept:
            pattern = f"{pattern[: number.start()]}*{pattern[number.end() :]}"
    return pattern


def written(pattern: str) -> str:
    """A pattern of a key without the separator that the key begins with, where that is possible.

    >>> written(".h.*"), written("."), written("/h")
    ('h.*', '.', '/h')
    """
    bare = pattern.removeprefix(".")
    return pattern if bare[:1] in ("", ".", "/") else bare


def _key(text: str) -> str:
    """A path or name with a separator before every word."""
    return text if text[:1] in ("/", ".") else f".{text}"


def _pieces(pattern: str) -> tuple[str, ...]:
    """The texts between the stars of a pattern."""
    pieces = [""]
    for character in _CHARACTER.findall(pattern):
        if character == "*":
            pieces.append("")
        else:
            pieces[-1] += character[-1]
    return tuple(pieces)


@dataclass(frozen=True)
class Selector:
    """What a line of a recipe speaks of.

    Attributes
    ----------
    pattern : str
        Of a module path, or of a tensor's name. ``"."`` is the model itself.
    kind : str or None
        A pattern of a kind of op; None: any kind.
    ordinal : int or None
        Which of the module's ops of that kind, from 0, in the order of the graph; None: all.
    """

    pattern: str
    kind: str | None = None
    ordinal: int | None = None

    @classmethod
    def parse(cls, text: str) -> Selector:
        """From text such as ``"h.*.fc"`` or ``"h.*.fc aten.mm.default#1"``.

        >>> Selector.parse("h.*.fc aten.mm.default#1")
        Selector(pattern='h.*.fc', kind='aten.mm.default', ordinal=1)
        """
        found = _SELECTOR.fullmatch(text)
        if found is None:
            raise InputError(
                f"{text!r} is no selector: write a pattern of modules, and if wanted a space, a "
                "kind of op, a # and which of these ops, such as 'h.*.fc aten.mm.default#1'; a "
                "backslash stands before a star, a space, a # or a backslash that is meant"
            )
        pattern, kind, ordinal = found.groups()
        return cls(pattern, kind, None if ordinal is None else int(ordinal))

    def __str__(self) -> str:
        kind = "" if self.kind is None else f" {self.kind}"
        return f"{self.pattern}{kind}{'' if self.ordinal is None else f'#{self.ordinal}'}"

    @cached_property
    def _words(self) -> tuple[tuple[str, ...], ...]:
        words: list[str] = _WORD.findall(_key(self.pattern))
        return tuple(_pieces(word) for word in words)

    def fits(self, key: str) -> bool:
        """Whether a path or name matches the pattern. O(words of both)."""
        words: list[str] = _WORD.findall(_key(key))
        reached = {0}
        for pieces in self._words:
            if pieces in ((".", "", ""), ("/", "", "")):
                reached = set(range(min(reached), len(words) + 1))
            else:
                reached = {i + 1 for i in reached if i < len(words) and fits(words[i], pieces)}
            if not reached:
                return False
        return len(words) in reached

    def fits_kind(self, kind: str) -> bool:
        """Whether a kind of op matches."""
        return self.kind is None or fits(kind, _pieces(self.kind))


class Places:
    """Where items stand: ops by module, kind and ordinal; or tensors by name.

    Attributes
    ----------
    keys : list of str
        Distinct paths or names, a separator before every word.
    key, kind : int64 [n]
        Of each item, the index of its path or name, and of its kind.
    kinds : list of str
        Distinct kinds.
    ordinal : int64 [n]
        How many items before it have its path and kind.
    """

    def __init__(self, names: Iterable[str], kinds: Iterable[str]) -> None:
        keys: dict[str, int] = {}
        words: dict[str, int] = {}
        seen: Counter[tuple[int, int]] = Counter()
        columns: list[tuple[int, int, int]] = []
        for name, kind in zip(names, kinds, strict=True):
            at = keys.setdefault(_key(name), len(keys)), words.setdefault(kind, len(words))
            columns.append((*at, seen[at]))
            seen[at] += 1
        self.keys, self.kinds = list(keys), list(words)
        self.key, self.kind, self.ordinal = np.array(columns, dtype=np.int64).reshape(-1, 3).T
        self._order = np.argsort(self.key, kind="stable")
        self._first = np.searchsorted(self.key[self._order], np.arange(len(self.keys) + 1))
        self._index = keys
        self._known: dict[str, list[int]] = {}

    def __len__(self) -> int:
        return len(self.key)

    def matching(self, selector: Selector) -> NDArray[np.int64]:
        """The items that a selector means, key by key."""
        if selector.pattern not in self._known:
            self._known[selector.pattern] = self._keys_of(selector)
        parts = [
            self._order[self._first[k] : self._first[k + 1]] for k in self._known[selector.pattern]
        ]
        at = np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)
        if selector.kind is not None:
            kinds = np.array([selector.fits_kind(kind) for kind in self.kinds], dtype=bool)
            at = at[kinds[self.kind[at]]]
        return at if selector.ordinal is None else at[self.ordinal[at] == selector.ordinal]

    def _keys_of(self, selector: Selector) -> list[int]:
        if len(exact := _pieces(_key(selector.pattern))) == 1:
            return [self._index[exact[0]]] if exact[0] in self._index else []
        return [i for i, key in enumerate(self.keys) if selector.fits(key)]

    def near(self, selector: Selector) -> str:
        """The end of a message on a selector that means nothing: what it may have been to mean."""
        import difflib

        if self.matching(Selector(selector.pattern)).size:
            have = [k for k in self._known[selector.pattern]]
            at = np.concatenate([self._order[self._first[k] : self._first[k + 1]] for k in have])
            there = Counter(self.kinds[k] for k in self.kind[at].tolist())
            said = ", ".join(kind for kind, _ in there.most_common(6))
            return f"; the kinds of ops there are {said}"
        names = [key.removeprefix(".") for key in self.keys]
        close = difflib.get_close_matches(selector.pattern.replace("*", ""), names, 3, 0.4)
        return f"; did you mean {' or '.join(map(repr, close))}?" if close else ""
