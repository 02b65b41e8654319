"""A plan as one HTML file that needs no network: what runs where and when, why, how good it is.

Plotly draws the figures; its script is inlined. The page holds every op and every transfer, packed.
Bars narrower than a few pixels are merged before they are drawn, anew at every zoom, so 50,000 ops
are as readable as 500.
"""

from __future__ import annotations

import base64
import gzip
import html
import os
from collections.abc import Sequence
from importlib import resources
from string import Template

from loadmaster.base.errors import importing
from loadmaster.base.files import write_bytes
from loadmaster.plans.comparison import Comparison
from loadmaster.plans.plan import Plan
from loadmaster.plans.recipe_tables import BYTES, byte_rows, module_rows
from loadmaster.plans.specs import recipe_in_words
from loadmaster.plans.summary import title
from loadmaster.running.measured import Measured
from loadmaster.running.summary import lead
from loadmaster.writers.pictures.pipeline import is_pipeline
from loadmaster.writers.report.beside import (
    CAUSES,
    DEVICES,
    cause_rows,
    device_rows,
    ratio_rows,
)
from loadmaster.writers.report.contents import contents, facts, provenance_rows

#: The next level takes twice as long and saves a twentieth of the bytes.
_GZIP_LEVEL = 5


def write_report(
    plan: Plan | Measured, path: str | os.PathLike[str], *, comparison: Comparison | None = None
) -> None:
    """Writes a plan, or a measured run of one, as one HTML page.

    Of a plan with a recipe, first what it makes of each module, and what fills each device. Then a
    timeline of devices and channels over memory, the chain of causes behind the step time to walk
    through, utilisation, the coarsened graph coloured by device, the bound, other methods, and
    where the times come from. Clicking, dragging and scrolling zoom. The same plan gives the same
    bytes.

    Of a run, all this is of the measured step. Before it stand the predicted and the measured step
    on one axis of time, predicted over measured for the step, kinds of op and links, and what the
    difference is made of.

    Parameters
    ----------
    plan, path
    comparison : Comparison, optional
        What other methods make of the same graph; see :func:`loadmaster.compare`.

    Raises
    ------
    InputError
        The file cannot be written.
    MissingExtraError
        plotly is not installed.

    Notes
    -----
    O(V + E) for the page, which has about 100 bytes per op; at every zoom O(ops in sight) in the
    browser.

    Examples
    --------
    >>> import loadmaster as lm, pathlib, tempfile
    >>> plan = lm.place(lm.read("example:lenet"), lm.Cluster.preset("2xV100-NVLink"))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "plan.html")
    ...     write_report(plan, path)
    ...     path.read_text()[:15]
    '<!doctype html>'
    """
    script = _plotly()
    measured = plan if isinstance(plan, Measured) else None
    shown = plan.seen if isinstance(plan, Measured) else plan
    write_bytes(path, _page(shown, comparison, measured, script).encode())


def check_plotly() -> None:
    """Raises :class:`~loadmaster.base.errors.MissingExtraError` where plotly is not installed."""
    _plotly()


def _plotly() -> str:
    with importing("plotly", "report", "a report"):
        from plotly.offline import get_plotlyjs
    script: str = get_plotlyjs()
    return script


def _page(plan: Plan, comparison: Comparison | None, measured: Measured | None, script: str) -> str:
    folder = resources.files(__name__)
    parts = {name: (folder / f"page.{name}").read_text("utf-8") for name in ("html", "css", "js")}
    return Template(parts["html"]).substitute(
        title=html.escape(title(plan)),
        facts=_definitions(facts(plan)),
        provenance=_table(("from", "of the time", "ops"), provenance_rows(plan)),
        recipe=_recipe(plan),
        methods=_failures(comparison),
        beside=_beside(measured),
        pipeline=_pipeline(plan),
        css=parts["css"],
        plotly=script,
        data=_packed(contents(plan, comparison, measured)),
        js=parts["js"],
    )


def _packed(data: bytes) -> str:
    """Bytes gzipped and in base64, none of whose characters can end an HTML element."""
    return base64.b64encode(gzip.compress(data, _GZIP_LEVEL, mtime=0)).decode()


def _definitions(rows: Sequence[tuple[str, str]]) -> str:
    pairs = (f"<dt>{html.escape(k)}</dt><dd>{html.escape(v)}</dd>" for k, v in rows)
    return "<dl>" + "".join(pairs) + "</dl>"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    def line(tag: str, cells: Sequence[str]) -> str:
        inner = "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells)
        return f"<tr>{inner}</tr>"

    body = "".join(line("td", row) for row in rows)
    table = f"<table><thead>{line('th', head)}</thead><tbody>{body}</tbody></table>"
    return f'<div class="wide">{table}</div>'


def _beside(measured: Measured | None) -> str:
    """The section that sets a measured run beside its prediction; empty where there is none."""
    if measured is None:
        return ""
    causes = measured.causes()
    parts, rows = cause_rows(causes)
    headline = "".join(
        f"<p>{html.escape(line)}</p>" for line in (*lead(measured), str(causes.head))
    )
    tables = (
        ("Devices", DEVICES, device_rows(measured)),
        ("Predicted over measured", *ratio_rows(measured)),
        ("What the difference is made of", ("seconds", "of"), parts),
        ("The largest of these", CAUSES, rows),
    )
    body = "".join(f"<h3>{name}</h3>{_table(head, some)}" for name, head, some in tables)
    return (
        f'<section><h2>Predicted and measured</h2>{headline}<div id="beside"></div>{body}</section>'
    )


def _pipeline(plan: Plan) -> str:
    """The section on micro-batches; empty where there are none."""
    if not is_pipeline(plan):
        return ""
    return (
        "<section><h2>The pipeline</h2><p>What each device does to which micro-batch, by number. "
        "Grey is where it waits. Drag over a part of the time to see it larger, double-click to "
        'see all.</p><div id="pipeline"></div></section>'
    )


def _recipe(plan: Plan) -> str:
    """The section on what is split how; empty where no recipe says it."""
    if plan.recipe is None:
        return ""
    modules = _table(*module_rows(plan))
    peak = _table(BYTES, byte_rows(plan))
    return (
        f"<section><h2>What is split how</h2><p>{html.escape(recipe_in_words(plan))}</p>{modules}"
        f"<h3>Where the bytes go, at each device's peak as simulated</h3>{peak}</section>"
    )


def _failures(comparison: Comparison | None) -> str:
    """A paragraph per method that found no plan, with the reason."""
    if comparison is None:
        return ""
    found = comparison.failures.items()
    return "".join(f"<p>{html.escape(method)}: {html.escape(why)}</p>" for method, why in found)
