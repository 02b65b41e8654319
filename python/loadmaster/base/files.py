"""Reading and writing whole files: an error names the path, and no file is left half-written.

What is read has a limit, :data:`MAX_INPUT` or what :func:`limited_input` says: small files can be
packed so that they unpack to more than any machine has.
"""

from __future__ import annotations

import gc
import gzip
import io
import json
import os
import re
import stat
import tempfile
import tomllib
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import ContextVar
from itertools import islice
from pathlib import Path
from typing import IO, Any, TypeVar

from loadmaster.base import quoting
from loadmaster.base.errors import InputError, refusing
from loadmaster.base.quoting import json_text
from loadmaster.base.units import format_bytes, parse_bytes

GZIP_MAGIC = b"\x1f\x8b"
ZIP_MAGIC = b"PK\x03\x04"
BYTE_ORDER_MARK = b"\xef\xbb\xbf"

Document = TypeVar("Document")

#: Bytes that a file may have unpacked, with what it is parsed into, unless more are allowed.
MAX_INPUT = 2 << 30

_max_input: ContextVar[int] = ContextVar("max_input", default=MAX_INPUT)

# Bytes that are read before the limit is looked at again, and that make a stream a long one.
_PART = 1 << 20
_LONG = 256 * _PART

# A trace of 50,000 ops is packed in a third of the time that level 9 takes, and is 5 % larger.
_GZIP_LEVEL = 5

#: Beginning of temporary names. They do not grow with the name that is written to, which may be as
#: long as the file system allows.
TEMPORARY = ".loadmaster-"


def read_bytes(path: str | os.PathLike[str]) -> bytes:
    """The contents of a file, unpacked if gzipped (told by content, not by name)."""
    with _opened(path) as file:
        if not file.peek(2).startswith(GZIP_MAGIC):
            return read_counted(file, path)
        with _unpacking(path):
            return read_counted(gzip.GzipFile(fileobj=file), path)


@contextmanager
def _opened(path: str | os.PathLike[str]) -> Iterator[io.BufferedReader]:
    """A file to read; the error of one that is missing names the one that is called most alike."""
    try:
        with system_errors(f"cannot read {os.fspath(path)}"), open(path, "rb") as file:
            yield file
    except InputError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            raise InputError(f"{error}{_close_to(path)}") from error.__cause__
        raise


def _close_to(path: str | os.PathLike[str], most: int = 1000) -> str:
    """The end of a message on a file that is not there."""
    import difflib

    folder, name = os.path.split(os.fspath(path))
    with suppress(OSError), os.scandir(folder or ".") as entries:
        names = {entry.name.casefold(): entry.name for entry in islice(entries, most)}
        for close in difflib.get_close_matches(name.casefold(), sorted(names), 1, 0.7):
            return f"; did you mean {os.path.join(folder, names[close])}?"
    return ""


@contextmanager
def limited_input(most: int | str | None) -> Iterator[None]:
    """Sets how many bytes a file may take, as ``"8GiB"``; None leaves it as it is."""
    now = _max_input.get() if most is None else parse_bytes(most, "max_input")
    before = _max_input.set(now)
    try:
        yield
    finally:
        _max_input.reset(before)


def check_input(size: int, source: str | os.PathLike[str]) -> None:
    """Refuses what has or takes more bytes than the limit."""
    most = _max_input.get()
    if size > most:
        more = format_bytes(1 << size.bit_length()).replace(" ", "")
        raise InputError(
            f"{os.fspath(source)} takes more than {format_bytes(most)} unpacked and parsed: if "
            f"that is meant, allow more with max_input={more!r}, on the command line "
            f"--max-input {more}"
        )


def read_counted(stream: io.BufferedIOBase | IO[bytes], source: str | os.PathLike[str]) -> bytes:
    """All of a stream, up to the limit.

    A long one is read to its end before it is kept, so that one of too many bytes takes no memory.
    """
    read = io.BytesIO()
    while part := stream.read(_PART):
        read.write(part)
        check_input(read.tell(), source)
        if read.tell() == _LONG and stream.seekable():
            _check_rest(stream, source)
    return read.getvalue()


def _check_rest(stream: io.BufferedIOBase | IO[bytes], source: str | os.PathLike[str]) -> None:
    """Refuses a stream whose rest goes beyond the limit, and goes back to where the rest begins."""
    begin = size = stream.tell()
    while part := stream.read(_PART):
        size += len(part)
        check_input(size, source)
    stream.seek(begin)


def read_text(path: str | os.PathLike[str]) -> str:
    """The contents of a file of UTF-8 text."""
    with refusing(f"{os.fspath(path)} is not a text file", UnicodeDecodeError):
        return read_bytes(path).decode()


def read_head(path: str | os.PathLike[str], size: int = 1 << 20) -> bytes:
    """The first bytes of a file, unpacked if gzipped; damage behind these bytes goes unnoticed."""
    with _opened(path) as file:
        packed = file.read(2) == GZIP_MAGIC
        file.seek(0)
        with _unpacking(path):
            return gzip.GzipFile(fileobj=file).read(size) if packed else file.read(size)


def _unpacking(path: str | os.PathLike[str]) -> AbstractContextManager[None]:
    problem = f"{os.fspath(path)} is a damaged or truncated gzip file"
    return refusing(problem, EOFError, zlib.error, gzip.BadGzipFile)


# What JSON writes for a character beyond 16 bits; group 1: half of it, which Python would accept.
_SURROGATE = re.compile(
    rb"(?<!\\)(?:\\\\)*(?:\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    rb"|(\\u[dD][89a-fA-F][0-9a-fA-F]{2}))"
)


def parse_json(
    data: bytes,
    path: str | os.PathLike[str],
    object_hook: Callable[[dict[str, Any]], Any] | None = None,
) -> Any:
    """JSON from bytes. A message names ``path``; ``object_hook`` replaces each object.

    What the values take counts as input too.
    """
    check_input(_parsed_size(data), path)
    problem = f"{os.fspath(path)} is not valid JSON"
    if (b"\\ud" in data or b"\\uD" in data) and any(
        match[1] for match in _SURROGATE.finditer(data)
    ):
        raise InputError(f"{problem}: half of a surrogate pair, which is no text")
    with _parsing(problem), uncollected():
        return json.loads(data.removeprefix(BYTE_ORDER_MARK), object_hook=object_hook)


def _parsed_size(data: bytes) -> int:
    """Bytes that JSON takes with its text and its values, about; seldom less than it takes."""
    text = len(data) * (2 if data.isascii() else 4)
    marks = ((b",", 32), (b":", 48), (b"[", 56), (b"{", 64), (b'"', 20))
    return text + sum(size * data.count(mark) for mark, size in marks)


# A dotted key of more parts than any that is meant: the time to parse one is their square.
_LONG_KEY = re.compile(
    r"(?<![\w.\"'-])(?:(?:[\w-]++|\"[^\"\n]*+\"|'[^'\n]*+')[ \t]*+\.[ \t]*+){64}", re.ASCII
)


def parse_toml(text: str, source: str) -> dict[str, Any]:
    """A document of TOML; ``source`` is named in errors.

    Raises
    ------
    InputError
        No TOML, brackets nested too deeply, a number of thousands of digits, or a dotted key of
        more than 64 parts.
    """
    if key := _LONG_KEY.search(text):
        line = text.count("\n", 0, key.start()) + 1
        raise InputError(f"{source}, line {line}: a dotted key of more than 64 parts")
    with _parsing(f"{source} is not valid TOML"):
        return tomllib.loads(text)


@contextmanager
def _parsing(problem: str) -> Iterator[None]:
    """Turns what parsers of documents raise into an InputError that begins with the problem."""
    try:
        yield
    except RecursionError:
        raise InputError(f"{problem}: nested too deeply") from None
    except ValueError as error:
        is_long = "set_int_max_str_digits" in str(error)
        reason = "a number has too many digits" if is_long else error
        raise InputError(f"{problem}: {reason}") from None


@contextmanager
def naming(source: str | os.PathLike[str]) -> Iterator[None]:
    """Puts what is worked on, mostly the path of a file, before the message of an InputError."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{os.fspath(source)}: {error}") from None


@contextmanager
def system_errors(failed: str) -> Iterator[None]:
    """Turns an error of the system into an InputError that begins with what failed."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{failed}: {error.strerror or error}") from error


@contextmanager
def uncollected() -> Iterator[None]:
    """Switches the garbage collector off while many objects are made and none is freed.

    The collector would scan all objects again and again: half of the time to read a large trace.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def check_format(
    document: Any, name: str, version: int, noun: str, source: str, *, older: tuple[int, ...] = ()
) -> None:
    """Refuses a document of another format, or of a version that is neither this one nor an older
    one that is read too; a message calls the document ``noun``.
    """
    if not isinstance(document, Mapping) or document.get("format") != name:
        raise InputError(f"{source} is not {noun}: {_format_in_words(document, name, source)}")
    if document.get("version") not in (*older, version):
        before = ", ".join(map(str, older))
        raise InputError(
            f"{source} has {name} version {document.get('version')!r}; "
            f"this Loadmaster reads version {f'{before} and ' if older else ''}{version}"
        )


def _format_in_words(document: Any, wanted: str, source: str) -> str:
    """The format that a document names, where it is none of ours: the part that it lacks."""
    value = document.get("format") if isinstance(document, Mapping) else None
    if value == "opgraph":
        command = quoting.command("loadmaster", "place", source, "-o", "plan.json")
        return f"it is a graph, of which `{command}` makes a plan"
    return f'it has no "format": "{wanted}"'


def check_target(path: str | os.PathLike[str]) -> None:
    """Refuses a path that :func:`write_bytes` cannot write to, as far as can be told beforehand."""
    target = Path(path)
    with system_errors(f"cannot write {target}"):
        place = Path(os.path.realpath(target))
        if not place.parent.is_dir():
            raise InputError(f"cannot write {target}: there is no folder {place.parent}")
        if target.is_dir():
            raise InputError(f"cannot write {target}: it is a folder")
        if is_special(target):
            if not os.access(target, os.W_OK):
                raise InputError(f"cannot write {target}: it is read-only")
        elif not os.access(place.parent, os.W_OK):
            raise InputError(f"cannot write {target}: its folder is read-only")


def is_special(target: Path) -> bool:
    """True if there is something that is no regular file, such as a device or a pipe."""
    return target.exists() and not target.is_file()


def write_bytes(path: str | os.PathLike[str], data: bytes) -> None:
    """Writes a file under a temporary name beside it and moves it into place.

    A link stays, and the file that it leads to is replaced. What exists and is no regular file,
    such as a device or a pipe, is written in place.

    A file that is replaced keeps its permissions, and what is written is on the disk before.

    A file whose name ends in ``.gz`` is gzipped without a time stamp: the same data gives the same
    bytes.
    """
    target = Path(path)
    if target.name.endswith(".gz"):
        data = gzip.compress(data, _GZIP_LEVEL, mtime=0)
    with system_errors(f"cannot write {target}"):
        if is_special(target):
            target.write_bytes(data)
            return
        place = Path(os.path.realpath(target))
        handle, temporary = tempfile.mkstemp(dir=place.parent, prefix=TEMPORARY)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(temporary, _mode(place))
            os.replace(temporary, place)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise


def _mode(place: Path) -> int:
    """The permissions of a file that is there; those of a new one."""
    with suppress(FileNotFoundError):
        return stat.S_IMODE(place.stat().st_mode)
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


def write_json(path: str | os.PathLike[str], document: Any) -> None:
    """Writes compact JSON by :func:`write_bytes`."""
    write_bytes(path, json_text(document).encode())


def written(document: Document, path: str | os.PathLike[str] | None) -> Document:
    """The document, which is also at the path as JSON if there is one."""
    if path is not None:
        write_json(path, document)
    return document
