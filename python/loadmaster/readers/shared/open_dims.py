"""Inputs whose dimensions a model leaves open: closed by what the user says, or refused."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from loadmaster.base.checks import is_integer
from loadmaster.base.errors import InputError
from loadmaster.base.quoting import command

Dim = int | str | None  # fixed, symbolic, or nothing said


def close(
    declared: dict[str, list[Dim] | None],
    symbols: dict[str, int],
    *,
    batch: int | None,
    shapes: Mapping[str, Sequence[int]],
    sized: Collection[str],
    other_way: str = "",
) -> dict[str, list[Dim] | None]:
    """The inputs' shapes with every open dimension closed.

    ``declared`` are the inputs' shapes by name (None: not even a rank is known). ``symbols`` are
    the sizes of symbols; the ones found here are added. ``batch`` closes first dimensions,
    ``shapes`` whole inputs. Inputs that
    are not in ``sized`` may stay open. ``other_way`` of closing them ends the message.

    Raises
    ------
    InputError
        A dimension stays open, or what was given contradicts the model or itself.
    """
    for name, shape in shapes.items():
        if name not in declared:
            raise InputError(
                f"shape given for {name!r}, which is not an input; the inputs are "
                + ", ".join(map(repr, declared))
            )
        declared[name] = _given_shape(name, declared[name], shape, symbols)
    if batch is not None:
        _bind_batch(declared, batch, symbols)
    closed = {name: substituted(shape, symbols) for name, shape in declared.items()}
    _refuse_open(declared, closed, sized, batch, other_way)
    return closed


def substituted(shape: Sequence[Dim] | None, symbols: Mapping[str, int]) -> list[Dim] | None:
    """A declared shape with the size of every symbol that has one."""
    if shape is None:
        return None
    return [symbols.get(d, d) if isinstance(d, str) else d for d in shape]


def _given_shape(
    name: str, declared: list[Dim] | None, shape: Sequence[int], symbols: dict[str, int]
) -> list[Dim]:
    sizes = [size_of(d, f"shape of {name!r}", least=0) for d in shape]
    text = ",".join(map(str, sizes))
    if declared is None:
        return list(sizes)
    if len(sizes) != len(declared):
        raise InputError(
            f"shape {name}={text} has {len(sizes)} dimensions, the model's input "
            f"{spelled(declared)} has {len(declared)}"
        )
    for size, known in zip(sizes, declared, strict=True):
        if isinstance(known, str):
            if symbols.setdefault(known, size) != size:
                raise InputError(
                    f"shape {name}={text} makes {known!r} {size}, another input makes it "
                    f"{symbols[known]}"
                )
        elif known is not None and known != size:
            raise InputError(
                f"shape {name}={text} contradicts the model, which fixes {name} to "
                f"{spelled(declared)}"
            )
    return list(sizes)


def _bind_batch(declared: dict[str, list[Dim] | None], batch: int, symbols: dict[str, int]) -> None:
    """Give the open first dimensions the batch size."""
    size = size_of(batch, "batch", least=1)
    firsts = {name: shape[0] for name, shape in declared.items() if shape}
    is_open = {name: first for name, first in firsts.items() if not isinstance(first, int)}
    if not is_open and size not in firsts.values():
        fixed = ", ".join(f"{name!r} to {spelled(declared[name] or [])}" for name in firsts)
        raise InputError(f"batch {size} asked for, but the file fixes {fixed or 'no batch at all'}")
    for name, first in is_open.items():
        if isinstance(first, str):
            if symbols.setdefault(first, size) != size:
                raise InputError(
                    f"batch {size} contradicts the shapes given, which make {first!r} (the first "
                    f"dimension of {name!r}) {symbols[first]}"
                )
        else:
            shape = declared[name]
            assert shape is not None
            shape[0] = size


def _refuse_open(
    declared: Mapping[str, list[Dim] | None],
    closed: Mapping[str, list[Dim] | None],
    sized: Collection[str],
    batch: int | None,
    other_way: str,
) -> None:
    """Refuse inputs with dimensions left open, and say which options would close them."""
    firsts = {shape[0] for shape in closed.values() if shape}
    problems, options, batch_settles = [], [], batch is None
    for name, shape in closed.items():
        if name not in sized:
            continue
        if shape is None:
            problems.append(f"input {name!r} has no shape")
            options.append(command("--shape", f"{name}=1,3,224,224"))
            batch_settles = False
        elif not all(isinstance(d, int) for d in shape):
            problems.append(f"input {name!r} is {spelled(declared[name] or [])}")
            template = ",".join(str(d) if isinstance(d, int) else "N" for d in shape)
            options.append(command("--shape", f"{name}={template}"))
            rest = (d for d in shape[1:] if not isinstance(d, int))
            batch_settles = batch_settles and all(d is not None and d in firsts for d in rest)
    if problems:
        ways = ["--batch N"] * batch_settles + [" ".join(options)]
        raise InputError(
            f"dimensions are left open: {'; '.join(problems)}. Give {', or '.join(ways)} "
            f"(batch= and shapes= in Python), with a number for every N{other_way}"
        )


def size_of(value: Any, subject: str, least: int) -> int:
    """A size that a user gave for ``subject``, checked."""
    if not is_integer(value) or value < least:
        raise InputError(f"{subject}: {value!r} is not an integer of at least {least}")
    return int(value)


def spelled(shape: Sequence[Dim]) -> str:
    """A shape as messages show it: ``[batch, 3, ?]``."""
    return "[" + ", ".join("?" if d is None else str(d) for d in shape) + "]"
