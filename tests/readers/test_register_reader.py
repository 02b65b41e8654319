"""Readers that users add: known by content to lm.read, lm.read_profiles and the command line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import loadmaster as lm
from loadmaster.base.errors import InputError
from loadmaster.cli import main
from loadmaster.readers import registry
from loadmaster.readers.examples import EXAMPLES, load
from loadmaster.readers.opgraph import write


def is_chain(file: lm.readers.File) -> bool:
    return file.head.startswith(b"chain ")


def chain(names: list[str], seconds: float) -> lm.OpGraph:
    n = len(names)
    return lm.OpGraph(
        {"name": names, "output_bytes": [4] * n, "time": {"*": [seconds] * n}},
        {"src": list(range(n - 1)), "dst": list(range(1, n)), "bytes": [4] * (n - 1)},
    )


def read_chain(path, *, seconds: float = 1e-3, batch: int = 1):
    return chain(Path(path).read_text().split()[1:], seconds * batch)


@pytest.fixture
def file(tmp_path) -> Path:
    path = tmp_path / "net.chain"
    path.write_text("chain a b c")
    return path


def test_a_made_up_format_is_read_with_its_options(file, capsys):
    with pytest.raises(InputError, match=r"a text of no graph: graphs are read from .*StableHLO"):
        lm.read(file)
    lm.reader("chain", "a chain", recognises=is_chain)(read_chain)
    graph = lm.read(file, seconds=2e-3)
    assert graph.names == ["a", "b", "c"]
    np.testing.assert_allclose(graph.time["*"], 2e-3)
    assert main(["place", str(file), "--batch", "2", "--method", "single"]) == 0
    assert ": 6 ms per step" in capsys.readouterr().out
    with pytest.raises(InputError, match="a chain takes no option 'shapes': it takes seconds, bat"):
        lm.read(file, shapes={})
    file.write_text("neither")
    with pytest.raises(InputError, match=r"graphs are read from .* or a chain"):
        lm.read(file)


def test_the_function_itself_stays_as_it_was():
    assert lm.reader("chain", "a chain", recognises=is_chain)(read_chain) is read_chain


def test_readers_of_users_are_asked_before_those_that_come_along(tmp_path):
    path = tmp_path / "net.json"
    write(load("lenet"), path)
    lm.reader("mine", "my JSON", recognises=lambda file: file.path.endswith(".json"))(
        lambda path: chain(["a"], 1.0)
    )
    assert lm.read(path).n_ops == 1
    assert lm.read("example:lenet").n_ops == 104


def test_a_reader_that_is_last_leaves_files_to_others(file):
    lm.reader("any", "any file", recognises=lambda file: True, is_last=True)(
        lambda path: chain(["a"], 1.0)
    )
    lm.reader("chain", "a chain", recognises=is_chain)(read_chain)
    assert lm.read(file).n_ops == 3


def test_a_program_in_memory():
    lm.reader("space", "a name space", accepts=lambda p: isinstance(p, SimpleNamespace))(
        lambda program, *, seconds=1.0: chain(program.names, seconds)
    )
    assert lm.read(SimpleNamespace(names=["a", "b"])).names == ["a", "b"]
    with pytest.raises(InputError, match=r"a path, a jaxpr .* or a name space, not from int"):
        lm.read(3)


def test_measured_times_of_a_made_up_format(file):
    @lm.readers.profile_reader("chain", "times of a chain", recognises=is_chain)
    def read_times(path, *, device_type="any"):
        names = tuple(Path(path).read_text().split()[1:])
        return lm.Profile(names, names, np.ones((len(names), 1)), device_type)

    (profile,) = lm.read_profiles(file, device_type="V100")
    assert (profile.names, profile.device_type) == (("a", "b", "c"), "V100")
    with pytest.raises(InputError, match="times of a chain takes no option 'graph'"):
        lm.read_profiles(file, graph="net")


@pytest.mark.parametrize("name", ["", "Two Words", "x_y", None, "onnx"])
def test_names_that_cannot_be(name):
    with pytest.raises(InputError, match="name"):
        lm.reader(name, "", recognises=is_chain)(read_chain)
    assert registry.GRAPHS["onnx"].is_ours


def test_a_short_reader_that_comes_along_is_ours(file):
    def short(path):
        return read_chain(path)

    short.__module__ = "loadmaster.readers.formats.chain"
    lm.reader("chain", "a chain", recognises=is_chain)(short)
    with pytest.raises(InputError, match="'chain' is a reader that comes along"):
        lm.reader("chain", "", recognises=is_chain)(lambda path: None)
    lm.reader("mine", "my chain", recognises=is_chain)(lambda path: chain(["mine"], 1.0))
    assert lm.read(file).names == ["mine"]


def test_a_name_may_be_registered_again(file):
    for seconds in (1.0, 2.0):
        lm.reader("chain", "", recognises=is_chain)(
            lambda path, seconds=seconds: chain(["a"], seconds)
        )
    assert lm.read(file).time["*"][0] == 2.0


def test_a_reader_that_nothing_asks():
    with pytest.raises(InputError, match="would never be asked: give recognises= or accepts="):
        lm.reader("chain", "a chain")


def test_what_is_no_graph_is_named(file):
    lm.reader("chain", "a chain", recognises=is_chain)(lambda path: None)
    with pytest.raises(InputError, match="the reader of a chain returned None: wants an OpGraph"):
        lm.read(file)


def test_an_example_is_read_without_the_readers_of_other_formats():
    assert "lenet" in EXAMPLES
    code = (
        "import sys, loadmaster as lm; lm.read('example:lenet');"
        "print([m for m in sys.modules if m.startswith('loadmaster.readers.')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "formats" not in done.stdout


def test_telling_a_format_imports_no_reader_of_another(tmp_path):
    path = tmp_path / "net.json"
    write(load("lenet"), path)
    code = (
        f"import sys, loadmaster as lm; lm.read({str(path)!r});"
        "print(sorted(m.partition('readers.')[2] for m in sys.modules if 'readers.' in m"
        " and 'readers.formats' not in m))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    protos = ["chakra", "chakra.protos", "tensorflow", "tensorflow.protos"]
    shared = ["examples", "foreign", "opgraph", "reading", "registry", "shared", "shared.varint"]
    assert done.stdout == f"{sorted([*protos, *shared])}\n"


def test_what_a_test_registers_is_gone():
    assert not {"chain", "mine", "any", "space"} & {*registry.GRAPHS, *registry.PROFILES}
