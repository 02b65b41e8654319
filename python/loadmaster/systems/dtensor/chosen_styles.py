"""Styles of modules as plain data, which the planner leaves in the plan for the writer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from loadmaster.base.errors import InputError
from loadmaster.systems.dtensor.module_styles import COLUMNS, OUTPUT, ROWS, SEQUENCE, Style, Styled

#: Keys of the document: a style per module, and whether classes of the loss are shared out.
STYLES, LOSS = "styles", "loss_parallel"

_FIELDS = {field.name: field for field in fields(Style)}


def to_document(styled: Styled) -> dict[str, Any]:
    """The styles of a model, and whether classes of its loss are shared out.

    >>> styled = Styled({}, {"h.0.fc": Style(COLUMNS, None, -1)}, {})
    >>> to_document(styled)["styles"]["h.0.fc"]["gives"]
    -1
    """
    return {
        STYLES: {module: asdict(style) for module, style in styled.styles.items()},
        LOSS: styled.loss_parallel,
    }


def from_document(document: Mapping[str, Any]) -> Styled | None:
    """The styles in a document; None: it has none.

    Raises
    ------
    InputError
        A style is of another form.

    Examples
    --------
    >>> styled = Styled({}, {"h.0.fc": Style(COLUMNS, None, -1)}, {})
    >>> from_document(to_document(styled)).styles == styled.styles
    True
    """
    if STYLES not in document:
        return None
    rows, is_parallel = document[STYLES], document.get(LOSS, False)
    if not isinstance(rows, Mapping) or not isinstance(is_parallel, bool):
        raise InputError(f"the plan is damaged: its {STYLES} are no table of modules")
    return Styled({}, {str(m): _style(str(m), row) for m, row in rows.items()}, {}, is_parallel)


def _style(module: str, row: Any) -> Style:
    """A style, checked."""
    is_one = (
        isinstance(row, Mapping)
        and set(row) == set(_FIELDS)
        and row["kind"] in (COLUMNS, ROWS, SEQUENCE, OUTPUT)
        and all(row[name] is None or type(row[name]) is int for name in ("takes", "gives"))
        and type(row["parts"]) is int
        and isinstance(row["is_local"], bool)
    )
    if not is_one:
        raise InputError(f"the plan is damaged: {module!r} has no style of the form of others")
    return Style(**row)
