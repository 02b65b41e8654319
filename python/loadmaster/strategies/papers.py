"""The papers that methods and instances are from, as people and as BibTeX cite them."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from importlib import resources
from typing import Any


@dataclass(frozen=True)
class Paper:
    """A paper.

    Attributes
    ----------
    key : str
        Of its BibTeX entry.
    authors : tuple of str
    title, venue : str
        A venue that begins with ``arXiv:`` is no journal.
    year : int
    methods : tuple of str
        What is built after it.
    instances : tuple of str
        Globs of the instances whose model or times are from it.
    """

    key: str
    authors: tuple[str, ...]
    title: str
    venue: str
    year: int
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
            "howpublished" if self.venue.startswith("arXiv:") else "journal": self.venue,
            "year": str(self.year),
        }
        kind = "misc" if "howpublished" in rows else "article"
        body = ",\n".join(f"  {name} = {{{text}}}" for name, text in rows.items())
        return f"@{kind}{{{self.key},\n{body}\n}}"


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
