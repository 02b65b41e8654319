"""Module paths: where in a model an op belongs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from loadmaster.base.errors import InputError
from loadmaster.base.text import shown

#: First words of a path that say who made an op, not where its module is.
_PREFIXES = frozenset({"optim", "gradients", "gradient_tape"})

#: The most levels of a path: many times those of any model, for some work takes their square.
MOST_LEVELS = 500


def check_levels(modules: Sequence[str]) -> None:
    """Refuses module paths of more than :data:`MOST_LEVELS` levels.

    Raises
    ------
    InputError
        Names the op by its index.
    """
    for op, module in enumerate(modules):
        if len(module) > MOST_LEVELS and len(re.findall(r"[./]", module)) >= MOST_LEVELS:
            raise InputError(
                f"ops.module[{op}] is {shown(module)}: a module of more than {MOST_LEVELS} levels"
            )


def module_path(module: str) -> tuple[str, ...]:
    """The words of a module path, whether dots or slashes part them.

    >>> module_path("optim.m.layer.3.weight"), module_path("cell_1/conv")
    (('m', 'layer', '3', 'weight'), ('cell_1', 'conv'))
    """
    words = [word for word in re.split(r"[./]", module) if word]
    while words and words[0] in _PREFIXES:
        words.pop(0)
    return tuple(words)


@lru_cache(maxsize=1 << 14)
def alike(module: str) -> str:
    """A module with its numbers as wildcards: layers have the same.

    >>> alike("layers.3.mlp")
    'layers.*.mlp'
    """
    return re.sub(r"(?<![^.])\d+(?![^.])", "*", module)
