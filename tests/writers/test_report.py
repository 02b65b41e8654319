"""The report: one file that holds what the simulator saw, and shows it in a real browser."""

from __future__ import annotations

import base64
import gzip
import json
import re
import sys

import numpy as np
import pytest
from accessible import BROKEN, NAMELESS, PALE, TOO_WIDE
from browser import chromium
from pictured import gathered, hand_made, layered, measured, planned, with_devices

import loadmaster as lm
from loadmaster.base.errors import InputError, MissingExtraError
from loadmaster.base.units import format_bytes, format_seconds
from loadmaster.cli import main
from loadmaster.plans.considered import considered
from loadmaster.writers.report import chain as causes
from loadmaster.writers.report import measures, modules, write_report
from loadmaster.writers.report.contents import WAITS
from loadmaster.writers.report.verdict import facts

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
        "large": planned(layered(20_000), "8xA100-NVLink", "celeritas"),
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
    waits = [(WAITS[w], c) for w, c in zip(ops["waited"], ops["cause"], strict=True)]
    assert waits[number["b0"]] == waits[number["b1"]] == ("message", 1)
    assert waits[number["y"]] == ("message", 0)
    waits = [(WAITS[w], c) for w, c in zip(messages["waited"], messages["cause"], strict=True)]
    assert waits == [("op", number["x"]), ("op", number["a1"])]
    chain = list(zip(page["chain"]["op"], page["chain"]["message"], strict=True))
    assert chain == [(number["a1"], -1), (-1, 1), (-1, 0), (number["y"], -1)]
    assert page["chain"]["waited"] == ["nothing", "op", "collective", "transfer"]
    assert page["chain"]["rows"] == [[1], [2, 3], [2], [1]]
    assert "1 collective" in dict(facts(plan))["moved"]
    assert [(part.kind, part.where, part.seconds) for part in causes.parts(plan)] == [
        ("all_reduce", "gpu0, gpu1", pytest.approx(0.003)),
        ("ops", "gpu1", pytest.approx(0.003)),
        ("transfer", "gpu0 to gpu1", pytest.approx(0.002)),
    ]


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
    rows = {bar.name: bar for bar in measures.quality(whole, seen)}
    assert rows["heft"].mark == rows["this plan (heft)"].mark == whole.lower_bound
    assert rows["data-parallel"].mark == split.lower_bound
    assert rows["one device"].mark is None
    assert rows["heft"].words.startswith(
        f"{format_seconds(whole.makespan)}; at most {whole.gap:.1%}"
    )
    assert "by split ops" in rows["data-parallel"].words
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


@pytest.mark.parametrize("name", ["by hand", "inception", "large", "names", "gathered"])
def test_the_chain_is_told_in_parts_longest_first(plans, name):
    plan = plans[name]
    found, links = causes.parts(plan), plan.schedule.blame[::-1]
    assert sorted(k for part in found for k in part.links) == list(range(len(links)))
    for part in found:
        lengths = [links[k].finish - links[k].start for k in part.links]
        assert lengths == sorted(lengths, reverse=True)
        assert part.seconds == pytest.approx(sum(lengths))
    assert sum(part.seconds for part in found) == pytest.approx(plan.makespan)
    seconds = [part.seconds for part in found[:-1]]
    assert seconds == sorted(seconds, reverse=True)
    assert all(s >= causes.LITTLE * plan.makespan for s in seconds)
    assert len(found) <= causes.MOST + 1 / causes.LITTLE


@pytest.mark.parametrize("name", ["by hand", "inception", "large", "names", "gathered"])
def test_the_modules_lose_no_op_no_time_and_no_bytes(plans, name):
    plan = plans[name]
    tree, op_of = modules.tree(plan), plan.problem.reduced.op_of
    assert tree.ops.sum() == len(op_of)
    assert all(parent < i for i, parent in enumerate(tree.parent))
    children = np.bincount(np.add(tree.parent, 1))
    assert children.max() <= modules.MAX_CHILDREN + 1
    assert not tree.ops[[i for i, n in enumerate(children[1:]) if n]].any()
    busy = np.zeros(plan.cluster.n_devices)
    np.add.at(busy, tree.busy[1], tree.busy[2])
    np.testing.assert_allclose(busy, plan.schedule.device_busy)
    assert np.all(tree.start <= tree.finish)
    assert tree.finish.max() == pytest.approx(plan.schedule.finish.max())
    src, dst, sent, moved = tree.sent
    assert np.all(src != dst)
    assert np.all(moved <= sent)


def test_modules_send_each_tensor_once():
    """x (10 bytes) is read twice in b, which is elsewhere, and once in c, which is not."""
    ops = {
        "name": ["x", "b0", "b1", "c"],
        "module": ["a", "b", "b", "c"],
        "output_bytes": [10, 0, 0, 0],
        "time": {"*": [1e-3] * 4},
    }
    edges = {"src": [0, 0, 0], "dst": [1, 2, 3], "bytes": [10] * 3}
    graph = lm.OpGraph(ops, edges)
    cluster = lm.Cluster.mesh(2, memory=1000, bandwidth=1e6, latency=0)
    plan = with_devices(lm.place(graph, cluster, "single"), np.array([0, 1, 1, 0]))
    tree = modules.tree(plan)
    number = {name: i for i, name in enumerate(tree.name)}
    rows = set(zip(*(column.tolist() for column in tree.sent), strict=True))
    assert rows == {(number["a"], number["b"], 10, 10), (number["a"], number["c"], 10, 0)}


def test_devices_that_compute_nothing_are_folded(tmp_path):
    plan = planned("lenet", "8xA100-NVLink", "single")
    plan.report(tmp_path / "plan.html")
    text, page = (tmp_path / "plan.html").read_text(), contents(tmp_path / "plan.html")
    [used] = np.flatnonzero(plan.schedule.device_busy).tolist()
    assert [lane["name"] for lane in page["lanes"]] == [plan.cluster.devices[used].name]
    assert set(page["ops"]["row"]) == {0}
    assert "<summary>7 idle devices</summary>" in text
    rows, left = measures.utilisation(plan)
    assert [bar.name for bar in rows] == [plan.cluster.devices[used].name]
    assert left.startswith("7 devices are idle")


def test_the_verdict_comes_before_the_picture(plans, tmp_path):
    plan = plans["inception"]
    plan.report(tmp_path / "plan.html")
    text = (tmp_path / "plan.html").read_text()
    before, _, after = text.partition('<div id="timeline"')
    for words in ("per step", plan.bound_source, "not considered", "replicas, shards, pipelines"):
        assert words in before, words
    assert "loadmaster calibrate" in before
    assert 'id="chain"' in after
    plans["by hand"].report(tmp_path / "given.html")
    assert "loadmaster calibrate" not in (tmp_path / "given.html").read_text()


def test_the_verdict_has_the_best_of_each_kind(tmp_path):
    plan = planned("lenet", "2xV100-NVLink", "auto", costs="roofline")
    plan.report(tmp_path / "plan.html")
    said = dict(facts(plan))
    others = [row for row in considered(plan) if not row.is_plan and row.kind != "one device"]
    assert others
    for row in others:
        assert said[f"best {row.kind}"].startswith(format_seconds(row.seconds))
    assert ("recipe" in said) == (plan.recipe is not None)


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
    names = re.findall(r'<th scope="row">([^<]*)</th>', page.read_text())
    assert names[2:4] == ["heft", "single"]
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
    def explained(self):
        """What the explanation says, by name."""
        names, words = (self.find(f"#details {tag}") for tag in ("dt", "dd"))
        return {name.text: word.text for name, word in zip(names, words, strict=True)}

    @property
    def link(self):
        """The number of the explained link of the chain, from 1 on; 0: none."""
        found = re.match(r"link (\d+) of", self.explained.get("on the chain", ""))
        return int(found[1]) if found else 0

    def keys(self, css, *keys):
        for key in keys:
            self.find(css)[0].send_keys(key)

    def settle(self, holds):
        """Waits for the page to come to something."""
        from selenium.webdriver.support.ui import WebDriverWait

        WebDriverWait(self.browser, 60, 0.05).until(lambda _: holds())


def test_facts_are_there_without_a_network(show, plans, comparison):
    plan = plans["inception"]
    page = show(plan, comparison)
    assert page.ask("return performance.getEntriesByType('resource').length") == 0
    facts = page.find("#verdict")[0].text
    for fact in (format_seconds(plan.makespan), plan.bound_source, f"{plan.gap:.1%}"):
        assert fact in facts
    body = page.find("body")[0].text
    fitting = [name for name, other in comparison.plans.items() if other.fits]
    assert all(name in body for name in ["this plan (celeritas)", *fitting, *comparison.failures])
    assert page.find("#timeline svg.main-svg")
    assert page.find("#graph svg path")
    assert page.find("#verdict")[0].rect["x"] < page.find("#timeline")[0].rect["x"]
    assert page.find("#verdict")[0].rect["y"] < page.find("#timeline")[0].rect["y"]


def test_what_is_too_small_to_see_is_merged_and_zooming_shows_it(show, plans):
    from selenium.webdriver.common.action_chains import ActionChains

    plan = plans["large"]
    page = show(plan)
    merged, single = page.trace("merged"), page.trace("single")
    assert len(merged["z"]) >= np.count_nonzero(plan.schedule.device_busy) > 1
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
    page.click("[data-step=last]")
    page.settle(lambda: page.link == len(chain))
    assert page.explained["op"] == names[chain[-1].op]
    page.click("[data-step=first]")
    page.settle(lambda: page.link == 1)
    for k in range(1, 4):
        page.click("[data-step=on]")
        page.settle(lambda k=k: page.link == k + 1)
        link = chain[k]
        page.settle(lambda link=link: page.chosen[:2] == pytest.approx((link.start, link.finish)))
        assert page.range[0] <= link.start <= link.finish <= page.range[1]
        if link.op is not None:
            assert page.explained["op"] == names[link.op]
            assert page.chosen[2] == plan.devices[link.op]
    page.click("#long")
    page.click("[data-step=last]")
    long = [k for k, link in enumerate(chain) if link.finish - link.start >= 0.01 * plan.makespan]
    page.settle(lambda: page.link == long[-1] + 1)
    page.click("[data-step=back]")
    page.settle(lambda: page.link == long[-2] + 1)


def test_a_part_of_the_chain_opens_and_its_links_are_explained_there(show, plans):
    plan = plans["inception"]
    page, found = show(plan), causes.parts(plan)
    page.click("#chain [data-part='0']")
    rows = page.find("#chain tr.link-row[data-link]")
    shown = [int(row.get_attribute("data-link")) for row in rows]
    assert shown == list(found[0].links[: len(shown)])
    page.click("#chain tr.link-row .link", 1)
    page.settle(lambda: page.link == shown[1] + 1)
    below, link = page.find("#details")[0].rect, page.find("#chain tr.link-row .link")[1].rect
    assert 0 < below["y"] - link["y"] < 100
    page.click("#chain [data-part='0']")
    assert page.find("#chain tr.link-row") == []
    assert not page.find("#details")[0].is_displayed()


def test_an_op_is_found_by_keyboard_and_explained_at_its_bar(show, plans):
    from selenium.webdriver.common.keys import Keys

    plan = plans["inception"]
    page = show(plan)
    page.keys("#find", "CONVOLUTION_4")
    names = [row.text.split()[0] for row in page.find("#found li")]
    assert names[0] == "convolution_4"
    assert all("convolution_4" in name for name in names)
    page.keys("#find", Keys.ARROW_DOWN, Keys.ENTER)
    op = plan.graph.index(names[1])
    times = float(plan.schedule.start[op]), float(plan.schedule.finish[op])
    page.settle(lambda: page.explained.get("op") == names[1])
    page.settle(lambda: page.chosen[:2] == pytest.approx(times))
    panel, mark = page.ask(
        "const box = ({x, y, width, height}) => [x, y, width, height];"
        "return ['#details', '#timeline .shapelayer path[data-index=\"1\"]'].map("
        "(css) => box(document.querySelector(css).getBoundingClientRect()))"
    )
    assert -2 < panel[1] - (mark[1] + mark[3]) < 20
    assert panel[0] <= mark[0] + mark[2]
    assert panel[0] + panel[2] >= mark[0]
    page.keys("#find", Keys.ESCAPE)
    assert not page.find("#details")[0].is_displayed()


def test_arrows_go_from_bar_to_bar_and_keys_zoom(show, plans):
    from selenium.webdriver.common.keys import Keys

    plan = plans["by hand"]
    page = show(plan)
    seen = []
    for key in (Keys.ARROW_RIGHT, Keys.ARROW_DOWN, Keys.ARROW_RIGHT):
        page.keys("#timeline", key)
        page.settle(lambda: page.find("#details dd") and page.explained.get("op") not in seen)
        seen.append(page.explained["op"])
    assert seen == ["a", "b", "c"]
    whole = page.range[1] - page.range[0]
    page.keys("#timeline", "+")
    page.settle(lambda: page.range[1] - page.range[0] < 0.6 * whole)
    page.keys("#timeline", "0")
    page.settle(lambda: page.range == pytest.approx([0, plan.makespan]))


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
    reason, cause = plan.schedule.waited(int(plan.problem.reduced.map[plan.graph.index("b")]))
    assert reason == "transfer"
    sent = plan.schedule.transfers
    assert page.explained["it waited for"] == "transfer of a"
    page.click("#details button.link")
    page.settle(lambda: page.chosen[0] == pytest.approx(float(sent.start[cause])))
    assert "transfer of" in page.find("#details dt")[0].text


def test_a_collective_says_what_it_is_and_what_it_waited_for(show, plans):
    page = show(plans["gathered"])
    label = "all_reduce of 3.91 KiB on 2 devices (ring)"
    single = page.trace("single")
    said = [text for text in single["hovertext"] if text.startswith(label)]
    assert said == [f"{label}<br>gpu0, gpu1, 3 ms from 2 ms"] * 2
    page.click("[data-step=first]")
    page.click("[data-step=on]")
    page.settle(lambda: page.link == 2)
    page.settle(lambda: page.chosen[:2] == pytest.approx((0.002, 0.005)))
    said = page.explained
    assert (said["collective"], said["where"], said["members"]) == (label, "gpu0, gpu1", "m0, m1")
    assert said["on the chain"] == "link 2 of 4; it waited for its input from a1"
    page.click("#details button.link")
    page.settle(lambda: page.explained.get("op") == "a1")
    page.click("[data-step=last]")
    page.click("[data-step=back]")
    page.settle(lambda: page.link == 3)
    assert page.explained["on the chain"].endswith(f"its channel, busy with {label}")


@pytest.mark.parametrize(("name", "sees_capacity"), [("inception", True), ("large", False)])
def test_memory_is_drawn_against_capacity(show, plans, name, sees_capacity):
    plan = plans[name]
    page = show(plan)
    traces = page.ask(
        "return document.getElementById('timeline').data.filter(t => t.yaxis === 'y2')"
        ".map(t => Math.max(...t.y))"
    )
    peaks = 100 * plan.memory.peak / plan.memory.capacity
    assert traces == pytest.approx(peaks[peaks > 0].tolist(), rel=1e-6)
    # Curves that are far below the capacity do not lie flat on the axis.
    low, high = page.ask("return document.getElementById('timeline').layout.yaxis2.range")
    assert low == 0
    assert peaks.max() <= high <= max(105.1, 1.3 * peaks.max())
    assert (high > 100) == sees_capacity == (peaks.max() > 20)


def test_modules_open_and_lead_to_their_time(show, plans):
    plan = plans["inception"]
    page = show(plan)
    tree = modules.tree(plan)
    shown = [int(row.get_attribute("data-node")) for row in page.find(".module")]
    closed = next(
        row
        for row, i in enumerate(shown)
        if i in tree.parent
        and page.find(".module > button")[row].get_attribute("aria-expanded") == "false"
    )
    children = [i for i, parent in enumerate(tree.parent) if parent == shown[closed]]
    page.click(".module > button", closed)
    now = [int(row.get_attribute("data-node")) for row in page.find(".module")]
    assert now == [*shown[: closed + 1], *children, *shown[closed + 1 :]]
    ends = {tuple(p.get_attribute("data-ends").split()) for p in page.find("#graph path")}
    assert ends
    assert all(int(row) < len(now) for pair in ends for row in pair)
    page.click(".module .link")
    time = float(tree.start[shown[closed]]), float(tree.finish[shown[closed]])
    page.settle(lambda: page.range == pytest.approx(time))


def test_names_are_text_whatever_they_look_like(show, plans):
    page = show(plans["names"])
    assert page.browser.title == "<u>named</u> on 4xV100-PCIe"
    page.click("[data-step=last]")
    page.settle(lambda: page.explained.get("op") == "c&amp;")
    for part in range(len(page.find("#chain [data-part]"))):
        page.click(f"#chain [data-part='{part}']")
    cells = [row.text for row in page.find("#chain tbody tr")]
    assert any("<img src=x" in cell for cell in cells)
    assert any("</script><b>bold</b>" in cell for cell in cells)
    page.keys("#find", "b>")
    assert "<b>bold</b>" in page.find("#found")[0].text
    assert page.find("b b, td b, li b, dd b") == page.find("#timeline img") == []


@pytest.fixture
def phone(browser):
    """The browser's page as wide as a phone."""
    size = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    yield
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_a_phone_shows_all_of_it(phone, show, plans, comparison):
    split = planned("lenet", "8xA100-NVLink", "fsdp")
    for plan, beside in ((plans["inception"], comparison), (split, None)):
        page = show(plan, beside)
        page.ask("document.querySelectorAll('details').forEach(e => e.open = true)")
        page.ask("document.querySelector('#chain [data-part]').click()")
        page.ask("document.querySelector('#chain .link').click()")
        page.settle(lambda page=page: page.link)
        assert page.ask(TOO_WIDE) == []
        assert page.ask(BROKEN) == []
        assert page.ask(PALE) == []
        page.ask("document.querySelector('[data-step=last]').click()")
        page.settle(lambda page=page: page.find("#stage #details"))
        box = page.find("#details")[0].rect
        assert (box["x"], box["width"]) == (0, 390)
        assert page.find("#timeline .nsewdrag")[0].rect["width"] > 250


def test_words_are_dark_and_what_does_something_takes_the_keyboard(show, plans, comparison):
    page = show(plans["inception"], comparison)
    page.ask("document.querySelectorAll('details').forEach(e => e.open = true)")
    page.click("[data-step=last]")
    page.keys("#find", "conv")
    assert page.ask(PALE) == []
    bars = page.trace("single")
    inks = zip(bars["marker"]["color"], bars["insidetextfont"]["color"], strict=True)
    assert all(contrast(bar, ink) >= 4.5 for bar, ink in inks)
    assert page.ask(NAMELESS) == []


def contrast(one, other):
    """By WCAG 2, of two colours such as ``#2f6db3`` or ``#fff``."""

    def light(colour):
        digits = colour[1:] if len(colour) == 7 else "".join(2 * c for c in colour[1:])
        parts = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((light(one), light(other)))
    return (high + 0.05) / (low + 0.05)
