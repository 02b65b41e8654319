"""Trips of loops: counters, conditions, and the numbers that they are made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from loadmaster.readers.xla.columns import XlaValue
from loadmaster.readers.xla.costs import plain
from loadmaster.readers.xla.program import Computation, Constant, Instruction, Loop, Operand

_COMPARISONS = {"lt": "LT", "le": "LE", "gt": "GT", "ge": "GE", "ne": "NE"}


def folded(kind: str, values: Sequence[XlaValue]) -> complex | None:
    """The result of an elementwise op on known numbers, of kinds that loops' limits need.

    Of numbers beyond 64 bits nothing is known: no loop runs so often.
    """
    numbers = [v.number for v in values]
    if any(n is None or abs(n) >= 2**64 for n in numbers):
        return None
    match plain(kind), numbers:
        case ("add" | "add_any", [a, b]):
            return a + b  # type: ignore[operator]
        case ("sub" | "subtract", [a, b]):
            return a - b  # type: ignore[operator]
        case ("mul" | "multiply", [a, b]):
            return a * b  # type: ignore[operator]
        case ("convert" | "convert_element_type" | "stop_gradient", [a]):
            return a
        case ("max" | "maximum", [a, b]):
            return max(a.real, b.real)  # type: ignore[union-attr]
        case ("min" | "minimum", [a, b]):
            return min(a.real, b.real)  # type: ignore[union-attr]
    return None


def _number_of(
    operand: Operand, body: Computation, known: Mapping[str, XlaValue]
) -> complex | None:
    """The number that an operand of a computation is; None if it is no known number."""
    if isinstance(operand, Constant):
        return operand.number
    if operand in known:
        return known[operand].number
    maker = _maker(operand, body)
    return maker.attributes.get("number") if maker else None


def _maker(name: Operand, body: Computation) -> Instruction | None:
    return next((i for i in body.instructions if i.results and i.results[0].name == name), None)


def counters_of(
    body: Computation, n_constants: int, initial: Sequence[XlaValue]
) -> dict[int, float]:
    """Positions and steps of carried numbers whose first value and whose step are literals."""
    counters = {}
    makers = {i.results[0].name: i for i in body.instructions if i.results}
    for position, value in enumerate(initial):
        if value.op >= 0 or value.type.shape or value.type.dtype[0] not in "iu":
            continue
        if position >= len(body.outputs):
            break
        name = body.inputs[n_constants + position].name
        output = body.outputs[position]
        maker = makers.get(output) if isinstance(output, str) else None
        if maker is None or name not in maker.operands or len(maker.operands) != 2:
            continue
        other = maker.operands[1 - maker.operands.index(name)]
        step = _number_of(other, body, {})
        if step is None:
            continue
        if plain(maker.kind) == "add":
            counters[position] = step.real
        elif plain(maker.kind) in ("sub", "subtract") and maker.operands[0] == name:
            counters[position] = -step.real
    return counters


def trips_of(
    condition: Computation,
    body: Computation,
    values: Sequence[XlaValue],
    loop: Loop,
    counters: Mapping[int, float],
) -> int | None:
    """The trips of a while whose condition compares a counter with a number; else None.

    ``values`` are its operands, ``counters`` what :func:`counters_of` finds in its body.
    """
    c, b = loop.n_condition_constants, loop.n_constants
    output = condition.outputs[0] if condition.outputs else None
    test = _maker(output, condition) if isinstance(output, str) else None
    if test is None or len(test.operands) != 2:
        return None
    direction = _COMPARISONS.get(plain(test.kind)) or test.attributes.get("direction")
    carried = {name: i for i, (name, _) in enumerate(condition.inputs[c:])}
    known = {name: v for (name, _), v in zip(condition.inputs, values[:c], strict=False)}
    for name, i in carried.items():
        # A value that the body hands on unchanged is the same as before the loop.
        if i < len(body.outputs) and body.outputs[i] == body.inputs[b + i].name:
            known[name] = values[c + b + i]
    left, right = test.operands
    if not (isinstance(left, str) and carried.get(left) in counters):
        left, right = right, left
        direction = {"LT": "GT", "GT": "LT", "LE": "GE", "GE": "LE"}.get(str(direction), direction)
    position = carried.get(left) if isinstance(left, str) else None
    limit = _number_of(right, condition, known)
    if position is None or position not in counters or limit is None:
        return None
    start, step = values[c + b + position].number, counters[position]
    if start is None or not step:
        return None
    if not max(abs(limit), abs(start), abs(step)) < 2**64:
        return None
    span = limit.real - start.real
    if direction == "NE":
        return int(span // step) if span % step == 0 and span / step >= 0 else None
    if direction not in ("LT", "LE", "GT", "GE") or (direction in ("LT", "LE")) != (step > 0):
        return None
    whole = -int(-span // step) if direction in ("LT", "GT") else int(span // step) + 1
    return max(whole, 0)
