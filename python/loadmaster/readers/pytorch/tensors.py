"""Tensors of PyTorch as the cost tables and graphs spell them."""

from __future__ import annotations

from typing import Any

# The spelling of an element type by the name of its torch.dtype.
DTYPES: dict[str, str] = {
    "float32": "f32", "float64": "f64", "float16": "f16", "bfloat16": "bf16", "bool": "b8",
    "uint8": "u8", "uint16": "u16", "uint32": "u32", "uint64": "u64",
    "int8": "i8", "int16": "i16", "int32": "i32", "int64": "i64",
    "complex32": "c32", "complex64": "c64", "complex128": "c128",
    "float8_e4m3fn": "f8e4m3fn", "float8_e5m2": "f8e5m2", "float8_e4m3fnuz": "f8e4m3fnuz",
    "float8_e5m2fnuz": "f8e5m2fnuz", "float8_e8m0fnu": "f8e8m0", "float4_e2m1fn_x2": "f4e2m1",
}  # fmt: skip


_NAMES = {spelling: name for name, spelling in DTYPES.items()}


def dtype_name(dtype: Any) -> str:
    """The spelling of a ``torch.dtype``; its own name for one that is not known here."""
    name = str(dtype).removeprefix("torch.")
    return DTYPES.get(name, name)


def torch_name(dtype: str) -> str:
    """The name of a ``torch.dtype`` by its spelling.

    >>> torch_name("bf16")
    'torch.bfloat16'
    """
    return f"torch.{_NAMES.get(dtype, dtype)}"


def layout(tensor: Any) -> tuple[tuple[Any, ...], tuple[Any, ...] | None]:
    """Sizes, and strides where the tensor is of a layout that has them."""
    strided = str(tensor.layout) == "torch.strided" and not tensor.is_nested
    return tuple(tensor.shape), tuple(tensor.stride()) if strided else None
