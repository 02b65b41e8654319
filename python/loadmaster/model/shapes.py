"""The ``output`` column: dtype and shape of each output of an op, as in "f32[8,16];i64[8,16]"."""

from __future__ import annotations

from collections.abc import Sequence

#: The dtype and sizes of one output; no sizes (None): unknown.
Shape = tuple[str, "tuple[int, ...] | None"]


def parse_output(text: str) -> list[Shape]:
    """Dtype and sizes per output.

    >>> parse_output("f32[8,16];none;bf16")
    [('f32', (8, 16)), ('none', None), ('bf16', None)]
    """
    return [_parse_one(part) for part in text.split(";")]


def _parse_one(text: str) -> Shape:
    dtype, bracket, rest = text.partition("[")
    inside = rest.removesuffix("]")
    if not bracket or rest == inside:
        return dtype, None
    words = [word.strip() for word in inside.split(",")] if inside.strip() else []
    if not all(word.isdigit() for word in words):
        return dtype, None
    return dtype, tuple(int(word) for word in words)


def format_output(shapes: Sequence[Shape]) -> str:
    """The text of an ``output`` column.

    >>> format_output([("f32", (8, 16)), ("none", None)])
    'f32[8,16];none'
    """
    return ";".join(
        dtype if sizes is None else f"{dtype}[{','.join(map(str, sizes))}]"
        for dtype, sizes in shapes
    )
