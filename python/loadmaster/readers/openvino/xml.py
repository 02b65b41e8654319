"""XML as a tree, by the standard library's parser: what is deep or defines entities is refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from xml.parsers import expat

from loadmaster.base.errors import InputError
from loadmaster.base.files import check_input

#: Elements within elements.
_DEEPEST = 64
#: Bytes that an element takes in memory.
_ELEMENT = 600


@dataclass
class Element:
    """An element: its tag, its attributes, pieces of its text, and the elements in it."""

    tag: str
    attributes: dict[str, str]
    pieces: list[str] = field(default_factory=list)
    inside: list[Element] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The text between its tags."""
        return "".join(self.pieces)

    def each(self, *path: str) -> Iterator[Element]:
        """The elements at a path of tags.

        >>> root = parse(b"<a><b><c/><c/></b><b><c/></b></a>", "doc.xml")
        >>> len(list(root.each("b", "c")))
        3
        """
        for element in self.inside:
            if element.tag == path[0]:
                yield from element.each(*path[1:]) if path[1:] else [element]


def parse(data: bytes, source: str) -> Element:
    """The outermost element of a document. O(size).

    Raises
    ------
    InputError
        No XML; a document type, which may define what grows without limit; elements that are nested
        too deeply; more of them than memory should hold.
    """
    check_input(len(data) + _ELEMENT * data.count(b"<"), source)
    outer = Element("", {})
    stack = [outer]
    parser = expat.ParserCreate()
    parser.buffer_text = True

    def begin(tag: str, attributes: dict[str, str]) -> None:
        if len(stack) > _DEEPEST:
            raise InputError("elements are nested too deeply")
        stack[-1].inside.append(Element(tag, attributes))
        stack.append(stack[-1].inside[-1])

    def refuse(*_: Any) -> None:
        raise InputError("it has a document type, which models do not have")

    def end(_: str) -> None:
        stack.pop()

    def add(text: str) -> None:
        stack[-1].pieces.append(text)

    parser.StartElementHandler, parser.EndElementHandler = begin, end
    parser.CharacterDataHandler, parser.StartDoctypeDeclHandler = add, refuse
    try:
        parser.Parse(data, True)
    except expat.ExpatError as error:
        raise InputError(f"no XML, or a truncated one: {error}") from None
    return outer.inside[0]
