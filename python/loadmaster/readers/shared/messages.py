"""Protobufs of all kinds: classes made of tables, and what messages take before they are parsed."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from loadmaster.base.errors import importing
from loadmaster.base.files import check_input

# Whether a byte begins a field of text, bytes or a message, by its value.
_FIELD = np.array([byte & 7 == 2 and 0 < byte >> 3 < 16 for byte in range(256)])

#: Bytes that are looked at together.
_PART = 1 << 24


def check_messages(data: bytes, source: str | os.PathLike[str]) -> None:
    """Refuses a protobuf whose messages would take more than the limit.

    A message of two bytes takes a hundred once it is parsed. Fields 1 to 15 that are no longer than
    eight bytes are counted, wherever in the file something looks like one.
    """
    n_messages, array = 0, np.frombuffer(data, dtype=np.uint8)
    for start in range(0, len(array), _PART):
        part = array[start : start + _PART]
        n_messages += int((_FIELD[part[:-1]] & (part[1:] <= 8)).sum())
    check_input(len(data) + 100 * n_messages, source)


#: A field in a table: name, number, type; ``*``: repeated, ``{}``: map from text.
_ROW = re.compile(r"(\w+) (\d+) (\*|\{\})?(\w+)")


def message_classes(
    package: str,
    messages: Mapping[str, str],
    purpose: str,
    *,
    one_of: Mapping[str, str],
    enums: Mapping[str, Mapping[str, int]],
) -> dict[str, Any]:
    """A class per message, in a pool of their own.

    Parameters
    ----------
    package : str
        That the messages are in, there.
    messages : mapping of str to str
        Fields by message, as ``"name 1 string, dim 2 *Dim"``. Fields that are not there are skipped
        when a message is parsed.
    purpose : str
        What the messages are for, where the package ``protobuf`` is missing.
    one_of : mapping of str to str
        Messages of which one field is set, but for a field ``name``, and what these fields go by.
    enums : mapping of str to mapping of str to int

    Raises
    ------
    MissingExtraError
        The package ``protobuf`` is not installed.
    """
    with importing("protobuf", "protobuf", purpose):
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    file = descriptor_pb2.FileDescriptorProto(
        name=f"{package.replace('.', '/')}.proto", package=package, syntax="proto3"
    )
    for name, values in enums.items():
        enum = file.enum_type.add(name=name)
        for word, number in values.items():
            enum.value.add(name=word, number=number)
    for name, fields in messages.items():
        message = file.message_type.add(name=name)
        if name in one_of:
            message.oneof_decl.add(name=one_of[name])
        for field, number, mark, kind in _ROW.findall(fields):
            if mark == "{}":
                entry = message.nested_type.add(name=_entry(field))
                entry.options.map_entry = True
                _add_field(entry, package, enums, "key", 1, "string")
                _add_field(entry, package, enums, "value", 2, kind)
                kind = f"{name}.{_entry(field)}"
            added = _add_field(message, package, enums, field, int(number), kind)
            added.label = added.LABEL_REPEATED if mark else added.LABEL_OPTIONAL
            if name in one_of and field != "name":
                added.oneof_index = 0
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    types = {name: pool.FindMessageTypeByName(f"{package}.{name}") for name in messages}
    return {name: message_factory.GetMessageClass(each) for name, each in types.items()}


def _entry(field: str) -> str:
    return f"{field.title()}Entry"


def _add_field(
    message: Any, package: str, enums: Mapping[str, Any], name: str, number: int, kind: str
) -> Any:
    field = message.field.add(name=name, number=number)
    field.label = field.LABEL_OPTIONAL
    scalar = getattr(field, f"TYPE_{kind.upper()}", None)
    if scalar is None:
        field.type = field.TYPE_ENUM if kind in enums else field.TYPE_MESSAGE
        field.type_name = f".{package}.{kind}"
    else:
        field.type = scalar
    return field
