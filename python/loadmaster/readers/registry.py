"""Readers by name, each with what tells its files from others; where users add their own."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, NamedTuple, TypeVar

from loadmaster.base.errors import InputError
from loadmaster.base.files import BYTE_ORDER_MARK, read_head
from loadmaster.base.later import imported

#: Texts have no control characters; the fields of a protobuf begin with some.
_TEXT = re.compile(rb"[\t\n\f\r -\x7e\x80-\xff]*")

#: Package of the readers that come along. A file there is imported when the first file is read.
_OURS = "loadmaster.readers.formats"


@dataclass(frozen=True)
class File:
    """The part of a file that a reader is shown, to tell whether the file is of its format.

    Attributes
    ----------
    path : str
    head : bytes
        The first MiB, unpacked if the file is gzipped.
    options : Mapping[str, Any]
        The options that were given with the file.
    """

    path: str
    head: bytes
    options: Mapping[str, Any]

    @classmethod
    def of(cls, path: str | os.PathLike[str], options: Mapping[str, Any] | None = None) -> File:
        """The file at a path; an InputError if it cannot be read."""
        return cls(os.fspath(path), read_head(path), options or {})

    @cached_property
    def text(self) -> bytes:
        """The head without a byte order mark and leading white space."""
        return self.head.removeprefix(BYTE_ORDER_MARK).lstrip()

    @cached_property
    def is_text(self) -> bool:
        """True if the first 4 KiB have no control characters."""
        return _TEXT.fullmatch(self.head[: 1 << 12]) is not None

    def has_keys(self, *keys: str) -> bool:
        """True if the file begins like a JSON object with these keys, told without parsing it."""
        if self.text[:1] != b"{":
            return False
        return all(re.search(rb'"%s"\s*:' % key.encode(), self.head) for key in keys)


@dataclass(frozen=True)
class Later:
    """The function of a reader that comes along, imported when a file is read.

    ``place`` is its module in ``loadmaster.readers`` and its name, as ``"hlo:read"``.
    """

    place: str

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Calls the function."""
        return self.function(*arguments, **options)

    @property
    def function(self) -> Callable[..., Any]:
        """The function itself."""
        function: Callable[..., Any] = imported(f"loadmaster.readers.{self.place}")
        return function


class Reader(NamedTuple):
    """A registered reader: what messages call its format, and how the format is recognised."""

    summary: str
    target: Callable[..., Any]
    recognises: Callable[[File], bool] | None
    accepts: Callable[[Any], bool] | None
    is_last: bool

    @property
    def is_ours(self) -> bool:
        """True if the reader comes along with Loadmaster."""
        return _is_ours(self.target)

    def read(self, source: Any, options: Mapping[str, Any]) -> Any:
        """The graph that the function makes of a source, after checking the options."""
        function = self.target.function if isinstance(self.target, Later) else self.target
        refuse(self.summary, options, list(inspect.signature(function).parameters)[1:])
        return function(source, **options)


def _is_ours(function: Callable[..., Any]) -> bool:
    """True if a function is one of Loadmaster's."""
    return function.__module__.startswith(f"{__package__}.")


#: Readers of graphs and of measured times, by name, in the order in which they are asked.
GRAPHS: dict[str, Reader] = {}
PROFILES: dict[str, Reader] = {}

Function = TypeVar("Function", bound=Callable[..., Any])


def reader(
    name: str,
    summary: str,
    *,
    recognises: Callable[[File], bool] | None = None,
    accepts: Callable[[Any], bool] | None = None,
    is_last: bool = False,
) -> Callable[[Function], Function]:
    """Makes a function a reader: :func:`loadmaster.read` knows its format.

    The function takes a path and, as keywords, options of its own with defaults. It returns an
    :class:`~loadmaster.OpGraph`. What it imports for reading it imports within, so that files of
    other formats are read without.

    Parameters
    ----------
    name : str
        Of the format, in small letters, digits and dashes. A name may be registered again, unless
        it is one of the readers that come along.
    summary : str
        What messages call a file of the format: ``"an ONNX model"``.
    recognises : callable
        Takes a :class:`File` (``path``, ``head``, ``options``) and says whether it is of the
        format. Readers of users are asked before those that come along. An InputError raised here
        says why a file that is recognised holds no graph.
    accepts : callable
        Takes an object in memory and says whether the function reads it; for readers of programs.
    is_last : bool
        Whether to ask after all readers without it: for a format that nothing tells from others.

    Raises
    ------
    InputError
        A name that is taken, or no name, or a reader that neither recognises nor accepts anything.

    Examples
    --------
    >>> import pathlib, tempfile, loadmaster as lm
    >>> @lm.reader("chain", "a chain", recognises=lambda file: file.head.startswith(b"chain "))
    ... def read_chain(path, *, seconds: float = 1e-3):
    ...     names = pathlib.Path(path).read_text().split()[1:]
    ...     n = len(names)
    ...     return lm.OpGraph(
    ...         {"name": names, "output_bytes": [4] * n, "time": {"*": [seconds] * n}},
    ...         {"src": list(range(n - 1)), "dst": list(range(1, n)), "bytes": [4] * (n - 1)},
    ...     )
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder) / "net.chain"
    ...     _ = path.write_text("chain a b c")
    ...     lm.read(path, seconds=2e-3).n_ops
    3
    """
    return _register(GRAPHS, name, summary, recognises, accepts, is_last)


def profile_reader(
    name: str, summary: str, *, recognises: Callable[[File], bool], is_last: bool = False
) -> Callable[[Function], Function]:
    """Makes a function a reader of measured times: :func:`loadmaster.read_profiles` knows it.

    The function takes a path and options as keywords, and returns a
    :class:`~loadmaster.Profile` or a list of them. The rest is as for :func:`reader`.
    """
    return _register(PROFILES, name, summary, recognises, None, is_last)


def _register(
    readers: dict[str, Reader],
    name: str,
    summary: str,
    recognises: Callable[[File], bool] | None,
    accepts: Callable[[Any], bool] | None,
    is_last: bool,
) -> Callable[[Function], Function]:
    if not isinstance(name, str) or not re.fullmatch(r"[a-z0-9][a-z0-9-]*", name):
        raise InputError(f"{name!r} is no name for a reader: wants small letters, digits, dashes")
    if recognises is None and accepts is None:
        raise InputError(f"reader {name!r} would never be asked: give recognises= or accepts=")

    def register(function: Function) -> Function:
        if not _is_ours(function):
            discover()
        if name in readers and readers[name].is_ours:
            raise InputError(f"{name!r} is a reader that comes along: give yours another name")
        readers[name] = Reader(summary, function, recognises, accepts, is_last)
        return function

    return register


@cache
def discover() -> None:
    """Registers the readers that come along: every module of ``readers/formats``."""
    for module in iter_modules(import_module(_OURS).__path__):
        import_module(f"{_OURS}.{module.name}")


def of_file(readers: Mapping[str, Reader], file: File) -> Reader | None:
    """The first reader that recognises a file; users' are asked before those that come along."""
    discover()
    asked = sorted(readers.values(), key=lambda r: (r.is_ours, r.is_last))
    return next((r for r in asked if r.recognises is not None and r.recognises(file)), None)


def of_program(program: Any) -> Reader | None:
    """The first reader of graphs that accepts an object in memory."""
    discover()
    return next((r for r in GRAPHS.values() if r.accepts is not None and r.accepts(program)), None)


def known(readers: Iterable[Reader]) -> str:
    """The formats that readers read, listed for a message."""
    names = list(dict.fromkeys(reader.summary for reader in readers))
    return f"{', '.join(names[:-1])} or {names[-1]}"


def refuse(subject: str, options: Iterable[str], known: list[str]) -> None:
    """Raises for an option that a reader does not take."""
    for option in options:
        if option not in known:
            raise InputError(
                f"{subject} takes no option {option!r}: it takes {', '.join(known)}"
                if known
                else f"{subject} takes no options, so not {option!r}"
            )
