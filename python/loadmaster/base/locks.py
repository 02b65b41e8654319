"""Locks on bytes of a file, for processes that share something; a lock ends with its process.

A byte stands for whatever the processes agree on: none of it is read or written. The locks are
those of POSIX (``fcntl``), which also hold between machines where the file system carries them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, ClassVar
from weakref import WeakValueDictionary

from loadmaster.base.errors import InputError
from loadmaster.base.files import system_errors
from loadmaster.base.warnings import warn

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

#: Every process that has the file open shares this byte, so the last one can tell that it is.
_PRESENT = 0

#: Bytes from here on are for the users of a lock file.
FIRST = 1


class LockFile:
    """A file whose bytes can be locked; the last process to close it removes it.

    Without ``fcntl`` a warning says that nothing is locked, and every lock is granted.

    Parameters
    ----------
    path
        The file, which need not exist.
    guarded : str
        What the locks are for, as messages call it.

    Raises
    ------
    InputError
        The file cannot be made or locked, or this process has it open already.
    """

    # POSIX forgets all locks that a process has on a file when the process closes the file once.
    _open: ClassVar[WeakValueDictionary[str, LockFile]] = WeakValueDictionary()

    def __init__(self, path: Path, guarded: str) -> None:
        self._path = path
        self._file: BinaryIO | None = None
        if fcntl is None:
            warn(
                f"this system has no locks for {guarded}: another process that works on it at the "
                "same time may do the same work, or spoil it"
            )
            return
        if str(path) in self._open:
            raise InputError(f"this process works on {guarded} already: use one at a time")
        with system_errors(f"cannot lock {path}"):
            self._file = self._joined()
        self._open[str(path)] = self

    def _joined(self) -> BinaryIO:
        """The file, which no other process removes from now on."""
        while True:
            file = self._path.open("a+b")
            fcntl.lockf(file, fcntl.LOCK_SH, 1, _PRESENT)
            if self._path.exists() and os.path.samestat(self._path.stat(), os.fstat(file.fileno())):
                return file
            file.close()

    def take(self, byte: int) -> bool:
        """Locks a byte unless another process has locked it; whether it is ours now."""
        if self._file is None:
            return True
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, byte)
        except (BlockingIOError, PermissionError):
            return False
        return True

    def release(self, byte: int) -> None:
        """Unlocks a byte."""
        if self._file is not None:
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, byte)

    @contextmanager
    def held(self, byte: int) -> Iterator[None]:
        """Locks a byte for as long as the context lasts; waits for it."""
        if self._file is not None:
            with system_errors(f"cannot lock {self._path}"):
                fcntl.lockf(self._file, fcntl.LOCK_EX, 1, byte)
        try:
            yield
        finally:
            self.release(byte)

    def close(self) -> None:
        """Ends all locks, and removes the file if no other process has it open."""
        if self._file is None:
            return
        with self._file:
            if self.take(_PRESENT):
                self._path.unlink(missing_ok=True)
        self._file = None
        del self._open[str(self._path)]
