"""A plan as one HTML file that needs no network: what runs where and when, why, how good it is.

Plotly draws the figures; its script is inlined. The page holds every op and every transfer, packed.
Bars narrower than a few pixels are merged before they are drawn, anew at every zoom, so 50,000 ops
are as readable as 500.
"""

from __future__ import annotations

import base64
import gzip
import os
from importlib import resources
from string import Template

from loadmaster.base.errors import importing
from loadmaster.base.files import write_bytes
from loadmaster.base.units import counted
from loadmaster.plans.comparison import Comparison
from loadmaster.plans.plan import Plan
from loadmaster.plans.recipe_tables import BYTES, byte_rows, module_rows
from loadmaster.plans.words import title
from loadmaster.running.measured.measured import Measured
from loadmaster.running.measured.summary import lead
from loadmaster.writers.pictures.pipeline import is_pipeline
from loadmaster.writers.report import chain, markup, measures
from loadmaster.writers.report.beside import (
    CAUSES,
    DEVICES,
    cause_rows,
    device_rows,
    ratio_rows,
)
from loadmaster.writers.report.contents import contents, idle_devices
from loadmaster.writers.report.verdict import head, verdict_list

#: The parts of the page's script, in their order.
SCRIPTS = ("data", "words", "timeline", "explanation", "chain", "find", "modules", "start")

#: The next level takes twice as long and saves a twentieth of the bytes.
_GZIP_LEVEL = 5


def write_report(
    plan: Plan | Measured, path: str | os.PathLike[str], *, comparison: Comparison | None = None
) -> None:
    """Writes a plan, or a measured run of one, as one HTML page.

    First the verdict: how good the plan is, what was not tried, how sure its times are. Beside it a
    timeline of devices and channels over memory, with a search for ops. Then what the chain of
    causes behind the step time is made of, other methods and the bound, what a recipe makes of each
    module and what fills each device, the graph by modules that open, utilisation, and where the
    times come from. The same plan gives the same bytes.

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
    parts = chain.parts(plan)
    return Template((folder / "page.html").read_text("utf-8")).substitute(
        title=markup.text(title(plan)),
        head=head(plan),
        verdict=verdict_list(plan),
        idle=_idle(plan),
        recipe=_recipe(plan),
        quality=_quality(plan, comparison),
        beside=_beside(measured),
        pipeline=_pipeline(plan),
        chain=chain.parts_table(parts, plan.makespan),
        utilisation=_utilisation(plan),
        provenance=markup.bars(measures.provenance(plan), 1.0),
        css=(folder / "page.css").read_text("utf-8"),
        plotly=script,
        data=_packed(contents(plan, parts, measured)),
        js="".join((folder / f"page.{name}.js").read_text("utf-8") for name in SCRIPTS),
    )


def _packed(data: bytes) -> str:
    """Bytes gzipped and in base64, none of whose characters can end an HTML element."""
    return base64.b64encode(gzip.compress(data, _GZIP_LEVEL, mtime=0)).decode()


def _idle(plan: Plan) -> str:
    """Devices that compute nothing, folded into a line."""
    idle = idle_devices(plan)
    return markup.folded(counted(len(idle), "idle device"), ", ".join(idle))


def _quality(plan: Plan, comparison: Comparison | None) -> str:
    """Bars of step times, and a paragraph for each method that found no plan, with the reason."""
    failed = comparison.failures.items() if comparison else ()
    return markup.bars(measures.quality(plan, comparison)) + "".join(
        markup.paragraph(f"{method}: {why}") for method, why in failed
    )


def _utilisation(plan: Plan) -> str:
    rows, left = measures.utilisation(plan)
    return markup.bars(rows, 1.0) + markup.paragraph(left)


def _beside(measured: Measured | None) -> str:
    """The section that sets a measured run beside its prediction; empty where there is none."""
    if measured is None:
        return ""
    causes = measured.causes()
    parts, rows = cause_rows(causes)
    headline = "".join(map(markup.paragraph, (*lead(measured), str(causes.head))))
    tables = (
        ("Devices", DEVICES, device_rows(measured)),
        ("Predicted over measured", *ratio_rows(measured)),
        ("What the difference is made of", ("seconds", "of"), parts),
        ("The largest of these", CAUSES, rows),
    )
    body = "".join(f"<h3>{name}</h3>{markup.long_table(top, some)}" for name, top, some in tables)
    picture = markup.figure("beside", "the predicted and the measured step")
    return markup.section("Predicted and measured", headline, picture, body)


def _pipeline(plan: Plan) -> str:
    """The section on micro-batches; empty where there are none."""
    if not is_pipeline(plan):
        return ""
    return markup.section(
        "The pipeline",
        markup.paragraph(
            "What each device does to which micro-batch, by number. Grey is where it waits. Drag "
            "over a part of the time to see it larger, double-click to see all."
        ),
        markup.figure("pipeline", "the pipeline"),
    )


def _recipe(plan: Plan) -> str:
    """The section on what is split how; empty where no recipe says it."""
    if plan.recipe is None:
        return ""
    return markup.section(
        "What is split how",
        markup.long_table(*module_rows(plan)),
        "<h3>Where the bytes go, at each device's peak as simulated</h3>",
        markup.long_table(BYTES, markup.joined(byte_rows(plan))),
    )
