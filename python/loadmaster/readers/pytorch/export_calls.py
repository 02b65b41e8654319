"""Calls of ops as ``.pt2`` files have them, of the schema ``torch/_export/serde/schema.py``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from loadmaster.readers.pytorch.aten_graph import CallArguments
from loadmaster.readers.pytorch.aten_program import Open, Size, ValueRef
from loadmaster.readers.pytorch.tensors import torch_name

#: The number that keywords have.
_KEYWORD = 2

#: Spelling of an element type by its number.
DTYPES = {
    1: "u8", 2: "i8", 3: "i16", 4: "i32", 5: "i64", 6: "f16", 7: "f32", 8: "f64", 9: "c32",
    10: "c64", 11: "c128", 12: "b8", 13: "bf16", 28: "u16", 29: "f8e4m3fn", 30: "f8e5m2",
    31: "f8e4m3fnuz", 32: "f8e5m2fnuz", 33: "f8e8m0", 34: "u32", 35: "u64",
}  # fmt: skip

#: Meanings of numbers of the schema, as PyTorch spells them.
_NUMBERED = {
    "as_scalar_type": {number: torch_name(dtype) for number, dtype in DTYPES.items()},
    "as_layout": {
        1: "torch.sparse_coo", 2: "torch.sparse_csr", 3: "torch.sparse_csc", 4: "torch.sparse_bsr",
        5: "torch.sparse_bsc", 6: "torch._mkldnn", 7: "torch.strided",
    },
    "as_memory_format": {
        1: "torch.contiguous_format", 2: "torch.channels_last", 3: "torch.channels_last_3d",
        4: "torch.preserve_format",
    },
}  # fmt: skip

#: Arguments that ATen takes as keywords alone; older files do not say which they are.
_KEYWORDS = frozenset(("alpha", "device", "dtype", "generator", "layout", "memory_format", "out",
                       "pin_memory", "scale"))  # fmt: skip

#: Kinds of arguments that stand as they are.
_PLAIN = frozenset((
    "as_bool", "as_bools", "as_float", "as_float_lists", "as_floats", "as_int", "as_int_lists",
    "as_ints", "as_string", "as_strings",
))  # fmt: skip


def call_of(inputs: Sequence[Mapping[str, Any]], sizes: Mapping[str, Size]) -> CallArguments:
    """The positional arguments and the keywords of a node; ``sizes`` are the graph's, by name."""
    positional, keywords = [], {}
    for entry in inputs:
        value, name, kind = _argument(entry["arg"], sizes), str(entry["name"]), entry.get("kind")
        if kind == _KEYWORD or (not kind and name in _KEYWORDS):
            keywords[name] = value
        else:
            positional.append(value)
    return CallArguments(positional, keywords)


def tensor_names(argument: Mapping[str, Any]) -> list[str]:
    """Names of the tensors in an argument, in order."""
    [(kind, value)] = argument.items()
    if kind == "as_tensor":
        return [str(value["name"])]
    if kind == "as_tensors":
        return [str(each["name"]) for each in value]
    if kind == "as_nested_tensors":
        return [str(each["name"]) for row in value for each in row]
    if kind == "as_optional_tensor":
        return tensor_names(value)
    if kind == "as_optional_tensors":
        return [name for each in value for name in tensor_names(each)]
    if kind == "as_string_to_argument":
        return [name for each in value.values() for name in tensor_names(each)]
    return []


def _argument(argument: Mapping[str, Any], sizes: Mapping[str, Size]) -> Any:
    """An argument; None for what is neither tensor, size nor plain value."""
    [(kind, value)] = argument.items()
    if kind in _PLAIN:
        return value
    if kind in _NUMBERED:
        return _NUMBERED[kind].get(value)
    if kind == "as_device":
        index = value.get("index")
        return str(value["type"]) if index is None else f"{value['type']}:{index}"
    if kind.startswith("as_sym_"):
        several = kind.endswith("s")
        return [_symbolic(each, sizes) for each in value] if several else _symbolic(value, sizes)
    if kind == "as_optional_tensors":
        return [next(map(ValueRef, tensor_names(each)), None) for each in value]
    if kind == "as_nested_tensors":
        return [[ValueRef(str(each["name"])) for each in row] for row in value]
    names = tensor_names(argument)
    if kind == "as_tensors":
        return [ValueRef(name) for name in names]
    return ValueRef(names[0]) if names and kind in ("as_tensor", "as_optional_tensor") else None


def _symbolic(argument: Mapping[str, Any], sizes: Mapping[str, Size]) -> Any:
    """A number, or the size that stands under a name."""
    [(kind, value)] = argument.items()
    if kind != "as_name":
        return value
    return Open(sizes[value]) if value in sizes else None
