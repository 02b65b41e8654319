"""The table of systems: what folders declare, and a system of one folder more."""

from __future__ import annotations

import importlib
import inspect
import json
import re
import subprocess
import sys
from contextlib import suppress
from functools import partial
from importlib import import_module, metadata
from pathlib import Path

import pytest

import loadmaster as lm
from loadmaster.base.errors import InputError
from loadmaster.cli import main
from loadmaster.systems.registry import SYSTEMS, System, check_no_target, planned_for, target_of
from loadmaster.writers.export import export, forms

#: The files of a system that has the ops of a model on two devices in turn.
TOY = {
    "__init__.py": '"""A system of no use."""\n',
    "semantics.py": """
from loadmaster.systems.registry import WrittenForm, Launcher, Semantics, System

SYSTEMS = (
    System(
        "toy-in-turn",
        Semantics(
            system="a toy",
            models="any model",
            splits="nothing",
            unit="an op",
            moves="tensors",
            launches="nobody",
            memory="all of it",
            launcher=Launcher.NOBODY,
        ),
        "loadmaster.systems.toy.plan:in_turn",
        WrittenForm("loadmaster.systems.toy.write:names", "a device in every line"),
    ),
    System("toy-counted", form=WrittenForm("loadmaster.systems.toy.write:number", "a number")),
)
""",
    "plan.py": """
import numpy as np

from loadmaster.judge.assignment import Assignment
from loadmaster.strategies.candidate import judged


def in_turn(problem, *, devices: int = 2):
    sets = problem.graph.colocation % devices
    order = np.arange(len(sets), dtype=np.int32)
    return judged(problem, Assignment(sets.astype(np.int32), order))
""",
    "write.py": '''
def names(plan, path, *, prefix=""):
    """The device of every op."""
    return [prefix + plan.cluster.devices[device].name for device in plan.devices]


def number(plan, path):
    """The number of ops."""
    return len(plan.devices)
''',
}


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """A folder more in the package of systems, for a test."""
    (tmp_path / "toy").mkdir()
    for name, text in TOY.items():
        (tmp_path / "toy" / name).write_text(text)
    systems = import_module("loadmaster.systems")
    monkeypatch.setattr(systems, "__path__", [*systems.__path__, str(tmp_path)])
    monkeypatch.setattr(SYSTEMS, "declared", dict(SYSTEMS.declared))
    importlib.invalidate_caches()
    yield
    for name in [name for name in sys.modules if name.startswith("loadmaster.systems.toy")]:
        del sys.modules[name]


def test_a_system_of_one_folder_is_planned_for_exported_and_listed(toy, tmp_path, capsys):
    graph, cluster = lm.read("example:lenet"), lm.Cluster.preset("4xV100-PCIe")
    plan = lm.place(graph, cluster, target="toy-in-turn")
    assert set(plan.devices.tolist()) == {0, 1}
    # Nobody pays for launches there.
    assert all(kind.launch == 0 for kind in plan.cluster.types)
    assert export(plan, prefix="on ")[0].startswith("on gpu")
    assert lm.writers.toy_in_turn(plan, None) == export(plan)
    assert export(plan, "toy-counted") == graph.n_ops
    assert "toy_counted" in dir(lm.writers)
    with pytest.raises(InputError, match="has no option 'device': did you mean 'devices'"):
        lm.place(graph, cluster, target="toy-in-turn", device=1)
    assert "toy-in-turn" in planned_for()
    assert "toy-counted" not in planned_for()
    assert main(["targets"]) == 0
    listed = capsys.readouterr().out
    assert "\ntoy-in-turn" in listed
    assert "\ntoy-counted" in listed
    graph_file, plan_file = str(tmp_path / "lenet.json"), str(tmp_path / "plan.json")
    lm.readers.opgraph.write(graph, graph_file)
    options = ["--cluster", "4xV100-PCIe", "--target", "toy-in-turn", "-o", plan_file]
    assert main(["place", graph_file, *options]) == 0
    assert main(["export", plan_file, "--to", "toy-counted"]) == 0


def test_every_system_is_whole():
    for name, system in SYSTEMS.items():
        assert system.name == name
        assert (system.semantics is None) == (system.planner == ""), name
        assert system.semantics is not None or system.form is not None, name
        if system.planner:
            first = next(iter(inspect.signature(system.plan).parameters))
            assert first == "problem", name


def test_systems_are_values():
    assert SYSTEMS["ddp"] == System("ddp", *(getattr(SYSTEMS["ddp"], f) for f in FIELDS))
    with pytest.raises(AttributeError):
        SYSTEMS["ddp"].name = "dpp"


FIELDS = ("semantics", "planner", "form", "beside", "packages", "checker")


def test_what_is_only_written_is_no_target():
    with pytest.raises(InputError, match="no target is named 'saga'"):
        target_of("saga")
    check_no_target("saga")
    with pytest.raises(InputError, match="ddp is a target"):
        check_no_target("ddp")
    assert "saga" in forms()


IMPORTS = """
import sys
import loadmaster as lm
assert not [name for name in sys.modules if name.startswith("loadmaster.systems.")]
graph, cluster = lm.read("example:lenet"), lm.Cluster.preset("2xV100-NVLink")
lm.place(graph, cluster, target="{name}")
print(*{{m.split(".")[2] for m in sys.modules if m.startswith("loadmaster.systems.")}})
"""

LISTED = """
import sys
from loadmaster.systems.registry import planned_for
assert "jax" in planned_for()
own = [m for m in sys.modules if m.startswith("loadmaster.systems.")]
print(*[m for m in own if m.split(".")[-1] in ("plan", "write")])
print(*[m for m in ("torch", "jax", "onnx", "tensorflow") if m in sys.modules])
"""


def output_of(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True
    )
    return done.stdout


@pytest.mark.parametrize("name", ["ddp", "jax"])
def test_planning_for_a_system_imports_no_other(name):
    assert set(output_of(IMPORTS.format(name=name)).split()) <= {"registry", "shared", name}


def test_listing_systems_imports_neither_planners_nor_frameworks():
    assert output_of(LISTED).split() == []


def test_no_system_imports_another():
    systems = Path(import_module("loadmaster.systems").__path__[0])
    for folder in {path.parent for path in systems.glob("*/__init__.py")}:
        for file in sorted(folder.glob("*.py")):
            imports = re.findall(r"(?:from|import) loadmaster\.systems\.(\w+)", file.read_text())
            assert set(imports) <= {folder.name, "registry", "shared"}, file


def test_systems_are_listed_with_what_is_installed_and_nothing_is_imported():
    code = """
import sys, loadmaster as lm
rows = {row.name: row for row in lm.systems()}
import loadmaster.systems.registry  # which is an attribute of the face, too
assert {row.name for row in lm.systems()} == set(loadmaster.systems.SYSTEMS) == set(rows)
packages = {package for row in rows.values() for package in row.packages}
assert packages and not {name.replace("-", "_") for name in packages} & set(sys.modules)
print(lm.systems())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["target", "installed", "export", "writes", "takes"]
    assert [line.split()[0] for line in lines[1:]] == list(SYSTEMS)


@pytest.mark.parametrize("name", list(SYSTEMS))
def test_a_row_says_what_the_system_declares(name):
    row = next(row for row in lm.systems() if row.name == name)
    system = SYSTEMS[name]
    assert (row.models is not None) == (name in planned_for())
    assert row.packages or name not in planned_for()
    assert row.writes == (None if system.form is None else system.form.text)
    for package in system.packages:
        with suppress(metadata.PackageNotFoundError):
            assert row.installed == f"{package} {metadata.version(package)}"
            break
    else:
        assert row.installed is None
        assert row.cells[1] == (f"no {system.packages[0]}" if system.packages else "-")


def test_the_command_line_lists_the_same(capsys):
    assert main(["targets"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert {line.split()[0] for line in said[1:-1]} == {*SYSTEMS, *forms()}
    assert main(["targets", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    for name, of in lm.systems().to_document().items():
        assert (
            of.items() <= {**document[name], "packages": tuple(document[name]["packages"])}.items()
        )


@pytest.mark.parametrize("method", ["export", "function"])
def test_a_plan_exports_itself(method, tmp_path):
    plan = lm.place("example:lenet", "2xV100-NVLink", target="ddp")
    write = plan.export if method == "export" else partial(lm.export, plan)
    assert write() == write("ddp", tmp_path / "out.py") == (tmp_path / "out.py").read_text()
    with pytest.raises(InputError, match="nothing is written as 'dpd': did you mean 'ddp'"):
        write("dpd")


def test_the_target_comes_first_in_the_help_of_place(capsys):
    with pytest.raises(SystemExit):
        main(["place", "--help"])
    flags = re.findall(r"^  (?:-\w, )?(--[a-z-]+)", capsys.readouterr().out, re.MULTILINE)
    assert flags[:2] == ["--help", "--target"]
