"""A program for XLA before it is a graph: what jaxprs, StableHLO and HLO have in common.

The readers of the three parse into :class:`Computation`, and :mod:`loadmaster.readers.xla.graph`
makes the graph of it. Names of values are local to a computation and what it encloses.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from loadmaster.base.checks import product
from loadmaster.base.errors import InputError
from loadmaster.readers.shared.formulas import BITS
from loadmaster.readers.xla.manual import Manual

#: Bits per element. Keys of random numbers have as many words of 32 bits as their kind says. A
#: tangent of an integer and a token are nothing in memory.
_BITS: dict[str, int] = {
    **{dtype: bits for dtype, bits in BITS.items() if bits},
    **{"key<fry>": 64, "key<rbg>": 128, "key<urbg>": 128, "float0": 0, "token": 0},
}

#: Other spellings: StableHLO's, HLO's and NumPy's.
_SPELLINGS: dict[str, str] = {
    "bool": "b8", "i1": "b8", "pred": "b8", "bool_": "b8", "index": "i64",
    **{f"si{n}": f"i{n}" for n in (2, 4, 8, 16, 32, 64)},
    **{f"ui{n}": f"u{n}" for n in (2, 4, 8, 16, 32, 64)},
    **{f"s{n}": f"i{n}" for n in (2, 4, 8, 16, 32, 64)},
    **{f"int{n}": f"i{n}" for n in (2, 4, 8, 16, 32, 64)},
    **{f"uint{n}": f"u{n}" for n in (2, 4, 8, 16, 32, 64)},
    **{f"float{n}": f"f{n}" for n in (16, 32, 64)}, "bfloat16": "bf16",
    "complex64": "c64", "complex128": "c128", "complex<f32>": "c64", "complex<f64>": "c128",
    "float4_e2m1fn": "f4e2m1fn", "key<threefry2x32>": "key<fry>", "key<unsafe_rbg>": "key<urbg>",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Type:
    """Element type, as the graph files spell it, and shape of a value."""

    dtype: str
    shape: tuple[int, ...] = ()

    @classmethod
    def of(cls, dtype: str, shape: Sequence[int], line: int = 0) -> Type:
        """From any of the spellings in use; a type that is none of them is refused."""
        known = _SPELLINGS.get(dtype, dtype)
        if known not in _BITS:
            known = known.replace("float8_", "f8").replace("f8_", "f8").lower()
        if known not in _BITS:
            raise InputError(
                f"{at(line)}element type {dtype!r} is unknown: its size cannot be told. Known are "
                + ", ".join(sorted(_BITS))
            )
        return cls(known, tuple(shape))

    @property
    def numel(self) -> int:
        """Number of elements."""
        return product(self.shape)

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return -(-self.numel * _BITS[self.dtype] // 8)

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


#: The type of values that order effects; they take no memory.
TOKEN = Type("token")


class Binder(NamedTuple):
    """A name that an instruction or a computation gives a value, and the value's type."""

    name: str
    type: Type


@dataclass(frozen=True, slots=True)
class Constant:
    """A value that is written into the program: one number for all elements, if it is known."""

    type: Type
    number: complex | None = None


Operand = str | Constant

#: Treatments of an instruction's bodies. A call runs its body once, a scan and a while run
#: theirs many times, a branch runs one of them, what is mapped by hand runs its own on every device
#: of a mesh. An op runs none: a reduction's body only says how.
Flow = Literal["op", "call", "scan", "while", "branch", "manual"]


@dataclass(slots=True)
class Instruction:
    """One instruction: what it reads, what it makes, and how.

    Attributes
    ----------
    kind
        As its language spells it, with its dialect.
    operands, results
        What it reads, and what it makes, with an empty name where that is dropped.
    attributes
        What costs depend on, under the names that `loadmaster.readers.xla.costs` has.
    keywords
        How it works, as its language says: what the column of arguments has beside operands.
    bodies
        Computations that belong to it.
    stack
        The name stack of the program that was traced: ``jvp(MLP)/Dense_0``. None where it is not
        known.
    label
        What the traced program calls it, where the name stack is known; else what the text calls
        its first result.
    name
        The name of its op, where the program says one.
    effect
        Whether it does more than give results.
    scope
        Of a call: the part of its ops' paths that stands for the call.
    loop
        Of a scan or while: how its operands are split, and its trips.
    manual
        Of what is mapped by hand: the mesh, and how arrays lie on it.
    """

    kind: str
    operands: list[Operand]
    results: list[Binder]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    keywords: Mapping[str, Any] = field(default_factory=dict)
    bodies: tuple[Computation, ...] = ()
    flow: Flow = "op"
    stack: str | None = None
    label: str = ""
    name: str = ""
    line: int = 0
    effect: bool = False
    scope: str = ""
    loop: Loop | None = None
    manual: Manual | None = None


@dataclass(frozen=True, slots=True)
class Loop:
    """The split of a loop's operands, and its number of trips where that is written.

    A scan's operands are constants, carried values and stacks of slices; a while's are constants
    of its condition (the first body), constants of its body (the second), and carried values.
    """

    n_constants: int = 0
    n_condition_constants: int = 0
    n_carried: int = 0
    trips: int | None = None


@dataclass(slots=True)
class Computation:
    """Instructions in order, with what they take and give."""

    name: str
    inputs: list[Binder]
    instructions: list[Instruction]
    outputs: list[Operand]
    constants: list[Binder] = field(default_factory=list)


@dataclass(slots=True)
class XlaProgram:
    """A whole program: what it runs, and what is known of its inputs and outputs.

    Attributes
    ----------
    entry
        What is run.
    names, result_names
        What the program that was traced calls its inputs and outputs; empty where it is not known.
    donated
        Whether the program may keep an output in the memory of an input, per input.
    assumed
        What its reader had to assume, one sentence each.
    stacks_are_whole
        Whether the name stack of an op in a loop or branch begins where its function does, not
        where the loop or branch does.
    is_compiled
        Whether XLA runs this very program. Then instructions on literals alone are ops, and a loop
        works in the memory of its operands: XLA has already copied those that it must not change.
    """

    name: str
    framework: str
    entry: Computation
    names: list[str] = field(default_factory=list)
    result_names: list[str] = field(default_factory=list)
    donated: list[bool] = field(default_factory=list)
    assumed: list[str] = field(default_factory=list)
    stacks_are_whole: bool = False
    is_compiled: bool = False


#: A walk over something nested, without recursion. It yields walks; `drive` runs each, and what the
#: walk returns is the value of the ``yield``.
Walk = Generator[Any, Any, Any]


def drive(walk: Walk) -> Any:
    """Runs a walk and all that it yields, depth first: any depth of nesting is fine.

    >>> def depth(nested):
    ...     return 1 + (yield depth(nested[0])) if nested else 0
    >>> drive(depth([[[]]]))
    2
    """
    stack, result = [walk], None
    while stack:
        try:
            inner = stack[-1].send(result)
        except StopIteration as done:
            stack.pop()
            result = done.value
        else:
            stack.append(inner)
            result = None
    return result


def at(line: int) -> str:
    """``"line 7: "`` for messages; empty where no line is known."""
    return f"line {line}: " if line else ""
