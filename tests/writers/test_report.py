"""The report: one file that holds what the simulator saw, and shows it in a real browser."""

from __future__ import annotations

import base64
import gzip
import json
import re
import sys

import numpy as np
import pytest
from browser import chromium
from pictured import gathered, hand_made, layered, measured, planned

import loadmaster as lm
from loadmaster.base.errors import InputError, MissingExtraError
from loadmaster.base.units import format_bytes, format_seconds
from loadmaster.cli import main
from loadmaster.writers.report import write_report
from loadmaster.writers.report.contents import WAITS, facts
from loadmaster.writers.report.figures import figures, quality

TYPES = {"f8": "<f8", "f4": "<f4", "i4": "<i4", "u1": "u1"}


@pytest.fixture(scope="module")
def plans():
    named = lm.OpGraph(
        {
            "name": [
                "<img src=x onerror=\"document.title='run'\">",
                "</script><b>bold</b>",
                "c&amp;",
            ],
            "kind": ["<i>", "mm", "mm"],
            "time": {"*": [1e-3, 2e-3, 1e-3]},
        },
        {"src": [0, 1], "dst": [1, 2], "bytes": [10, 10]},
        name="<u>named</u>",
    )
    return {
        "by hand": hand_made(),
        "inception": planned("inception-v3", method="celeritas"),
        "large": planned(layered(50_000), "8xA100-NVLink", "celeritas"),
        "names": planned(named, method="single"),
        "gathered": gathered(),
    }


@pytest.fixture(scope="module")
def comparison(plans):
    plan = plans["inception"]
    return lm.compare(plan.graph, plan.cluster, ["single", "heft", "m-etf"])


# ---- the file ---------------------------------------------------------------------------------


def contents(path):
    """The page's JSON document, with its columns in place of their positions."""
    text = re.search(r'id="data">([^<]*)<', path.read_text())[1]
    data = gzip.decompress(base64.b64decode(text))
    end = 8 + int.from_bytes(data[:8], "little")

    def unpacked(value):
        if isinstance(value, list) and len(value) == 3 and str(value[0]) in TYPES:
            return np.frombuffer(data, TYPES[value[0]], value[2], end + value[1])
        if isinstance(value, dict) and set(value) == {"words", "of"}:
            return [value["words"][i] for i in unpacked(value["of"])]
        if isinstance(value, dict):
            return {k: unpacked(v) for k, v in value.items()}
        return [unpacked(v) for v in value] if isinstance(value, list) else value

    return unpacked(json.loads(data[8:end]))


@pytest.mark.parametrize("name", ["by hand", "inception", "large", "names"])
def test_the_page_holds_what_the_simulator_saw(plans, tmp_path, name):
    plan = plans[name]
    plan.report(tmp_path / "plan.html")
    page = contents(tmp_path / "plan.html")
    op_of, schedule = plan.problem.reduced.op_of, plan.schedule
    assert page["ops"]["name"] == [plan.graph.names[op] for op in op_of]
    np.testing.assert_array_equal(page["ops"]["start"], schedule.start[op_of])
    np.testing.assert_array_equal(page["ops"]["finish"], schedule.finish[op_of])
    np.testing.assert_array_equal(page["messages"]["finish"], schedule.transfers.finish)
    chain = [None if op < 0 else int(op_of[op]) for op in page["chain"]["op"]]
    assert chain == [link.op for link in reversed(schedule.blame)]
    for lane in page["lanes"]:
        table = page["ops" if lane["device"] else "messages"]
        length = (table["finish"] - table["start"])[lane["what"]]
        names = [d.name for d in plan.cluster.devices] if lane["device"] else plan.cluster.channels
        busy = schedule.device_busy if lane["device"] else schedule.channel_busy
        assert length.sum() == pytest.approx(busy[list(names).index(lane["name"])])
    for device in page["memory"]:
        assert device["used"].max(initial=0) == pytest.approx(device["peak"])


def test_the_page_leads_from_what_waits_to_collectives(plans, tmp_path):
    plan = plans["gathered"]
    plan.report(tmp_path / "plan.html")
    page = contents(tmp_path / "plan.html")
    messages, ops = page["messages"], page["ops"]
    label = "all_reduce of 3.91 KiB on 2 devices (ring)"
    assert (page["transfers"], messages["name"]) == (1, ["x", label])
    assert messages["place"] == ["gpu0 to gpu1", "gpu0, gpu1"]
    assert messages["members"] == ["m0, m1"]
    assert messages["start"].tolist() == pytest.approx([0.005, 0.002])
    number = {name: i for i, name in enumerate(ops["name"])}
    causes = [(WAITS[w], c) for w, c in zip(ops["waited"], ops["cause"], strict=True)]
    assert causes[number["b0"]] == causes[number["b1"]] == ("message", 1)
    assert causes[number["y"]] == ("message", 0)
    causes = [(WAITS[w], c) for w, c in zip(messages["waited"], messages["cause"], strict=True)]
    assert causes == [("op", number["x"]), ("op", number["a1"])]
    chain = list(zip(page["chain"]["op"], page["chain"]["message"], strict=True))
    assert chain == [(number["a1"], -1), (-1, 1), (-1, 0), (number["y"], -1)]
    assert page["chain"]["waited"] == ["nothing", "op", "collective", "transfer"]
    assert page["chain"]["rows"] == [[1], [2, 3], [2], [1]]
    assert "1 collective" in dict(facts(plan))["moved"]
    bars = figures(plan, None)["reasons"]["data"]
    assert {(bar["name"], *bar["y"]) for bar in bars} == {
        ("gpu1", "ops"),
        ("gpu0, gpu1", "all_reduce"),
        ("gpu0 to gpu1", "transfer"),
    }


def test_the_page_of_a_plan_in_parts_says_whose_they_are(tmp_path):
    plan = planned("lenet", "2xV100-NVLink", "data-parallel")
    plan.report(tmp_path / "plan.html")
    ops = contents(tmp_path / "plan.html")["ops"]
    origin = dict(zip(ops["name"], ops["origin"], strict=True))
    assert origin["convolution@r1"] == "'convolution', replica 1"
    assert "no plan, with ops whole, replicated or split," in dict(facts(plan))["gap"]


def test_each_space_of_plans_has_its_own_bound_in_the_picture():
    graph, cluster = lm.read("example:lenet"), lm.Cluster.preset("2xV100-NVLink")
    seen = lm.compare(graph, cluster, ["heft", "data-parallel"])
    whole, split = seen.plans["heft"], seen.plans["data-parallel"]
    assert split.lower_bound < whole.lower_bound
    lines = quality(whole, seen)["layout"]
    assert {one["x0"] for one in lines["shapes"]} == {whole.lower_bound, split.lower_bound}
    said = {one["text"].partition(" of ")[2].rpartition(" ")[0] for one in lines["annotations"]}
    assert {text.rpartition(" ")[0] for text in said} == {"whole ops", "split ops"}
    assert len(quality(whole, None)["layout"]["shapes"]) == 1
    between = whole.diff(split)
    assert f"of whole ops -> {format_seconds(split.lower_bound)} of split ops" in str(between)


def test_the_page_of_a_measured_step_has_a_chain_as_well(plans, tmp_path):
    plan = measured(plans["by hand"])
    plan.report(tmp_path / "plan.html")
    plans["by hand"].report(tmp_path / "simulated.html")
    page, simulated = (contents(tmp_path / f"{name}.html") for name in ("plan", "simulated"))
    assert list(page["chain"]["op"]) == list(simulated["chain"]["op"])
    assert list(page["chain"]["message"]) == list(simulated["chain"]["message"])


def test_nothing_is_asked_of_a_network(plans, tmp_path):
    """Plotly's own script aside, which names addresses only in what maps and clouds would use."""
    from plotly.offline import get_plotlyjs

    path = tmp_path / "plan.html"
    write_report(plans["inception"], path)
    own = path.read_text().replace(get_plotlyjs(), "")
    assert not re.search(r"https?:|src=|href=|@import|url\(", own)


def test_the_same_plan_gives_the_same_bytes(plans, comparison, tmp_path):
    for name in ("one", "two"):
        plans["inception"].report(tmp_path / name, comparison=comparison)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


@pytest.mark.parametrize("name", ["by hand", "inception", "names", "gathered"])
def test_plotly_knows_all_that_is_asked_of_it(plans, comparison, name):
    objects = pytest.importorskip("plotly.graph_objects")
    for figure in figures(plans[name], comparison).values():
        objects.Figure(figure)


def test_the_coarse_graph_loses_no_time(plans):
    plan = plans["inception"]
    *_, nodes = figures(plan, None)["graph"]["data"]
    assert len(nodes["x"]) == len(nodes["y"]) == len(nodes["customdata"])
    ops = [int(re.match(r"\d+", text)[0]) for text in nodes["text"]]
    assert sum(ops) == plan.problem.graph.n_ops
    assert max(end for _, end in nodes["customdata"]) == pytest.approx(plan.makespan)


def test_a_plan_that_does_not_fit_says_where_and_by_how_much():
    plan = planned("inception-v3", "2xV100-NVLink", "celeritas")
    said = dict(facts(plan))["memory"]
    first = plan.memory.overflow
    for device, peak in zip(plan.cluster.devices, plan.memory.peak.tolist(), strict=True):
        assert f"{device.name} by {format_bytes(peak - device.memory)}" in said
    assert f"first on {plan.cluster.devices[first.device].name} at" in said
    assert said in plan.summary()


def test_without_plotly_the_error_names_the_extra(plans, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    with pytest.raises(MissingExtraError, match=r"loadmaster\[report\]"):
        plans["by hand"].report(tmp_path / "plan.html")
    assert list(tmp_path.iterdir()) == []


def test_a_page_that_cannot_be_written_is_named(plans, tmp_path):
    with pytest.raises(InputError, match="cannot write"):
        plans["by hand"].report(tmp_path / "none" / "plan.html")


def test_from_the_command_line(plans, tmp_path, capsys):
    plans["by hand"].save(tmp_path / "plan.json")
    page = tmp_path / "plan.html"
    arguments = [str(tmp_path / "plan.json"), "-o", str(page), "--compare", "single,heft"]
    assert main(["report", *arguments]) == 0
    assert capsys.readouterr().err.splitlines()[-1] == f"loadmaster: report written to {page}"
    assert contents(page)["figures"]["quality"]["data"][0]["y"][2:] == ["heft", "single"]
    assert main(["report", str(tmp_path / "plan.json"), "--compare", "nonesuch"]) == 2
    assert "nonesuch" in capsys.readouterr().err


# ---- the browser ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser():
    with chromium() as driving:
        yield driving


@pytest.fixture
def show(browser, tmp_path):
    """Opens a plan's report and waits until all is drawn."""
    from selenium.webdriver.support.ui import WebDriverWait

    def show(plan, comparison=None):
        plan.report(tmp_path / "plan.html", comparison=comparison)
        browser.get((tmp_path / "plan.html").as_uri())
        drawn = "return document.body.dataset.drawn === 'all'"
        WebDriverWait(browser, 120, 0.05).until(lambda b: b.execute_script(drawn))
        return Page(browser)

    yield show
    errors = [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
    assert errors == []


class Page:
    """An open report."""

    def __init__(self, browser):
        self.browser = browser

    def ask(self, script, *arguments):
        return self.browser.execute_script(script, *arguments)

    def find(self, css):
        return self.browser.find_elements("css selector", css)

    def click(self, css, which=0):
        self.ask("arguments[0].scrollIntoView({block: 'center'})", self.find(css)[which])
        self.find(css)[which].click()

    def trace(self, name):
        """What Plotly was given under a name; arrays as lists."""
        return self.ask(
            "const t = document.getElementById('timeline').data.find(t => t.name === arguments[0]);"
            "return JSON.parse(JSON.stringify(t, (k, v) => ArrayBuffer.isView(v) ? [...v] : v))",
            name,
        )

    @property
    def range(self):
        return self.ask("return document.getElementById('timeline').layout.xaxis.range")

    @property
    def chosen(self):
        """Start, finish and row of the marked item."""
        script = "return document.getElementById('timeline').layout.shapes"
        shape = next(s for s in self.ask(script) if s.get("name") == "chosen")
        return shape["x0"], shape["x1"], (shape["y0"] + shape["y1"]) / 2

    @property
    def here(self):
        """The cells of the chain's row that is marked."""
        [row] = self.find("#chain tr.here")
        return [cell.text for cell in row.find_elements("css selector", "td")]

    def settle(self, holds):
        """Waits for the page to come to something."""
        from selenium.webdriver.support.ui import WebDriverWait

        WebDriverWait(self.browser, 60, 0.05).until(lambda _: holds())


def test_facts_are_there_without_a_network(show, plans, comparison):
    plan = plans["inception"]
    page = show(plan, comparison)
    assert page.ask("return performance.getEntriesByType('resource').length") == 0
    facts = page.find("header dl")[0].text
    for fact in (format_seconds(plan.makespan), plan.bound_source, plan.method, f"{plan.gap:.1%}"):
        assert fact in facts
    drawn = page.find("#quality")[0].text
    fitting = [name for name, other in comparison.plans.items() if other.fits]
    assert all(name in drawn for name in ["this plan (celeritas)", *fitting])
    assert all(method in page.find("body")[0].text for method in comparison.failures)
    for figure in ("#timeline", "#utilisation", "#reasons", "#graph", "#provenance"):
        assert page.find(f"{figure} svg.main-svg"), figure
    assert "roofline" in page.find("#provenance")[0].text


def test_what_is_too_small_to_see_is_merged_and_zooming_shows_it(show, plans):
    from selenium.webdriver.common.action_chains import ActionChains

    plan = plans["large"]
    page = show(plan)
    merged, single = page.trace("merged"), page.trace("single")
    devices = plan.cluster.n_devices
    assert len(merged["z"]) >= devices
    assert len(single["x"]) < 1000 < sum(v is not None for row in merged["z"] for v in row)
    assert re.search(r"\d+ columns of shorter ones merged", page.find("#sight")[0].text)
    # A person drags over a tenth of the time.
    area = page.find("#timeline .nsewdrag")[0]
    page.ask("arguments[0].scrollIntoView({block: 'center'})", area)
    width = area.size["width"]
    drag = ActionChains(page.browser).move_to_element_with_offset(area, -width // 20, -20)
    drag.click_and_hold().move_by_offset(width // 20, 1).move_by_offset(width // 20, 1)
    drag.release().perform()
    page.settle(lambda: page.range[1] - page.range[0] < 0.2 * plan.makespan)
    # Then into a window of about thirty ops of the busiest device.
    device = int(plan.schedule.device_busy.argmax())
    op_of, schedule = plan.problem.reduced.op_of, plan.schedule
    here = op_of[schedule.devices[op_of] == device]
    here = here[np.argsort(schedule.start[here])]
    middle = len(here) // 2
    window = [float(schedule.start[here[middle]]), float(schedule.finish[here[middle + 30]])]
    page.ask("Plotly.relayout('timeline', {'xaxis.range': arguments[0]})", window)
    page.settle(lambda: page.trace("single")["x"])
    seconds = schedule.finish[here] - schedule.start[here]
    inside = (schedule.finish[here] > window[0]) & (schedule.start[here] < window[1])
    wide = here[inside & (seconds >= 4 * (window[1] - window[0]) / 900)]
    shown = [
        said.split("<br>")[0]
        for said, row in zip(*(page.trace("single")[k] for k in ("hovertext", "y")), strict=True)
        if row == device
    ]
    assert len(wide) > 10
    assert shown == [plan.graph.names[op] for op in wide]
    # And all of it again.
    page.ask("Plotly.relayout('timeline', {'xaxis.autorange': true})")
    page.settle(lambda: page.range == pytest.approx([0, plan.makespan]))


def test_the_chain_is_a_path_to_click_through(show, plans):
    plan = plans["inception"]
    page = show(plan)
    chain, names = plan.schedule.blame[::-1], plan.graph.names
    assert page.here[0] == str(len(chain))
    assert page.here[1] == names[chain[-1].op]
    page.click("[data-step=first]")
    page.settle(lambda: page.here[0] == "1")
    for k in range(1, 4):
        page.click("[data-step=on]")
        page.settle(lambda k=k: page.here[0] == str(k + 1))
        link = chain[k]
        page.settle(lambda link=link: page.chosen[:2] == pytest.approx((link.start, link.finish)))
        assert page.range[0] <= link.start <= link.finish <= page.range[1]
        if link.op is not None:
            assert page.here[1] == names[link.op]
            assert page.chosen[2] == plan.devices[link.op]
    page.click("#chain tbody tr", 7)
    page.settle(lambda: page.here[0] == "8")
    page.click("#long")
    page.click("[data-step=last]")
    long = [k for k, link in enumerate(chain) if link.finish - link.start >= 0.01 * plan.makespan]
    page.settle(lambda: page.here[0] == str(long[-1] + 1))
    page.click("[data-step=back]")
    page.settle(lambda: page.here[0] == str(long[-2] + 1))


def test_a_bar_says_what_it_waited_for_and_leads_there(show, plans):
    plan = plans["by hand"]
    page = show(plan)
    bars = [said.split("<br>")[0] for said in page.trace("single")["hovertext"]]
    assert {"a", "b", "c", "transfer of a", "transfer of p"} <= set(bars)
    page.ask("arguments[0].scrollIntoView({block: 'center'})", page.find("#timeline")[0])
    points = page.find("#timeline .barlayer .point")
    from selenium.webdriver.common.action_chains import ActionChains

    ActionChains(page.browser).move_to_element(points[bars.index("b")]).click().perform()
    page.settle(lambda: "b" in page.find("#details dd")[0].text)
    said = page.find("#details")[0].text
    reason, cause = plan.schedule.waited(int(plan.problem.reduced.map[plan.graph.index("b")]))
    assert reason == "transfer"
    sent = plan.schedule.transfers
    assert "it waited for" in said
    page.click("#details button")
    page.settle(lambda: page.chosen[0] == pytest.approx(float(sent.start[cause])))
    assert "transfer of" in page.find("#details dt")[0].text


def test_a_collective_says_what_it_is_and_what_it_waited_for(show, plans):
    page = show(plans["gathered"])
    label = "all_reduce of 3.91 KiB on 2 devices (ring)"
    single = page.trace("single")
    said = [text for text in single["hovertext"] if text.startswith(label)]
    assert said == [f"{label}<br>gpu0, gpu1, 3 ms from 2 ms"] * 2
    page.click("#chain tbody tr", 1)
    page.settle(lambda: page.here[0] == "2")
    assert page.here[1:3] == [label, "gpu0, gpu1"]
    assert page.here[5] == "its input from a1"
    page.settle(lambda: page.chosen[:2] == pytest.approx((0.002, 0.005)))
    details = page.find("#details")[0].text.split("\n")
    assert details[:2] == ["collective", label]
    assert details[details.index("members") + 1] == "m0, m1"
    page.click("#details button")
    page.settle(lambda: page.here[1] == "a1")
    page.click("[data-step=last]")
    page.click("[data-step=back]")
    page.settle(lambda: page.here[0] == "3")
    assert page.here[5] == f"its channel, busy with {label}"


@pytest.mark.parametrize(("name", "sees_capacity"), [("inception", True), ("large", False)])
def test_memory_is_drawn_against_capacity(show, plans, name, sees_capacity):
    plan = plans[name]
    page = show(plan)
    traces = page.ask(
        "return document.getElementById('timeline').data.filter(t => t.yaxis === 'y2')"
        ".map(t => Math.max(...t.y))"
    )
    peaks = 100 * plan.memory.peak / plan.memory.capacity
    assert traces == pytest.approx(peaks.tolist(), rel=1e-6)
    # Curves that are far below the capacity do not lie flat on the axis.
    low, high = page.ask("return document.getElementById('timeline').layout.yaxis2.range")
    assert low == 0
    assert peaks.max() <= high <= max(105.1, 1.3 * peaks.max())
    assert (high > 100) == sees_capacity == (peaks.max() > 20)


def test_a_group_of_the_graph_leads_to_its_time(show, plans):
    plan = plans["inception"]
    page = show(plan)
    span = page.ask(
        "const graph = document.getElementById('graph'), point = {customdata: "
        "graph.data.at(-1).customdata[0]};"
        "graph.emit('plotly_click', {points: [point]}); return point.customdata"
    )
    page.settle(lambda: page.range[1] - page.range[0] < plan.makespan * 0.999)
    assert page.range == pytest.approx(span)


def test_names_are_text_whatever_they_look_like(show, plans):
    page = show(plans["names"])
    assert page.browser.title == "<u>named</u> on 4xV100-PCIe"
    assert page.here[1] == "c&amp;"
    cells = [row.text for row in page.find("#chain tbody tr")]
    assert any("<img src=x" in cell for cell in cells)
    assert any("</script><b>bold</b>" in cell for cell in cells)
    assert page.find("b") == page.find("#timeline img") == []
