"""What the documentation shows is what happens."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
import re
from pathlib import Path

import pytest

import loadmaster
from loadmaster import fast

ROOT = Path(__file__).parents[1]
FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
MODULES = sorted(
    m.name
    for m in pkgutil.walk_packages(loadmaster.__path__, "loadmaster.")
    if m.name.rpartition(".")[2] not in ("__main__", "fast")
)
PUBLIC = sorted(name for name in vars(fast) if not name.startswith("_"))


def run(text: str, name: str, names: dict | None = None) -> int:
    """Runs the examples in a text; the number of them."""
    found = doctest.DocTestParser().get_doctest(text, dict(names or {}), name, None, 0)
    report: list[str] = []
    runner = doctest.DocTestRunner(verbose=False, optionflags=FLAGS)
    runner.run(found, out=report.append)
    assert runner.failures == 0, "".join(report)
    return len(found.examples)


@pytest.mark.parametrize("name", ["loadmaster", *MODULES])
def test_examples_in_modules(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        pytest.skip(f"needs an extra: {error}")
    finder = doctest.DocTestFinder(exclude_empty=True)
    for test in finder.find(module, name):
        extras = ("import networkx", "import onnx", "import pymetis")
        if any(ex.source.startswith(extras) for ex in test.examples):
            pytest.importorskip(test.examples[0].source.split()[1].strip(","))
        run_test(test)


def run_test(test: doctest.DocTest) -> None:
    report: list[str] = []
    runner = doctest.DocTestRunner(verbose=False, optionflags=FLAGS)
    runner.run(test, out=report.append)
    assert runner.failures == 0, "".join(report)


def test_public_functions_of_the_face_have_docstrings():
    for name in set(loadmaster.__all__) - {"fast"}:
        member = getattr(loadmaster, name)
        assert inspect.getdoc(member), name


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_of_fast_has_an_example_that_runs(name):
    member = getattr(fast, name)
    texts = [member.__doc__ or ""]
    if inspect.isclass(member):
        texts += [
            getattr(vars(member)[attribute], "__doc__", None) or ""
            for attribute in vars(member)
            if not attribute.startswith("_")
        ]
    assert texts[0].strip(), f"loadmaster.fast.{name} has no docstring"
    assert sum(run(text, f"loadmaster.fast.{name}") for text in texts) > 0, "no example"


def test_the_module_fast_and_every_member_of_its_classes_are_documented():
    assert (fast.__doc__ or "").strip()
    bare = [
        f"{name}.{attribute}"
        for name in PUBLIC
        if inspect.isclass(getattr(fast, name))
        for attribute, value in vars(getattr(fast, name)).items()
        if not attribute.startswith("_") and not (getattr(value, "__doc__", None) or "").strip()
    ]
    assert bare == []


PAGES = [p for p in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))) if p.exists()]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_python_on_pages_runs(page, tmp_path, monkeypatch):
    """The blocks of a page in order, in one directory; examples with >>> are checked."""
    monkeypatch.chdir(tmp_path)
    names: dict = {"__name__": "__main__"}
    for block in re.findall(r"^```python\n(.*?)^```", page.read_text(), re.M | re.S):
        if ">>>" in block:
            run(block, page.name, names)
        else:
            exec(compile(block, str(page), "exec"), names)
