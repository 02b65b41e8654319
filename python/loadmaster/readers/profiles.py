"""Profiles from files, told apart by content."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable
from typing import Any

from loadmaster.base.errors import InputError
from loadmaster.base.files import BYTE_ORDER_MARK, read_head
from loadmaster.model.profile import Profile


def read_profiles(path: str | os.PathLike[str], **options: Any) -> list[Profile]:
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
    name, reader = _reader(path, options.get("graph"))
    known = list(inspect.signature(reader).parameters)[1:]
    for option in options:
        if option not in known:
            raise InputError(f"{name} takes no option {option!r}: it takes {', '.join(known)}")
    found = reader(path, **options)
    return found if isinstance(found, list) else [found]


def _reader(
    path: str | os.PathLike[str], graph: str | os.PathLike[str] | None
) -> tuple[str, Callable[..., Profile | list[Profile]]]:
    """What a file is called, and what reads it."""
    head = read_head(path)
    text = head.removeprefix(BYTE_ORDER_MARK).lstrip()
    if text[:1] == b"{":
        if not re.search(rb'"traceEvents"\s*:', head):
            raise InputError(f"{os.fspath(path)} is JSON, but no profile: it has no traceEvents")
        return _of_trace(graph)
    if text[:1] == b"[":
        from loadmaster.readers import ort_profile

        return "an ONNX Runtime profile", ort_profile.profile
    if b"\0" in head:
        from loadmaster.readers import tensorflow

        return "RunMetadata", tensorflow.profile
    from loadmaster.readers import profile_csv

    return "CSV", profile_csv.read


def _of_trace(
    graph: str | os.PathLike[str] | None,
) -> tuple[str, Callable[..., Profile | list[Profile]]]:
    """PyTorch and JAX write traces of one form; the graph beside them tells which it is."""
    from loadmaster.readers import chakra, hlo, kineto
    from loadmaster.readers.formats import of_file

    if graph is None:
        return "a Kineto trace", kineto.profile
    if of_file(graph, has_profile=False).module == "hlo":
        return "a profiler trace of JAX", hlo.profile
    return "a Kineto trace", chakra.profile
