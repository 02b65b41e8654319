"""Profiles from files, told apart by content."""

from __future__ import annotations

import os
from typing import Any

from loadmaster.base.errors import InputError
from loadmaster.base.files import limited_input
from loadmaster.model.profile import Profile
from loadmaster.readers import registry
from loadmaster.readers.registry import File


def read_profiles(
    path: str | os.PathLike[str], *, max_input: int | str | None = None, **options: Any
) -> list[Profile]:
    """The measured times in a file.

    * PyTorch's profiler traces (Kineto): ``step``; with ``graph``, the execution trace of the same
      step, ops are named as in it. With HLO text as ``graph``: JAX's profiler traces
    * ONNX Runtime's profiles: ``graph``, the optimised model
    * TensorFlow's RunMetadata: ``graph``
    * CSV with the columns op and seconds (or ms, us): one profile per device type and batch in it

    Parameters
    ----------
    path
        Plain or gzipped.
    max_input : int or str, optional
        As for :func:`loadmaster.read`.
    options
        Of the reader: the above, and ``batch`` and ``device_type``, for what the file does not say.

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
    loadmaster.base.errors.InputError: .../profile.csv has no rows
    """
    with limited_input(max_input):
        return _read(path, options)


def _read(path: str | os.PathLike[str], options: dict[str, Any]) -> list[Profile]:
    reader = registry.of_file(registry.PROFILES, File.of(path, options))
    if reader is None:
        raise InputError(
            f"{os.fspath(path)} is no profile that is known: measured times are read from "
            f"{registry.known(registry.PROFILES.values())}"
        )
    profiles = reader.read(path, options)
    return profiles if isinstance(profiles, list) else [profiles]
