"""For the API reference: references in docstrings, which are Sphinx's roles, as links."""

from __future__ import annotations

import re
from typing import Any

import griffe

ROLE = re.compile(r":\w+:`(?P<short>~?)(?P<target>[\w.]+)`")


def link(match: re.Match[str]) -> str:
    """A link where the reference has that name, else only the name, as code."""
    target = match["target"].lstrip(".")
    text = target.rpartition(".")[2] if match["short"] else target
    return f'<autoref identifier="{target}" optional><code>{text}</code></autoref>'


class Roles(griffe.Extension):
    """Rewrites docstrings before they are parsed."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Once per module, class, function and attribute."""
        if obj.docstring is not None:
            obj.docstring.value = ROLE.sub(link, obj.docstring.value)
