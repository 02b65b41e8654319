"""MLCommons Chakra's protobuf messages, and files of them: how execution traces of ranks are kept.

A file holds a ``GlobalMetadata``, then ``Node`` after ``Node``, each behind its length as a varint.
Numbers and types are those of Chakra's ``et_def.proto``.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterable, Iterator
from typing import Any

from loadmaster.base.errors import InputError
from loadmaster.base.files import check_input, read_bytes
from loadmaster.readers.shared.varint import varint

#: Fields by message: name, number, type; ``*``: repeated. Lists among attributes are skipped.
_MESSAGES = {
    "AttributeProto": "name 1 string, double_val 3 double, float_val 5 float, int32_val 7 int32, "
    "int64_val 9 int64, uint32_val 11 uint32, uint64_val 13 uint64, sint32_val 15 sint32, "
    "sint64_val 17 sint64, fixed32_val 19 fixed32, fixed64_val 21 fixed64, "
    "sfixed32_val 23 sfixed32, sfixed64_val 25 sfixed64, bool_val 27 bool, string_val 29 string",
    "GlobalMetadata": "version 1 string, attr 2 *AttributeProto",
    "IOInfo": "values 1 string, shapes 2 string, types 3 string",
    "Node": "id 1 uint64, name 2 string, type 3 NodeType, ctrl_deps 4 *uint64, "
    "data_deps 5 *uint64, start_time_micros 6 uint64, duration_micros 7 uint64, inputs 8 IOInfo, "
    "outputs 9 IOInfo, attr 10 *AttributeProto",
}
_ONE_OF = {"AttributeProto": "value"}

#: Kinds of nodes.
NODE_TYPES = {
    "INVALID_NODE": 0,
    "METADATA_NODE": 1,
    "MEM_LOAD_NODE": 2,
    "MEM_STORE_NODE": 3,
    "COMP_NODE": 4,
    "COMM_SEND_NODE": 5,
    "COMM_RECV_NODE": 6,
    "COMM_COLL_NODE": 7,
}

#: Names of collectives there: the attribute ``comm_type``.
COLLECTIVE_TYPES = {
    "all_reduce": 0,
    "all_gather": 2,
    "broadcast": 5,
    "all_to_all": 6,
    "reduce_scatter": 7,
}

#: Attributes of nodes that Loadmaster writes beside Chakra's own, in nanoseconds: the exact
#: duration (Chakra's is in whole microseconds), and what launching a collective takes on a device.
NANOSECONDS, LAUNCH = "duration_nanos", "launch_nanos"

#: Bytes that a node takes once it is parsed, about.
_NODE = 2000

_VERSION = re.compile(rb"\d+(?:\.\d+)+[\w.+-]*")
_NAME = re.compile(rb"[A-Za-z_]\w*")


@functools.cache
def classes() -> dict[str, Any]:
    """A class per message.

    Raises
    ------
    MissingExtraError
        The package ``protobuf`` is not installed.
    """
    from loadmaster.readers.shared.messages import message_classes

    return message_classes(
        "loadmaster.chakra",
        _MESSAGES,
        "Chakra's execution traces",
        one_of=_ONE_OF,
        enums={"NodeType": NODE_TYPES},
    )


def may_be_trace(head: bytes) -> bool:
    r"""True if bytes begin as a file of Chakra does: the length of a message that has a version or
    a named attribute.

    >>> may_be_trace(b"\x07\x0a\x050.0.4"), may_be_trace(b"\x0a\x0a\x0a\x01a\x12\x05Const")
    (True, False)
    """
    size, at = varint(head, 0)
    mark, text = _field(head, at)
    if mark == b"\x0a":
        return len(text) + 2 <= size and _VERSION.fullmatch(text) is not None
    inner, name = _field(text, 0)
    is_named = inner == b"\x0a" and _NAME.fullmatch(name) is not None
    return mark == b"\x12" and len(text) + 2 <= size and is_named


def _field(data: bytes, at: int) -> tuple[bytes, bytes]:
    """The mark of a field, and its bytes: fewer than 128."""
    length = data[at + 1] if at + 1 < len(data) else 0
    return data[at : at + 1], data[at + 2 : at + 2 + length] if length < 128 else b""


def load(path: str | os.PathLike[str]) -> tuple[Any, list[Any]]:
    """The metadata and the nodes of a file, plain or gzipped.

    Raises
    ------
    InputError
        Another kind of file, or one that is cut off; how many nodes were whole is said.
    MissingExtraError
        The package ``protobuf`` is not installed.
    """
    from google.protobuf.message import DecodeError

    messages, name = classes(), os.fspath(path)
    data = read_bytes(path)
    if not may_be_trace(data):
        raise InputError(f"{name} is no execution trace of Chakra: it does not begin as one")
    metadata, nodes = messages["GlobalMetadata"](), []
    for at, part in enumerate(_parts(data, name)):
        message = metadata if at == 0 else messages["Node"]()
        check_input(len(data) + _NODE * at, path)
        try:
            message.ParseFromString(part)
        except DecodeError:
            raise InputError(f"{name}: message {at} is no node, or damaged") from None
        if at:
            nodes.append(message)
    return metadata, nodes


def _parts(data: bytes, name: str) -> Iterator[bytes]:
    at, count = 0, 0
    while at < len(data):
        size, start = varint(data, at)
        if size == 0 or start + size > len(data):
            raise InputError(f"{name} is cut off or damaged behind message {count}")
        yield data[start : start + size]
        at, count = start + size, count + 1


def dump(messages: Iterable[Any]) -> bytes:
    """The bytes of a file: each message behind its length."""
    out = bytearray()
    for message in messages:
        data = message.SerializeToString(deterministic=True)
        size = len(data)
        while size > 127:
            out.append(size & 127 | 128)
            size >>= 7
        out.append(size)
        out += data
    return bytes(out)


def attributes(node: Any) -> dict[str, Any]:
    """The attributes of a node or of metadata by name; those that are lists are not there."""
    values = {}
    for attribute in node.attr:
        field = attribute.WhichOneof("value")
        if field is not None:
            values[attribute.name] = getattr(attribute, field)
    return values
