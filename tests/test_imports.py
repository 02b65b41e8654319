"""What importing costs: nothing that a user has not asked for."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = (
    "torch",
    "onnx",
    "matplotlib",
    "networkx",
    "scipy",
    "pandas",
    "mip",
    "msgspec",
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


def test_numpy_is_most_of_the_cost():
    """Seconds of the import beyond numpy's own, best of three."""
    code = (
        "import time, numpy; t = time.perf_counter(); import loadmaster;"
        " print(time.perf_counter() - t)"
    )
    assert min(float(run(code).stdout) for _ in range(3)) < 0.5
