"""Split rules: which kinds of ops can be split along which dimensions, read from data.

See ``split_rules.toml`` for what a rule says; FastT (Yi et al., Middleware 2020), section 5.2, asks
for them per kind of op and dimension.

The rules of :mod:`loadmaster.dimensions` say all that these say, of a graph that has the arguments
of its calls. These need sizes alone: the strides of a convolution do not follow from them, so a
graph without arguments would have no way to split one. They are also fewer, and each is tried.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

WHOLE, ALIGNED, MATCH, SUM = "whole", "aligned", "match", "sum"

#: How parts share an input or an output: along an axis, or by one of the words above.
How = int | str


@dataclass(frozen=True)
class Rule:
    """How ops of a kind are split along a dimension.

    Attributes
    ----------
    dimension : str
    inputs : tuple of int or str
        Per input, the axis it is sliced along, ``"whole"``, ``"aligned"`` or ``"match"``.
    outputs : tuple of int or str
        Per output, the axis its parts are concatenated along, or ``"sum"``.
    min_rank : int
        Fewest axes of the first output.
    equal : tuple of pairs of (input, axis)
        Sizes that must agree.
    """

    dimension: str
    inputs: tuple[How, ...]
    outputs: tuple[How, ...]
    min_rank: int = 0
    equal: tuple[tuple[tuple[int, int], tuple[int, int]], ...] = ()

    def input(self, position: int) -> How:
        """How the input at a position is handed out."""
        return self.inputs[position] if position < len(self.inputs) else WHOLE


@cache
def rules() -> Mapping[str, tuple[Rule, ...]]:
    """The packaged rules by kind, in their order."""
    text = resources.files("loadmaster.transforms").joinpath("split_rules.toml").read_text("utf-8")
    found: dict[str, tuple[Rule, ...]] = {}
    for table in tomllib.loads(text)["rule"]:
        rule = _rule(table)
        for kind in table["kinds"]:
            found[kind] = (*found.get(kind, ()), rule)
    return found


def _rule(table: Mapping[str, Any]) -> Rule:
    return Rule(
        table["dimension"],
        tuple(table["inputs"]),
        tuple(table["outputs"]),
        table.get("min_rank", 0),
        tuple(((a[0], a[1]), (b[0], b[1])) for a, b in table.get("equal", ())),
    )


def rules_for(kind: str) -> tuple[Rule, ...]:
    """The rules of a kind of op. All overloads of an ATen kind have the same rules.

    >>> [rule.dimension for rule in rules_for("aten.convolution.default")]
    ['batch', 'channel']
    """
    known = rules()
    if kind in known or not kind.startswith("aten."):
        return known.get(kind, ())
    return known.get(kind.rpartition(".")[0], ())
