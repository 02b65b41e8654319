"""A real browser for tests of pages, or a reason why there is none."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


def found() -> tuple[str | None, str | None]:
    """The paths of a browser and of its driver."""
    browser = next(filter(None, map(shutil.which, ("chromium", "google-chrome"))), None)
    return browser, shutil.which("chromedriver")


@contextmanager
def chromium() -> Iterator:
    """Chromium without a window, driven by selenium; skips where it is not installed."""
    webdriver = pytest.importorskip("selenium.webdriver")
    from selenium.webdriver.chrome.service import Service

    browser, driver = found()
    if browser is None or driver is None:
        pytest.skip("needs a browser: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    for flag in ("--headless=new", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(flag)
    options.add_argument("--window-size=1300,1000")
    if getattr(os, "geteuid", lambda: 1)() == 0:
        options.add_argument("--no-sandbox")
    driving = webdriver.Chrome(options=options, service=Service(driver))
    driving.set_script_timeout(120)
    try:
        yield driving
    finally:
        driving.quit()
