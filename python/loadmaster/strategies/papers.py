"""The papers that methods are from, as people and as BibTeX cite them."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib import resources


@dataclass(frozen=True)
class Paper:
    """A paper.

    Attributes
    ----------
    key : str
        Of its BibTeX entry.
    methods : tuple of str
        What is built after it.
    authors : tuple of str
    title, venue : str
        A venue that begins with ``arXiv:`` is no journal.
    year : int
    """

    key: str
    methods: tuple[str, ...]
    authors: tuple[str, ...]
    title: str
    venue: str
    year: int

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
    return tuple(
        Paper(**{**row, "methods": tuple(row["methods"]), "authors": tuple(row["authors"])})
        for row in tomllib.loads(text)["paper"]
    )


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
    found = {paper.key: paper.bibtex for method in methods for paper in papers_of(method)}
    return "\n\n".join(found.values()) or "% no paper is known of these methods"
