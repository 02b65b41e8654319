"""Rules as data: to which family a kind of op belongs, and what the family must know of it.

A rule is a table in ``rules/*.toml``: the ``family`` says how its calls are read (``FAMILIES`` in
``binding.py``), ``kinds`` which ops it is for, ``arguments`` the names of the call's arguments, in
order, ``names`` what the framework calls them ("axis:dim"), ``only`` the values that arguments must
have, ``needs`` those that must be known, and everything else is the family's own. An ATen kind
without its overload stands for all of them, and for the op that writes into its first argument:
``aten.add`` is also ``aten.add_.Scalar``.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any

#: Keys of every table beside the options of its family.
_COMMON = ("family", "kinds", "arguments", "names", "only", "needs")

#: Before a kind that ONNX Runtime adds to ONNX, or has another kernel for.
_RUNTIME = "com.microsoft."
#: Before a kind of TensorFlow, which shares words with ONNX.
TENSORFLOW = "tensorflow:"


@dataclass(frozen=True)
class CallRule:
    """The reading of calls of some kinds.

    Attributes
    ----------
    family : str
    arguments : tuple of str
        Names of the positional arguments; empty: the family knows them by position.
    names : mapping of str
        By the name that the framework has for an argument, the name that the family has.
    only : mapping
        Values that arguments must have, if they are given.
    needs : tuple of str
        Arguments that must be known.
    options : mapping
        What the family must know.
    """

    family: str
    arguments: tuple[str, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)
    only: Mapping[str, Any] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)


@cache
def rules() -> Mapping[str, CallRule]:
    """The packaged rules by kind; kinds of TensorFlow begin with :data:`TENSORFLOW`."""
    by_kind: dict[str, CallRule] = {}
    folder = resources.files("loadmaster.dimensions") / "rules"
    for file in sorted(folder.iterdir(), key=lambda file: file.name):
        before = TENSORFLOW if file.name == "tensorflow.toml" else ""
        for table in tomllib.loads(file.read_text("utf-8"))["rule"]:
            options = {key: value for key, value in table.items() if key not in _COMMON}
            rule = CallRule(
                table["family"],
                tuple(table.get("arguments", "").split()),
                dict(name.split(":") for name in table.get("names", "").split()),
                table.get("only", {}),
                tuple(table.get("needs", "").split()),
                options,
            )
            for kind in (before + kind for kind in table["kinds"].split()):
                assert kind not in by_kind, f"two rules for {kind}"
                by_kind[kind] = rule
    return by_kind


@cache
def rule_of(kind: str) -> CallRule | None:
    """The rule of a kind of op, if there is one.

    >>> rule_of("aten.add_.Tensor").family, rule_of("aten.nonzero.default")
    ('elementwise', None)
    """
    known = rules()
    if kind.startswith(_RUNTIME):
        kind = kind.rpartition(".")[2]
    if kind in known or not kind.startswith("aten."):
        return known.get(kind)
    stem = kind.rpartition(".")[0]
    return known.get(stem, known.get(stem.removesuffix("_")))
