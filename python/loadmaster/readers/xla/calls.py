"""Attributes of an op of a program for XLA, as keywords: from the texts of HLO and StableHLO."""

from __future__ import annotations

import ast
import re
from typing import Any

from loadmaster.readers.xla.text import split

#: Attributes of HLO that say nothing of how an op works, or name computations.
_ELSEWHERE = frozenset((
    "backend_config", "body", "branch_computations", "called_computations", "calls", "condition",
    "control-predecessors", "false_computation", "frontend_attributes", "literal", "metadata",
    "origin", "scatter", "select", "sharding", "statistics", "to_apply", "true_computation",
))  # fmt: skip

_NUMBERS = re.compile(r"\{[\d,\s-]*\}")
_RANGE = r"\d+:\d+(?::\d+)?"
_RANGES_OF_HLO = re.compile(rf"\{{\[{_RANGE}\](?:, *\[{_RANGE}\])*\}}")
_RANGES_OF_MLIR = re.compile(rf"\[{_RANGE}(?:, *{_RANGE})*\]")

_QUOTED = re.compile(r"\"(?:[^\"\\]|\\.)*\"")
_LIST = r"\[[\[\]\d, -]*\]"
_OF_MLIR = re.compile(
    rf"\b(?P<name>\w+) *= *(?:(?P<left>{_LIST}) *x *(?P<right>{_LIST})|(?P<list>{_LIST})"
    r"|array<i\d+:? *(?P<array>[^<>]*)>|dense<(?P<dense>[^<>]*)>|(?P<one>-?\d+\b|true|false))"
)
_DIM_NUMBERS = re.compile(r"\bdim_numbers *= *(\[[\w, ]*\]x\[[\w, ]*\]->\[[\w, ]*\])")


def of_hlo(text: str) -> dict[str, Any]:
    r"""The attributes of an instruction of HLO.

    >>> of_hlo(", dimensions={1,0}, slice={[0:8], [2:6:2]}, metadata={op_name=\"f\"}")
    {'dimensions': [1, 0], 'slice': [[0, 8], [2, 6, 2]]}
    """
    attributes: dict[str, Any] = {}
    for part in split(text):
        name, equals, value = part.partition("=")
        if equals and name not in _ELSEWHERE:
            attributes[name] = _of_hlo(value)
    return attributes


def _of_hlo(value: str) -> Any:
    if _NUMBERS.fullmatch(value):
        return [int(number) for number in re.findall(r"-?\d+", value)]
    if _RANGES_OF_HLO.fullmatch(value):
        return _ranges(value)
    if value in ("true", "false"):
        return value == "true"
    if re.fullmatch(r"-?\d{1,19}", value):
        return int(value)
    return value.strip('{}"')


def of_mlir(text: str) -> dict[str, Any]:
    """The attributes of an operation of StableHLO that are numbers, and where it slices.

    >>> of_mlir("%0, %1, batching_dims = [0] x [0], contracting_dims = [2] x [1]")
    {'batching_dims': [[0], [0]], 'contracting_dims': [[2], [1]]}
    >>> of_mlir("%1 [0:8, 64:128]"), of_mlir("(%0) <{sizes = array<i64: 1, 64>}>")
    ({'slice': [[0, 8], [64, 128]]}, {'sizes': [1, 64]})
    """
    text = _QUOTED.sub("", text)
    attributes: dict[str, Any] = {}
    if labels := _DIM_NUMBERS.search(text):
        attributes["dim_numbers"] = labels[1]
    elif ranges := _RANGES_OF_MLIR.search(text):
        attributes["slice"] = _ranges(ranges[0])
    for match in _OF_MLIR.finditer(text):
        if match["left"]:
            attributes[match["name"]] = [_literal(match["left"]), _literal(match["right"])]
        elif match["one"]:
            attributes[match["name"]] = _literal(match["one"].capitalize())
        elif match["array"] is not None:
            attributes[match["name"]] = _literal(f"[{match['array']}]")
        else:
            attributes[match["name"]] = _literal(match["list"] or match["dense"])
    return attributes


def _ranges(text: str) -> list[list[int]]:
    return [[int(n) for n in one.split(":")] for one in re.findall(_RANGE, text)]


def _literal(text: str) -> Any:
    """Numbers, and lists of them; None for what is not whole, or beyond what is read."""
    try:
        return ast.literal_eval(re.sub(r"\b(true|false)\b", lambda m: m[0].capitalize(), text))
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return None
