"""MLCommons Chakra: execution traces of ranks, in protobuf."""

from __future__ import annotations

from loadmaster.readers.registry import File, Later, reader


def _is_trace(file: File) -> bool:
    from loadmaster.readers.chakra.protos import may_be_trace

    return may_be_trace(file.head)


reader("chakra-et", "an execution trace of Chakra (.et)", recognises=_is_trace)(
    Later("chakra.execution_traces:read")
)
