"""Paths of modules as users write them, from what PyTorch keeps of them in a traced program."""

from __future__ import annotations

import re

_SELF = re.compile(r"""^L(\['self'\]|__self__)\.?""")
_ELEMENT = re.compile(r"""\[['"]?(\w+)['"]?\]""")
_SLICE = re.compile(r"\.?slice\([^()]*\)")


def module_path(text: str) -> str:
    """The path of a module in the model, as ``named_modules`` has it.

    >>> module_path("L['self'].layers[0].norm"), module_path("layers.slice(None, 2, None).1")
    ('layers.0.norm', 'layers.1')
    """
    path = _ELEMENT.sub(r".\1", _SLICE.sub("", _SELF.sub("", text)))
    return path.strip(".")


def innermost(stack: str) -> str:
    """The path of the last module of a stack ``key,path,type;key,path,type``.

    >>> innermost("L__self__,,Model;L__self___a,a.slice(None, 2, None).0,torch.nn.Linear")
    'a.0'
    """
    entry = _split(stack, ";")[-1]
    parts = _split(entry, ",")
    return module_path(parts[1]) if len(parts) > 1 else ""


def _split(text: str, separator: str) -> list[str]:
    """Splits where no bracket is open."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        if character == separator and depth <= 0:
            parts.append("")
        else:
            parts[-1] += character
    return parts
