"""TensorFlow: graphs, and the times in RunMetadata."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from loadmaster.base.files import read_bytes
from loadmaster.model.graph import OpGraph
from loadmaster.model.profile import Profile
from loadmaster.readers.registry import File, profile_reader, reader

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


def _is_graph(file: File) -> bool:
    from loadmaster.readers.tensorflow_protos import may_be_graph, may_be_saved_model, may_be_text

    head = file.head
    if head[:1] == b"\n" and file.text[:1] in (b"{", b"["):
        # JSON, or a GraphDef whose first size is a brace: only all of the file tells.
        head = read_bytes(file.path)
    return may_be_graph(head) or may_be_text(head) or may_be_saved_model(head)


@reader("tensorflow", "a TensorFlow graph", recognises=_is_graph)
def read(
    path: str | os.PathLike[str],
    *,
    profile: Paths | None = None,
    fetches: Iterable[str] | None = None,
    device_type: str | None = None,
) -> OpGraph:
    """As :func:`loadmaster.readers.tensorflow.read`."""
    from loadmaster.readers import tensorflow

    return tensorflow.read(path, profile=profile, fetches=fetches, device_type=device_type)


def _is_run(file: File) -> bool:
    return file.text[:1] not in (b"{", b"[") and b"\0" in file.head


@profile_reader("tensorflow", "RunMetadata", recognises=_is_run)
def read_run(
    path: Paths,
    *,
    graph: str | os.PathLike[str] | None = None,
    device_type: str | None = None,
    batch: int | None = None,
) -> Profile:
    """As :func:`loadmaster.readers.tensorflow.profile`."""
    from loadmaster.readers import tensorflow

    return tensorflow.profile(path, graph=graph, device_type=device_type, batch=batch)
