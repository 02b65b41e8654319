"""What importing costs: nothing that a user has not asked for."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest
from folders import BENCHES
from sources import trees

HEAVY = (
    "torch",
    "onnx",
    "matplotlib",
    "networkx",
    "scipy",
    "pandas",
    "mip",
    "highspy",
    "ortools",
    "tensorflow",
    "jax",
    "pymetis",
    "rustworkx",
    "tomli_w",
    "pyarrow",
    "distributed",
    "dask",
    "multiprocessing",
    "plotly",
    "rich",
)


def run(code: str, *options: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, *options, "-c", code], capture_output=True, text=True, check=True
    )


@pytest.mark.parametrize(
    "code",
    [
        "import loadmaster",
        "import loadmaster.readers, loadmaster.writers, loadmaster.strategies, loadmaster.costs",
        "import loadmaster as lm; lm.read('example:lenet')",
        "import loadmaster as lm; lm.place(lm.read('example:lenet'),"
        " lm.Cluster.preset('2xV100-NVLink'))",
    ],
)
def test_no_heavy_package_is_imported(code):
    check = f"{code}\nimport sys; print([m for m in {HEAVY} if m in sys.modules])"
    done = run(check)
    assert done.stdout == "[]\n"
    assert done.stderr == ""


def test_importing_prints_nothing_and_warns_of_nothing():
    done = run("import loadmaster", "-W", "error")
    assert (done.stdout, done.stderr) == ("", "")


def test_no_command_line_is_imported():
    code = (
        "import loadmaster, sys; print([m for m in sys.modules if m in"
        " ('loadmaster.cli', 'argparse', 'difflib')])"
    )
    assert run(code).stdout == "[]\n"


@pytest.mark.parametrize("arguments", [["--help"], ["place", "--help"], ["report", "--help"]])
def test_help_needs_no_numpy(arguments):
    """What makes it quick: 0.06 s of CPU, of which Python itself takes 0.02."""
    code = (
        "import sys; from loadmaster.cli import main\n"
        f"try: main({arguments})\n"
        "except SystemExit: print([m for m in ('numpy', 'loadmaster.fast') if m in sys.modules])"
    )
    assert run(code).stdout.endswith("[]\n")


def test_a_name_that_is_not_there_is_an_attribute_error():
    code = "import loadmaster as lm; print(hasattr(lm, 'nonesuch'), 'place' in dir(lm))"
    assert run(code).stdout == "False True\n"


def test_the_face_is_what_it_says():
    code = (
        "import loadmaster as lm; print([n for n in lm.__all__ if not hasattr(lm, n)],"
        " lm.__all__ == sorted(lm.__all__), bool(lm.__version__))"
    )
    assert run(code).stdout == "[] True True\n"


def test_nobody_below_imports_from_the_face():
    """`import-linter` holds the floors, but cannot tell the face from the extension behind it."""
    found = [
        f"{file}:{node.lineno}"
        for file, tree in trees().items()
        for node in ast.walk(tree)
        if (isinstance(node, ast.ImportFrom) and node.module == "loadmaster")
        or (isinstance(node, ast.Import) and any(a.name == "loadmaster" for a in node.names))
    ]
    assert [where for where in found if not where.startswith("__init__.py")] == []


def cycles(folder: Path) -> list[list[str]]:
    """The cycles of imports that the bench lists under the root of a repository."""
    command = [sys.executable, str(BENCHES / "imports.py"), str(folder), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_no_modules_import_each_other():
    """Imports inside of functions count, but for those of one-line methods of four types."""
    assert cycles(BENCHES.parent) == []


def test_a_cycle_is_seen_through_a_function_and_through_a_method_of_two_lines(tmp_path):
    package = tmp_path / "python" / "loadmaster"
    package.mkdir(parents=True)
    hung = """
class Plan:
    def short(self):
        from loadmaster.above import call

        return call(self)
"""
    (package / "__init__.py").write_text("")
    (package / "above.py").write_text("from loadmaster.plan import Plan\n")
    (package / "plan.py").write_text(hung)
    assert cycles(tmp_path) == []
    longer = hung.replace("return call(self)", "made = call(self)\n        return made")
    for text in (longer, "def call():\n    from loadmaster import above\n"):
        (package / "plan.py").write_text(text)
        assert cycles(tmp_path) == [["loadmaster.above", "loadmaster.plan"]]


def test_numpy_is_most_of_the_cost():
    """Seconds of the import beyond numpy's own, best of three."""
    code = (
        "import time, numpy; t = time.perf_counter(); import loadmaster;"
        " print(time.perf_counter() - t)"
    )
    assert min(float(run(code).stdout) for _ in range(3)) < 0.5
