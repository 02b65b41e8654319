"""The call of a function with slots in the place of its tensors, and what fills them in.

Arguments are fetched by code that is written once per call, so that a step spends its time in the
functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

#: Values that a step works on, by slot.
Values = list[Any]


@dataclass(frozen=True, slots=True)
class Ref:
    """A slot in the place of a tensor, or of a number that the host gives anew in each step."""

    slot: int


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """A function, its arguments, and the slots of its results.

    ``op`` is its index in the graph, and ``parts`` are the ops that take one result each out of
    several (-1: none does). ``writes`` are slots whose tensors it changes. A ``random`` call needs
    a seed: by its op, or by the one that it is ``seeded`` as. ``with_grad`` says that autograd was
    on, as some kernels ask. A call that ``shares`` is a collective's member, one of several that
    all read what each of them brings: what the members' ops read, or what a call of the member's op
    that ``brings`` makes of it before. A result without a tensor has the slot -1.
    """

    op: int
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    results: tuple[int, ...]
    several: bool = False
    parts: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()
    random: bool = False
    with_grad: bool = False
    shares: bool = False
    brings: bool = False
    seeded: int = -1

    @property
    def reads(self) -> tuple[int, ...]:
        """The slots among its arguments, each once."""
        return tuple(dict.fromkeys(_slots((self.args, self.kwargs))))


def _slots(argument: Any) -> Iterator[int]:
    if isinstance(argument, Ref):
        yield argument.slot
    elif isinstance(argument, (list, tuple)):
        for each in argument:
            yield from _slots(each)
    elif isinstance(argument, Mapping):
        yield from _slots(tuple(argument.values()))


def renumbered(
    call: Call,
    op: int,
    read: Callable[[int], int],
    slot_of: Callable[[int], int],
    ops: Sequence[int],
) -> Call:
    """A call as another op, with other slots for what it reads and makes; ``ops`` are those of its
    parts by what they were.
    """

    def argument(value: Any) -> Any:
        if isinstance(value, Ref):
            return Ref(read(value.slot))
        if type(value) in (list, tuple):
            return type(value)(argument(each) for each in value)
        return value

    return replace(
        call,
        op=op,
        args=tuple(map(argument, call.args)),
        kwargs={name: argument(value) for name, value in call.kwargs.items()},
        results=tuple(slot_of(slot) if slot >= 0 else -1 for slot in call.results),
        parts=tuple(int(ops[part]) if part >= 0 else -1 for part in call.parts),
        writes=tuple(map(slot_of, call.writes)),
    )


def runner(
    call: Call, frees: Sequence[int] = (), source: Callable[[int], int] = int
) -> Callable[[Values], None]:
    """A function of all slots' values that calls, stores the results, and forgets ``frees``.

    ``source`` says which slot holds what a slot of the arguments stands for.

    >>> values = [2.0, 3.0, None]
    >>> runner(Call(0, pow, (Ref(0), Ref(1)), {}, results=(2,)), frees=(0, 1))(values)
    >>> values
    [None, None, 8.0]
    """
    constants: list[Any] = []

    def written(argument: Any) -> str:
        if isinstance(argument, Ref):
            return f"v[{source(argument.slot)}]"
        if type(argument) in (list, tuple) and any(True for _ in _slots(argument)):
            inner = "".join(f"{written(each)}, " for each in argument)
            return f"[{inner}]" if type(argument) is list else f"({inner})"
        constants.append(argument)
        return f"c{len(constants) - 1}"

    arguments = [written(argument) for argument in call.args]
    if call.kwargs:  # As a mapping: a name may be no word of Python, or one of its own.
        named = (f"{name!r}: {written(argument)}" for name, argument in call.kwargs.items())
        arguments.append(f"**{{{', '.join(named)}}}")
    called = f"f({', '.join(arguments)})"
    if call.several:
        lines = [f"r = {called}"]
        lines += [f"v[{slot}] = r[{i}]" for i, slot in enumerate(call.results) if slot >= 0]
    else:
        stored = [f"v[{slot}] = " for slot in call.results if slot >= 0]
        lines = ["".join(stored) + called]
    lines += [f"v[{slot}] = None" for slot in frees]
    names = "".join(f", c{i}" for i in range(len(constants)))
    body = "".join(f"        {line}\n" for line in lines)
    scope: dict[str, Any] = {}
    exec(f"def make(f{names}):\n    def run(v):\n{body}    return run\n", scope)
    run: Callable[[Values], None] = scope["make"](call.function, *constants)
    return run
