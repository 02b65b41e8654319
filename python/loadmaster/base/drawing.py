"""Common parts of all pictures: colours, fonts, and files whose bytes depend on the data alone."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from loadmaster.base.errors import InputError, importing
from loadmaster.base.files import write_bytes
from loadmaster.base.text import escaped, shortened

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg")

INK, MUTED, RULE, TRACK = "#1f2933", "#66727f", "#c9d0d6", "#f1f3f5"

DPI = 100
_PNG_SCALE = 2

#: Characters of a text in a picture.
_LONGEST = 200


def check_suffix(path: str | os.PathLike[str]) -> str:
    """The suffix of a picture's path, if it is one that can be drawn.

    Raises
    ------
    InputError
        Another suffix.
    """
    suffix = PurePath(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise InputError(f"cannot draw {os.fspath(path)}: its name must end in .png or .svg")
    return suffix


@contextmanager
def style(purpose: str) -> Iterator[None]:
    """Draws with our settings, not the user's; an error names the ``purpose`` of the picture.

    Raises
    ------
    MissingExtraError
        matplotlib is not installed.
    """
    with importing("matplotlib", "plot", purpose):
        import matplotlib
        from matplotlib.style import context
    settings: dict[Any, Any] = {
        "font.family": "DejaVu Sans",
        "font.size": 9.0,
        "text.color": INK,
        "axes.edgecolor": RULE,
        "axes.labelcolor": MUTED,
        "xtick.color": MUTED,
        "ytick.color": INK,
        "svg.hashsalt": "loadmaster",
        "text.parse_math": False,  # a name with dollars is no formula
    }
    with context("default"), matplotlib.rc_context(settings):
        yield


def short(name: str, most: int = 24) -> str:
    """A name as a picture shows it: of a longer one the end.

    >>> short("gpu0"), short("a_name_of_very_many_letters", 12)
    ('gpu0', '…any_letters')
    """
    name = escaped(name)
    return name if len(name) <= most else f"…{name[1 - most :]}"


def ink_on(colour: Sequence[float]) -> str:
    """Black or white, whichever is easier to read on a colour, RGB from 0 to 1 each.

    Their contrast by WCAG 2 is 4.5 or more.

    >>> ink_on((1.0, 1.0, 0.0)), ink_on((0.2, 0.2, 0.5))
    ('#000', '#fff')
    """
    r, g, b = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in colour)
    return "#000" if 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.179 else "#fff"


def time_ticks(span: float, most: int) -> tuple[list[float], list[str]]:
    """Round times from 0 to ``span`` seconds, at most ``most`` + 1, and their words in one unit."""
    from matplotlib.ticker import MaxNLocator

    scale, unit = next(
        (s, u) for s, u in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (0.0, "ns")) if span >= s
    )
    scale = scale or 1e-9
    places = MaxNLocator(most, steps=[1, 2, 2.5, 5, 10]).tick_values(0, span / scale)
    ticks = [t * scale for t in places if 0 <= t * scale <= span]
    return ticks, [f"{t / scale:g} {unit}" for t in ticks]


def write(figure: Figure, path: str | os.PathLike[str]) -> None:
    """Writes a figure; a PNG has twice as many pixels, for sharp screens."""
    from matplotlib.text import Text

    suffix = check_suffix(path)
    for words in figure.findobj(Text):
        words.set_text(shortened(escaped(words.get_text(), but="\n"), _LONGEST))
    buffer = io.BytesIO()
    png = suffix == ".png"
    figure.savefig(
        buffer,
        format=suffix[1:],
        dpi=DPI * _PNG_SCALE if png else DPI,
        metadata={"Software": "Loadmaster"} if png else {"Date": None},
    )
    data = buffer.getvalue()
    # Labels of axes are made when they are drawn. XML cannot hold their controls.
    write_bytes(path, data if png else escaped(data.decode(), but="\n\t").encode())
