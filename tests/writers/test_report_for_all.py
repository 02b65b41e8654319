"""The report in a real browser, wide and on a phone: it fits, can be read, and needs no mouse."""

from __future__ import annotations

from functools import cache

import pytest
from accessible import BROKEN, FAINT, FOCUSED, MOVING, NAMELESS, PALE, REACHABLE, TOO_WIDE
from browser import chromium
from pictured import layered, measured, planned

import loadmaster as lm
from loadmaster.writers.report.contents import COLOURS

WIDE, PHONE = (1300, 1000), (360, 740)

#: Unlike plans: what they are for, by name.
MADE = {
    "replicas of a CNN": lambda: planned("alexnet", "4xV100-PCIe", "data-parallel"),
    "shards of a transformer on a mesh of 2 x 2": lambda: lm.place(
        lm.read("example:gpt3-330m"), "4xV100-NVLink", target="megatron", tp=2, dp=2, pp=1
    ),
    "a pipeline with micro-batches": lambda: planned(
        "gpt3-330m", "4xV100-NVLink", "pipeline", stages=4, micro_batches=8, schedule="1f1b"
    ),
    "whole ops on unequal devices": lambda: planned(
        "rnnlm", lm.Cluster.new("1xA100,1xL4", link="pcie4"), "heft"
    ),
    "10,000 ops": lambda: planned(layered(10_000), "8xA100-NVLink", "celeritas"),
    "what does not fit": lambda: planned("inception-v3", "2xV100-NVLink", "celeritas"),
    "one op": lambda: planned(
        lm.OpGraph({"name": ["only"], "time": {"*": [1e-3]}}, {"src": [], "dst": [], "bytes": []}),
        method="single",
    ),
    "a measured run": lambda: measured(planned("lenet", "2xV100-NVLink", "heft")),
}


@pytest.fixture(scope="module")
def browser():
    with chromium() as driving:
        yield driving


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Gives reports as files, each made when it is first asked for."""
    folder = tmp_path_factory.mktemp("reports")

    @cache
    def made(name):
        path = folder / f"{list(MADE).index(name)}.html"
        MADE[name]().report(path)
        return path

    return made


#: Every plan on one of the screens, and then on the other.
ONE = [(name, (WIDE, PHONE)[at % 2]) for at, name in enumerate(MADE)]
BOTH = [*ONE, *((name, (PHONE, WIDE)[at % 2]) for at, name in enumerate(MADE))]


def screens(pairs):
    """A test of plans on screens."""
    ids = [f"{name}, {'wide' if size == WIDE else 'phone'}" for name, size in pairs]
    return pytest.mark.parametrize("opened", pairs, ids=ids, indirect=True, scope="module")


@pytest.fixture(scope="module")
def opened(request, browser, pages):
    """Opens the report of a plan on a screen, with less motion asked for. Whatever it complains
    about on its console while tests use it fails the last of them.
    """
    from selenium.webdriver.support.ui import WebDriverWait

    name, (width, height) = request.param
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    wanted = [{"name": "prefers-reduced-motion", "value": "reduce"}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": wanted})
    browser.get_log("browser")
    browser.get(pages(name).as_uri())
    drawn = "return document.body.dataset.drawn === 'all'"
    WebDriverWait(browser, 120, 0.05).until(lambda b: b.execute_script(drawn))
    yield browser
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    assert [e for e in browser.get_log("browser") if e["level"] in ("SEVERE", "WARNING")] == []


@pytest.fixture
def ask(opened):
    """Runs scripts in the page, in which nothing is explained and nothing has the focus."""
    opened.execute_script(
        "document.querySelector('#details .close')?.click(); document.activeElement.blur();"
        "document.querySelectorAll('#chain [aria-expanded=true]').forEach((e) => e.click());"
        "document.querySelectorAll('details').forEach((e) => { e.open = false; });"
        "document.getElementById('find').value = ''; scrollTo(0, 0)"
    )
    return opened.execute_script


#: Opens all that can be opened: folded rows, the longest part of the chain and a link of it, a
#: module, the list of ops found.
OPEN = """
document.querySelectorAll('details').forEach((e) => e.open = true);
document.querySelector('#chain [data-part]')?.click();
document.querySelector('#chain .link')?.click();
document.querySelector('.module > button[aria-expanded=false]')?.click();
$find.value = arguments[0];
$find.dispatchEvent(new Event('input'));
""".replace("$find", "document.getElementById('find')")


@screens(BOTH)
def test_all_of_it_fits_the_screen_and_can_be_read(ask):
    ask(OPEN, "o")
    amiss = {"too wide": TOO_WIDE, "pale": PALE, "faint": FAINT, "nameless": NAMELESS}
    assert {what: found for what, script in amiss.items() if (found := ask(script))} == {}
    assert ask(MOVING) == []
    assert ask(BROKEN) == []
    ask(OPEN, "no op has this name")
    assert ask(TOO_WIDE) == ask(PALE) == ask(NAMELESS) == []


def press(browser, *keys):
    from selenium.webdriver.common.action_chains import ActionChains

    ActionChains(browser).send_keys(*keys).perform()


@screens(ONE)
def test_the_tabulator_reaches_all_in_order_and_shows_where_it_is(ask, browser):
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    ask("document.querySelectorAll('details').forEach((e) => e.open = true)")
    ask("document.querySelector('#chain [data-part]')?.click(); scrollTo(0, 0)")
    elements = ask(REACHABLE)
    # The first is come back to, since a script's focus need not be shown.
    ask("document.querySelector('[data-reached=\"0\"]').focus()")
    press(browser, Keys.TAB)
    ActionChains(browser).key_down(Keys.SHIFT).send_keys(Keys.TAB).key_up(Keys.SHIFT).perform()
    seen = []
    for _ in elements:
        settle(browser, lambda: ask(FOCUSED)[1])
        seen.append(ask(FOCUSED)[0])
        press(browser, Keys.TAB)
    assert seen == list(range(len(elements)))


#: What the keyboard opens, and what is to be seen then: the first element of each sort.
OPENED = {
    "#chain [data-part]": "tr.link-row",
    "#chain .link": "tr.explained #details:not([hidden])",
    "#details .close": "#details[hidden]",
    ".module > .opens[aria-expanded=false]": ".module p",
    "[data-step=last]": "#stage #details:not([hidden])",
    "#verdict summary": "#verdict details[open]",
}


@screens(ONE)
@pytest.mark.parametrize("key", ["ENTER", "SPACE"])
def test_what_can_be_clicked_is_used_by_keys_and_escape_closes_it(ask, browser, key):
    from selenium.webdriver.common.keys import Keys

    count = "return document.querySelectorAll(arguments[0]).length"
    for what, then in OPENED.items():
        if not ask(count, what):
            continue
        before = ask(count, then)
        ask("document.querySelector(arguments[0]).focus()", what)
        press(browser, getattr(Keys, key))
        settle(browser, lambda then=then, before=before: ask(count, then) > before)
    assert ask(count, "#details:not([hidden])") == 1
    press(browser, Keys.ESCAPE)
    assert ask(count, "#details[hidden]") == 1


@screens(ONE)
def test_the_keyboard_is_not_lost_where_an_explanation_leads_on_or_closes(ask, browser):
    from selenium.webdriver.common.keys import Keys

    focused = "return document.activeElement.id || document.activeElement.className"

    def focus(css):
        ask("document.querySelector(arguments[0]).focus()", css)

    ask("document.querySelector('[data-step=last]').click()")
    settle(browser, lambda: ask("return !document.getElementById('details').hidden"))
    if ask("return Boolean(document.querySelector('#details .link'))"):
        was = ask("return document.querySelector('#details dd').textContent")
        focus("#details .link")
        press(browser, Keys.ENTER)
        now = "return document.querySelector('#details dd').textContent"
        settle(browser, lambda: ask(now) != was)
        assert ask(focused) in ("link", "close")
    focus("#details .close")
    press(browser, Keys.ESCAPE)
    assert ask(focused) == "timeline"
    ask("document.querySelector('#chain [data-part]').click()")
    focus("#chain .link")
    press(browser, Keys.ENTER)
    settle(browser, lambda: ask("return Boolean(document.querySelector('.explained .close'))"))
    focus(".explained .close")
    press(browser, Keys.ESCAPE)
    assert ask(focused) == "link"


@screens([pair for pair in ONE if pair[0] == "a pipeline with micro-batches"])
def test_buttons_show_a_part_of_the_pipeline(ask, browser):
    shown = "return document.getElementById('pipeline').layout.xaxis.range"
    whole = ask(shown)
    press_view = (
        "document.querySelector('[data-figure=pipeline] [data-view=' + arguments[0] + ']').click()"
    )

    def seen(view):
        ask(press_view, view)
        return [at / whole[1] for at in ask(shown)]

    assert seen("in") == pytest.approx([0.25, 0.75])
    assert seen("on") == pytest.approx([0.5, 1.0])
    assert seen("on") == pytest.approx([0.5, 1.0])
    assert seen("in") == pytest.approx([0.625, 0.875])
    assert seen("back") == pytest.approx([0.5, 0.75])
    assert seen("out") == pytest.approx([0.375, 0.875])
    assert seen("all") == pytest.approx([0.0, 1.0])


def settle(browser, holds):
    """Waits for the page to come to something."""
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(browser, 60, 0.05).until(lambda _: holds())


def test_colours_of_devices_can_be_seen_as_lines_on_white():
    def light(colour):
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    assert all(1.05 / (light(colour) + 0.05) >= 3 for colour in COLOURS)
    assert len(set(COLOURS)) == len(COLOURS)
