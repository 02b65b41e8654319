"""Text for people: rows of cells as a table."""

from __future__ import annotations

from collections.abc import Sequence


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of cells as lines with aligned columns; a row may have fewer cells than the first."""
    widths = [max(len(row[i]) for row in rows if len(row) > i) for i in range(len(rows[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)).rstrip()
        for row in rows
    ]
