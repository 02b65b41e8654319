"""Profiles from files, told apart by content."""

from __future__ import annotations

import os
from typing import Any

from loadmaster.errors import InputError
from loadmaster.files import BYTE_ORDER_MARK, read_bytes
from loadmaster.profile import Profile


def read_profiles(path: str | os.PathLike[str], **options: Any) -> list[Profile]:
    """The measured times in a file: CSV, one profile per device type and batch in it.

    Parameters
    ----------
    path
    options
        Of the reader: ``batch`` and ``device_type``, for what the file does not say.

    Raises
    ------
    InputError
        A file of no known kind, an option that its reader does not take, or what the reader
        refuses.

    Examples
    --------
    >>> import pathlib, tempfile, loadmaster as lm
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder) / "profile.csv"
    ...     _ = path.write_text("op,seconds")
    ...     lm.read_profiles(path)
    Traceback (most recent call last):
    loadmaster.errors.InputError: .../profile.csv has no rows
    """
    data = read_bytes(path).removeprefix(BYTE_ORDER_MARK).lstrip()
    if data[:1] in (b"{", b"["):
        raise InputError(f"{os.fspath(path)} is JSON, but no profile: {KINDS}")
    from loadmaster.readers import profile_csv

    return profile_csv.read(path, **options)


KINDS = "CSV with the columns op and seconds"
