"""What a report and a trace of 50,000 ops cost, and the pictures of a report in the documentation.

    python benches/report.py [--ops 50000]      # CPU seconds, megabytes, milliseconds in a browser
    python benches/report.py --pictures docs    # report-step.png and report-graph.png
    python benches/report.py --pages docs/reports  # whole pages of four plans, wide and on a phone

Needs the extra ``report``, and for what a browser sees selenium, chromium and
chromedriver; for pictures matplotlib.
"""

from __future__ import annotations

import argparse
import io
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from browser import chromium
from pictured import layered
from PIL import Image
from quality import pcie

import loadmaster as lm
from loadmaster.writers.pictures.trace import write_trace
from loadmaster.writers.report import write_report

#: Plans whose pages are looked at, as an example, a cluster and a method: replicas of a CNN, a
#: transformer in shards on a mesh of two axes, a pipeline, whole ops on unequal devices.
PLANS: dict[str, tuple[str, Callable[[], lm.Cluster], str]] = {
    "replicas": ("inception-v3", lambda: lm.Cluster.preset("4xV100-PCIe"), "auto"),
    "shards": ("mixtral", lambda: lm.Cluster.preset("8xA100-NVLink"), "auto"),
    "pipeline": ("bert-large", lambda: pcie(8), "pipeline"),
    "unequal": ("inception-v3", lambda: lm.Cluster.new("1xA100,1xL4", "pcie4"), "heft"),
}

#: Pixels of a window and of a phone.
WIDTHS = {"wide": 1440, "phone": 360}

#: Colours of a saved picture, and pixels from the top of a page that it has at most.
COLOURS = 96
TALLEST = {"wide": 3600, "phone": 7000}

MARKS = """
const paint = performance.getEntriesByName('first-contentful-paint')[0];
return [paint.startTime, performance.now()];
"""


def cpu(work: Callable[[], object]) -> float:
    """CPU seconds of the faster of two runs."""
    seconds = []
    for _ in range(2):
        began = time.process_time()
        work()
        seconds.append(time.process_time() - began)
    return min(seconds)


def opened(browser: Any, page: Path) -> tuple[float, float]:
    """Milliseconds to the first paint, and until all is drawn (seen within 10)."""
    browser.get(page.as_uri())
    while not browser.execute_script("return document.body.dataset.drawn === 'all'"):
        time.sleep(0.01)
    paint, drawn = browser.execute_script(MARKS)
    return paint, drawn


def figures(n_ops: int) -> None:
    """A row per plan."""
    graph, cluster = layered(n_ops), lm.Cluster.preset("8xA100-NVLink")
    print(
        "| plan | transfers | report CPU s | MB | first paint ms | all drawn ms | trace CPU s "
        "| MB | packed CPU s | MB |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        page, trace = Path(folder, "plan.html"), Path(folder, "trace.json")
        packed = Path(folder, "trace.json.gz")
        for method in ("celeritas", "heft", "round-robin"):
            plan = lm.place(graph, cluster, method)
            sent = len(plan.schedule.transfers)
            report = cpu(lambda plan=plan: write_report(plan, page))
            traced = cpu(lambda plan=plan: write_trace(plan, trace))
            zipped = cpu(lambda plan=plan: write_trace(plan, packed))
            paint, drawn = opened(browser, page)
            sizes = [path.stat().st_size / 1e6 for path in (page, trace, packed)]
            print(
                f"| {method} | {sent} | {report:.1f} | {sizes[0]:.1f} | {paint:.0f} | {drawn:.0f} "
                f"| {traced:.1f} | {sizes[1]:.0f} | {zipped:.1f} | {sizes[2]:.1f} |"
            )
    began = os.times()
    subprocess.run([sys.executable, "-m", "loadmaster", "--help"], stdout=subprocess.DEVNULL)
    ended = os.times()
    used = ended.children_user + ended.children_system
    print(f"loadmaster --help: {used - began.children_user - began.children_system:.2f} CPU s")


def pictures(folder: Path) -> None:
    """The step with an op found and explained, and the graph with a module open."""
    graph, cluster = lm.read("example:inception-v3"), lm.Cluster.preset("4xV100-PCIe")
    # The README's plan on a machine that is busy too: as much work as fits within its second.
    plan = lm.place(graph, cluster, effort="fast", time_limit=60)
    print(plan.summary())
    with tempfile.TemporaryDirectory() as temporary, chromium() as browser:
        page = Path(temporary, "plan.html")
        write_report(plan, page)
        browser.set_window_size(1400, 1000)
        opened(browser, page)
        browser.execute_script("document.getElementById('long').click()")
        for step in ("last", "back", "back", "back"):
            browser.execute_script(f"document.querySelector('[data-step={step}]').click()")
            time.sleep(0.5)
        saved(browser, folder / "report-step.png")
        show = """
        const rows = [...document.querySelectorAll('.module > button')];
        rows.find((row) => row.textContent === 'Mixed_6a').click();
        document.getElementById('graph').parentElement.scrollIntoView();
        """
        browser.execute_script(show)
        time.sleep(0.5)
        saved(browser, folder / "report-graph.png")


def saved(browser: Any, path: Path) -> None:
    """What the browser shows, as a small PNG."""
    shot = Image.open(io.BytesIO(browser.get_screenshot_as_png())).convert("RGB")
    way = Image.Quantize.MAXCOVERAGE
    small = shot.quantize(COLOURS, way, kmeans=3, dither=Image.Dither.NONE)
    small.save(path, optimize=True)
    print(f"{path}: {path.stat().st_size / 1e3:.0f} KB")


def pages(folder: Path) -> None:
    """The whole page of each of :data:`PLANS`, on a wide window and on a phone."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary, chromium() as browser:
        page = Path(temporary, "plan.html")
        for name, (graph, cluster, method) in PLANS.items():
            plan = lm.place(lm.read(f"example:{graph}"), cluster(), method)
            print(plan.summary())
            write_report(plan, page)
            for screen, width in WIDTHS.items():
                resize(browser, width, 1000)
                opened(browser, page)
                height = browser.execute_script("return document.documentElement.scrollHeight")
                resize(browser, width, min(height, TALLEST[screen]))
                time.sleep(1)
                saved(browser, folder / f"{name}-{screen}.png")


def resize(browser: Any, width: int, height: int) -> None:
    """Makes the page so many pixels large; a narrow one is that of a phone."""
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.execute_cdp_cmd("Emulation.setScrollbarsHidden", {"hidden": True})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ops", type=int, default=50_000)
    parser.add_argument("--pictures", type=Path, metavar="FOLDER")
    parser.add_argument("--pages", type=Path, metavar="FOLDER")
    arguments = parser.parse_args()
    if arguments.pictures:
        pictures(arguments.pictures)
    elif arguments.pages:
        pages(arguments.pages)
    else:
        figures(arguments.ops)
