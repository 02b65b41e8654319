"""Deviations of predictions as a picture: Celeritas' Figure 5, with the kinds of ops beside it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np

from loadmaster.base.drawing import DPI, INK, MUTED, RULE, check_suffix, style, write

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from loadmaster.costs.accuracy import Trust

_TIMES, _BYTES = "#3f7cac", "#c98b2b"
_KINDS = 10


def draw(trust: Trust, path: str | os.PathLike[str]) -> None:
    """Draws the cumulative distribution of deviations, and deviations by kind of op.

    The kinds are those that take most time. The same data gives the same bytes.

    Raises
    ------
    InputError
        A name that ends in neither .png nor .svg, or a file that cannot be written.
    MissingExtraError
        matplotlib is not installed.

    Examples
    --------
    >>> import numpy as np, loadmaster as lm, pathlib, tempfile
    >>> profile = lm.Profile(("a", "b"), ("Add", "Mul"), np.array([[1e-3], [2e-3]]), "cpu")
    >>> model = lm.costs.CostModel()
    >>> update = model.update(profile)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder) / "trust.svg"
    ...     draw(lm.costs.trust(model, profile), path)
    ...     path.exists()
    True
    """
    check_suffix(path)
    with style("drawing deviations"):
        write(_figure(trust), path)


def _figure(trust: Trust) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.6, 4.0), dpi=DPI, layout="constrained")
    left, right = figure.subplots(1, 2)
    _distribution(left, trust)
    _kinds(right, trust)
    return figure


def _distribution(axes: Axes, trust: Trust) -> None:
    lines = [("time", _TIMES, trust.deviation)]
    if trust.bytes_deviation is not None:
        lines.append(("output bytes", _BYTES, trust.bytes_deviation))
    for name, colour, off in lines:
        x = np.unique(np.append(off[off < 1], (0.0, 1.0)))
        y = np.searchsorted(np.sort(off), x, side="right") / len(off)
        axes.step(100 * x, 100 * y, where="post", color=colour, label=name)
    axes.set(xlim=(0, 100), ylim=(0, 102), xlabel="deviation, %", ylabel="ops within it, %")
    axes.grid(color=RULE, linewidth=0.5)
    axes.legend(loc="lower right", frameon=False)
    axes.set_title("Predicted against measured", loc="left", color=INK)


def _kinds(axes: Axes, trust: Trust) -> None:
    rows = [*trust.by_kind.items()][:_KINDS][::-1]
    at = np.arange(len(rows))
    axes.barh(at, [100 * a.weighted for _, a in rows], color=_TIMES, height=0.6)
    labels = [f"{kind} ({a.share:.0%} of time)" for kind, a in rows]
    axes.set_yticks(at, labels)
    axes.set_xlabel("deviation weighted by time, %", color=MUTED)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title("By kind of op", loc="left", color=INK)
