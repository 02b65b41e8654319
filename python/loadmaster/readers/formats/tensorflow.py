"""TensorFlow: graphs, and the times in RunMetadata."""

from __future__ import annotations

from loadmaster.base.files import read_bytes
from loadmaster.readers.registry import File, Later, profile_reader, reader


def _is_graph(file: File) -> bool:
    from loadmaster.readers.tensorflow.protos import may_be_graph, may_be_saved_model, may_be_text

    head = file.head
    if head[:1] == b"\n" and file.text[:1] in (b"{", b"["):
        # JSON, or a GraphDef whose first size is a brace: only all of the file tells.
        head = read_bytes(file.path)
    return may_be_graph(head) or may_be_text(head) or may_be_saved_model(head)


def _is_run(file: File) -> bool:
    return file.text[:1] not in (b"{", b"[") and b"\0" in file.head


reader("tensorflow", "a TensorFlow graph", recognises=_is_graph)(Later("tensorflow.graph_def:read"))
profile_reader("tensorflow", "RunMetadata", recognises=_is_run)(
    Later("tensorflow.graph_def:profile")
)
