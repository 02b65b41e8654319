"""Patterns of recipes: which modules, ops and tensors a line of a recipe means.

A module path and a name are words, parted by dots or slashes. In a pattern ``*`` stands for any
text within a word, and the word ``**`` for any number of words. A backslash takes the meaning of
the character after it away.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from loadmaster.base.errors import InputError
from loadmaster.base.text import fits
from loadmaster.model.module_paths import module_path

#: A selector: a pattern of a module, a space and one of a kind, a number sign and an ordinal.
_SELECTOR = re.compile(r"((?:\\.|[^\\ #])*)(?: ((?:\\.|[^\\#])*))?(?:#(\d{1,9}))?", re.S)
_CHARACTER = re.compile(r"\\.|[^\\]", re.S)
_WORD = re.compile(r"[./][^./]*")
_SPECIAL = re.compile(r"[\\*# ]")

#: Keys are looked up by so many of their last words.
_ENDING = 2

#: The pieces of the word ``**``.
_ANY = {(".", "", ""), ("/", "", "")}

#: A number at the end of a word, as layers have: ``layers.3``, ``cell_3``, ``block3``.
_NUMBER = re.compile(r"(\d+)(?=[./]|\Z)")


def escaped_pattern(text: str) -> str:
    """The pattern that only this text matches."""
    return _SPECIAL.sub(r"\\\g<0>", text)


def family(key: str, kept: Sequence[int]) -> str | None:
    """The pattern of a key with ``*`` for its numbers, but for some counted from the last.

    None: it has fewer numbers.

    >>> family(".h.3.mlp.0", ()), family(".h.3.mlp.0", (0,)), family(".h.3.mlp", (1,))
    ('.h.*.mlp.*', '.h.*.mlp.0', None)
    """
    return family_of(numbered(key), kept)


def numbered(key: str) -> list[str]:
    """The pattern of a key in pieces: texts, and between each two a number.

    >>> numbered(".h.3.mlp.0")
    ['.h.', '3', '.mlp.', '0', '']
    """
    return _NUMBER.split(escaped_pattern(key))


def family_of(pieces: Sequence[str], kept: Sequence[int]) -> str | None:
    """As :func:`family`, from the pieces of a key."""
    n = len(pieces) // 2
    if n <= max(kept, default=0):
        return None
    listed = list(pieces)
    listed[1::2] = ["*" if i not in kept else pieces[-2 - 2 * i] for i in reversed(range(n))]
    return "".join(listed)


def layerless(name: str) -> str:
    """The pattern of a path or name with ``*`` for all its numbers.

    >>> layerless("h.11.ln_2"), layerless("")
    ('h.*.ln_*', '.')
    """
    key = _key(name)
    return written(family(key, ()) or escaped_pattern(key))


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


def _words(text: str) -> list[str]:
    """The words of a path, name or pattern, each with the separator before it."""
    words: list[str] = _WORD.findall(_key(text))
    return words


def _pieces(pattern: str) -> tuple[str, ...]:
    """The texts between the stars of a pattern."""
    pieces = [""]
    for character in _CHARACTER.findall(pattern):
        if character == "*":
            pieces.append("")
        else:
            pieces[-1] += character[-1]
    return tuple(pieces)


def _of_word(pieces: Sequence[str]) -> str:
    """An expression of the words that are these pieces, with any text between them.

    Each piece is where it is found first, and stays there: so it takes no more than O(length).
    """
    first, *rest = map(re.escape, pieces)
    if not rest:
        return first
    return "".join([first, *(f"(?>[^./]*?{piece})" for piece in rest[:-1]), "[^./]*", rest[-1]])


@dataclass(frozen=True)
class Selector:
    """The items that a line of a recipe speaks of.

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
        match = _SELECTOR.fullmatch(text)
        if match is None:
            raise InputError(
                f"{text!r} is no selector: write a pattern of modules, and if wanted a space, a "
                "kind of op, a # and which of these ops, such as 'h.*.fc aten.mm.default#1'; a "
                "backslash stands before a star, a space, a # or a backslash that is meant"
            )
        pattern, kind, ordinal = match.groups()
        return cls(pattern, kind, None if ordinal is None else int(ordinal))

    def __str__(self) -> str:
        kind = "" if self.kind is None else f" {self.kind}"
        return f"{self.pattern}{kind}{'' if self.ordinal is None else f'#{self.ordinal}'}"

    @cached_property
    def _words(self) -> tuple[tuple[str, ...], ...]:
        return tuple(map(_pieces, _words(self.pattern)))

    @cached_property
    def _known(self) -> int:
        """The number of words before the first ``**``; of all, where there is none."""
        return next((i for i, word in enumerate(self._words) if word in _ANY), len(self._words))

    @cached_property
    def beginning(self) -> re.Pattern[str]:
        """An expression of how keys begin that it means: of the words before the first ``**``."""
        return re.compile("".join(map(_of_word, self._words[: self._known])))

    @property
    def expression(self) -> re.Pattern[str] | None:
        """An expression of the same keys; None where ``**`` stands for any number of words."""
        return self.beginning if self._known == len(self._words) else None

    @property
    def ending(self) -> tuple[int | str, ...]:
        """The number of words of a key of :attr:`expression`, and of its last ones that have no
        star, at most :data:`_ENDING`.
        """
        words = [pieces[0] if len(pieces) == 1 else None for pieces in self._words]
        known = next((i for i, word in enumerate(reversed(words)) if word is None), len(words))
        last = words[len(words) - min(known, _ENDING) :]
        return len(words), *(word for word in last if word is not None)

    def fits(self, words: Sequence[str]) -> bool:
        """True if the words of a path or name match the pattern. O(words of both)."""
        if self._known == len(self._words):
            return len(words) == len(self._words) and all(map(fits, words, self._words))
        reached = {0}
        for pieces in self._words:
            if pieces in _ANY:
                reached = set(range(min(reached), len(words) + 1))
            else:
                reached = {i + 1 for i in reached if i < len(words) and fits(words[i], pieces)}
            if not reached:
                return False
        return len(words) in reached


def instances(modules: Sequence[str], patterns: Iterable[str], table: str) -> NDArray[np.int64]:
    """The module that fits a pattern and has each op in it, however deep; -1: none. O(V).

    Modules are numbered by their first op.

    Raises
    ------
    InputError
        A pattern of no module; ``table`` says whose pattern it is.

    Examples
    --------
    >>> instances(["h.0.fc", "h.1", "ln_f", "h.0"], ["h.*"], "recompute").tolist()
    [0, 1, -1, 0]
    """
    selectors = [Selector(pattern) for pattern in patterns]
    number: dict[tuple[str, ...], int] = {}
    of: dict[str, int] = {}
    met = set[str]()
    for module in modules:
        if module in of:
            continue
        words = _words(".".join(module_path(module)))
        of[module] = -1
        for length in range(1, len(words) + 1):
            outer = tuple(words[:length])
            fitting = [one.pattern for one in selectors if one.fits(outer)]
            met.update(fitting)
            if fitting and of[module] < 0:
                of[module] = number.setdefault(outer, len(number))
    for one in selectors:
        if one.pattern not in met:
            places = Places([".".join(module_path(module)) for module in of], [""] * len(of))
            raise InputError(f"{table}: no module is {one.pattern!r}{places.near(one)}")
    return np.array([of[module] for module in modules], dtype=np.int64)


def innermost(modules: Sequence[str], patterns: Sequence[str], table: str) -> list[tuple[str, int]]:
    """The innermost module that fits a pattern and has each path in it, and that pattern.

    Returns
    -------
    list of (str, int)
        The module, and the index of the pattern that it fits, the last of several; of what is in
        none ``""`` and -1. The pattern ``"."`` is the model, ``""``, which has all.

    Raises
    ------
    InputError
        A pattern of no module; ``table`` says whose pattern it is.

    Examples
    --------
    >>> innermost(["h.0.fc", "h.1", "ln"], ["h.*", "."], "units")
    [('h.0', 0), ('h.1', 0), ('', 1)]
    """
    selectors = [Selector(pattern) for pattern in patterns]
    rest = max((at for at, one in enumerate(patterns) if one == "."), default=-1)
    matches, met = list[tuple[str, int]](), {rest}
    for module in modules:
        words, here = module_path(module), ("", rest)
        for length in range(1, len(words) + 1):
            outer = _words(".".join(words[:length]))
            fitting = [at for at, one in enumerate(selectors) if one.fits(outer)]
            met.update(fitting)
            if fitting:
                here = ".".join(words[:length]), fitting[-1]
        matches.append(here)
    for at, one in enumerate(selectors):
        if at not in met:
            places = Places([".".join(module_path(path)) for path in modules], [""] * len(modules))
            raise InputError(f"{table}: no module is {one.pattern!r}{places.near(one)}")
    return matches


def ordinals(code: NDArray[np.int64]) -> NDArray[np.int64]:
    """The number of equal ones before each.

    >>> ordinals(np.array([4, 7, 4, 4])).tolist()
    [0, 0, 1, 2]
    """
    order = np.argsort(code, kind="stable")
    is_first = np.ones(len(code), dtype=bool)
    is_first[1:] = code[order[1:]] != code[order[:-1]]
    place = np.arange(len(code))
    numbers = np.empty_like(place)
    numbers[order] = place - np.maximum.accumulate(np.where(is_first, place, 0))
    return numbers


class Places:
    """Places of items: of ops module, kind and ordinal; of tensors the name.

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
        names, kinds = list(names), list(kinds)
        keys: dict[str, int] = {}
        number = {name: keys.setdefault(_key(name), len(keys)) for name in dict.fromkeys(names)}
        words = {kind: i for i, kind in enumerate(dict.fromkeys(kinds))}
        self.keys, self.kinds, n = list(keys), list(words), len(names)
        self.key = np.fromiter(map(number.__getitem__, names), np.int64, n)
        self.kind = np.fromiter(map(words.__getitem__, kinds), np.int64, n)
        self.ordinal = ordinals(self.key * len(words) + self.kind)
        self._order = np.argsort(self.key, kind="stable")
        self._first = np.searchsorted(self.key[self._order], np.arange(len(self.keys) + 1))
        self._index = keys
        self._words = list(map(_words, keys))
        #: Keys by how many words they have, and by the last ones.
        self._ending: dict[tuple[int | str, ...], list[int]] = defaultdict(list)
        for i, path in enumerate(self._words):
            for known in range(min(_ENDING, len(path)) + 1):
                self._ending[len(path), *path[len(path) - known :]].append(i)
        self._keys_of: dict[str, list[int]] = {}
        self._kinds_of: dict[str, NDArray[np.bool_]] = {}

    def __len__(self) -> int:
        return len(self.key)

    def matching(self, selector: Selector) -> NDArray[np.int64]:
        """The items that a selector means, key by key."""
        at = self._at(selector)
        if selector.kind is not None:
            if selector.kind not in self._kinds_of:
                pieces = _pieces(selector.kind)
                matches = [fits(kind, pieces) for kind in self.kinds]
                self._kinds_of[selector.kind] = np.array(matches, dtype=bool)
            at = at[self._kinds_of[selector.kind][self.kind[at]]]
        return at if selector.ordinal is None else at[self.ordinal[at] == selector.ordinal]

    def _at(self, selector: Selector) -> NDArray[np.int64]:
        """The items whose path or name a selector means."""
        pattern = selector.pattern
        if pattern not in self._keys_of:
            exact = _pieces(_key(pattern))
            if len(exact) == 1:
                self._keys_of[pattern] = [self._index[e] for e in exact if e in self._index]
            elif (form := selector.expression) is not None:
                may = self._ending.get(selector.ending, ())
                self._keys_of[pattern] = [i for i in may if form.fullmatch(self.keys[i])]
            else:
                begins = selector.beginning.match
                may = [i for i, key in enumerate(self.keys) if begins(key)]
                self._keys_of[pattern] = [i for i in may if selector.fits(self._words[i])]
        first = self._first
        parts = [self._order[first[k] : first[k + 1]] for k in self._keys_of[pattern]]
        return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)

    def near(self, selector: Selector) -> str:
        """The end of a message on a selector that means nothing: what it may have been to mean."""
        import difflib

        if len(at := self._at(selector)):
            there = Counter(self.kinds[kind] for kind in self.kind[at].tolist())
            said = ", ".join(kind for kind, _ in there.most_common(6))
            return f"; the kinds of ops there are {said}"
        names = [key.removeprefix(".") for key in self.keys]
        close = difflib.get_close_matches(selector.pattern.replace("*", ""), names, 3, 0.4)
        return f"; did you mean {' or '.join(map(repr, close))}?" if close else ""
