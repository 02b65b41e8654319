"""The papers that methods and instances are from, as people and as BibTeX cite them."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from importlib import resources
from typing import Any

#: Field of the place where a paper appeared, by the kind of its entry.
_VENUES = {"article": "journal", "inproceedings": "booktitle", "misc": "howpublished"}


@dataclass(frozen=True)
class Paper:
    """A paper.

    Attributes
    ----------
    key, kind : str
        Of its BibTeX entry; ``article``, ``inproceedings`` or ``misc``.
    authors : tuple of str
    title, venue : str
    year, volume, number : int
        0: it has none.
    pages, doi : str
        Empty where it has none, or where it is not sure.
    methods : tuple of str
        What is built after it.
    instances : tuple of str
        Globs of the instances whose model or times are from it.
    """

    key: str
    kind: str
    authors: tuple[str, ...]
    title: str
    venue: str
    year: int
    volume: int = 0
    number: int = 0
    pages: str = ""
    doi: str = ""
    methods: tuple[str, ...] = ()
    instances: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """In a line: the first author's last name, the title, where and when."""
        more = " et al." if len(self.authors) > 1 else ""
        first = self.authors[0].rpartition(" ")[2]
        return f"{first}{more}: {self.title}. {self.venue}, {self.year}"

    @property
    def bibtex(self) -> str:
        """Its entry."""
        rows = {
            "author": " and ".join(self.authors),
            "title": f"{{{self.title}}}",
            _VENUES[self.kind]: self.venue,
            "volume": self.volume,
            "number": self.number,
            "pages": self.pages,
            "year": self.year,
            "doi": self.doi,
        }
        body = ",\n".join(f"  {name} = {{{fact}}}" for name, fact in rows.items() if fact)
        return f"@{self.kind}{{{self.key},\n{body}\n}}"


@cache
def papers() -> tuple[Paper, ...]:
    """All of them, as ``papers.toml`` has them."""
    text = (resources.files(__package__) / "papers.toml").read_text(encoding="utf-8")
    return tuple(map(_paper, tomllib.loads(text)["paper"]))


def _paper(row: dict[str, Any]) -> Paper:
    lists = {key: tuple(row.get(key, ())) for key in ("authors", "methods", "instances")}
    return Paper(**{**row, **lists})


def papers_of(method: str) -> list[Paper]:
    """The papers that a method is from; none where it is ours or nobody's.

    >>> [paper.year for paper in papers_of("celeritas")]
    [2022]
    """
    return [paper for paper in papers() if method in paper.methods]


def bibtex(methods: Iterable[str]) -> str:
    """The entries of the papers of methods, each once.

    >>> print(bibtex(["etf"]).partition(",")[0])
    @article{etf
    """
    entries = {paper.key: paper.bibtex for method in methods for paper in papers_of(method)}
    return "\n\n".join(entries.values()) or "% no paper is known of these methods"


def bibtex_of_instances(names: Iterable[str]) -> str:
    """The entries of the papers whose models or times some instances have, each once.

    >>> print(bibtex_of_instances(["models/lenet@4xV100-PCIe"]).partition(",")[0])
    @article{lenet
    """
    asked = list(names)
    entries = [
        paper.bibtex
        for paper in papers()
        if any(fnmatchcase(name, glob) for name in asked for glob in paper.instances)
    ]
    return "\n\n".join(entries) or "% no paper is known of these instances: they are generated"
