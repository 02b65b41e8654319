"""What is printed: nothing that a terminal obeys, and one line and code 2 where stdout fails."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys

import pytest
from rich.console import Console
from strategies import graph_of

import loadmaster as lm
import loadmaster.cli.progress as progress
from loadmaster.cli import main

COMMAND = [sys.executable, "-m", "loadmaster"]

#: Colours, a bell, the control character that does what escape and bracket do, text from right to
#: left, and a line that somebody else has written.
OBEYED = "\x1b[31m\x07\x9b2J\u202e\nforged"
SHOWN = r"\x1b[31m\x07\x9b2J\u202e\nforged"
#: The same in an error, which is one line.
AS_LINE = SHOWN.replace(r"\n", " ")
CONTROLS = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u202e]|^forged", re.MULTILINE)

CLUSTER = """
name = "cluster@"
[[type]]
name = "type@"
peak = { f32 = 1e12 }
memory_bandwidth = 1e12
[[device]]
name = "left@"
type = "type@"
memory = "1GiB"
[[device]]
name = "right@"
type = "type@"
memory = "1GiB"
[[link]]
from = "left@"
to = "right@"
bandwidth = 1e9
[[link]]
from = "right@"
to = "left@"
bandwidth = 1e9
"""


def ran(words: str, redirected: str) -> subprocess.CompletedProcess[str]:
    """A command of the shell, so that a stream can be closed."""
    line = f"{' '.join(COMMAND)} {words} {redirected}"
    return subprocess.run(["sh", "-c", line], capture_output=True, text=True)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
@pytest.mark.parametrize("words", ["presets", "info example:lenet --json", "--version", "--help"])
def test_full_stdout_is_told_in_one_line(words):
    done = ran(words, "> /dev/full")
    assert done.returncode == 2
    assert done.stderr == ("loadmaster: cannot write to standard output: No space left on device\n")


def test_closed_stdout_is_told_in_one_line_before_any_work():
    done = ran("place nowhere.json", ">&-")
    assert done.returncode == 2
    assert done.stderr == (
        "loadmaster: standard output is closed: send it to a file, or to /dev/null\n"
    )


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
@pytest.mark.parametrize("redirected", ["2>&-", "2> /dev/full"])
def test_without_stderr_nothing_is_added_to_stdout(redirected):
    done = ran("info nowhere.json", redirected)
    assert (done.returncode, done.stdout) == (2, "")
    done = ran("presets --json", redirected)
    assert done.returncode == 0
    json.loads(done.stdout)


@pytest.mark.parametrize("words", ["examples", "--help"])
def test_a_reader_that_has_seen_enough_is_no_error(words):
    line = f"{{ {' '.join(COMMAND)} {words}; echo code $? >&2; }} | true"
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True)
    assert done.stderr == "code 0\n"


@pytest.mark.parametrize("letters", [248, 255, 300])
def test_long_names_are_written_or_refused_in_one_line(letters, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = "n" * letters
    words = ["place", "example:lenet", "--method", "heft", "-o", name]
    assert main(words) == (2 if letters == 300 else 0)
    assert os.listdir() == ([] if letters == 300 else [name])
    said = capsys.readouterr().err.splitlines()
    if letters == 300:
        assert said == [f"loadmaster: cannot write {name}: File name too long"]
        for words in (["info", name], ["report", name], ["sweep", name], ["coarsen", name]):
            assert main(words) == 2
            assert capsys.readouterr().err.count("\n") == 1


def with_little_room(words: str) -> subprocess.CompletedProcess[str]:
    """A command that can write no file of more than a KiB."""
    line = f"ulimit -f 1; {' '.join(COMMAND)} {words}"
    return subprocess.run(["bash", "-c", line], capture_output=True, text=True)


def test_a_full_disk_leaves_the_old_plan(tmp_path):
    plan = tmp_path / "plan.json"
    plan.write_text("old")
    done = with_little_room(f"place example:lenet --method heft -o {plan}")
    assert done.returncode == 2
    assert done.stderr == f"loadmaster: cannot write {plan}: File too large\n"
    assert plan.read_text() == "old"
    assert os.listdir(tmp_path) == ["plan.json"]


def test_a_full_folder_for_temporary_files_is_told_in_one_line():
    done = with_little_room("place example:lenet --method ilp --time-limit 5s")
    assert done.returncode == 2
    assert re.fullmatch("loadmaster: cannot write the task of a solver .*too large\n", done.stderr)


@pytest.fixture
def hostile(tmp_path, monkeypatch) -> lm.OpGraph:
    """A graph, a cluster and a plan in this folder, with names that a terminal would obey."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cluster.toml").write_text(CLUSTER.replace("@", json.dumps(OBEYED)[1:-1]))
    ops = {f"a{OBEYED}": 1, f"b{OBEYED}": 2}
    document = graph_of(ops, [(*ops, 10)], output_bytes=[10, 10]).to_document()
    document["ops"]["module"] = [f"m{OBEYED}"] * 2
    document["name"] = f"net{OBEYED}"
    (tmp_path / "net.json").write_text(json.dumps(document))
    graph = lm.read("net.json")
    lm.place(graph, lm.Cluster.read("cluster.toml"), "heft").save("plan.json")
    return graph


ON = ["net.json", "--cluster", "cluster.toml"]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["info", *ON], 0),
        (["place", *ON, "--method", "heft"], 0),
        (["place", *ON, "--pin", "a*=nowhere"], 2),
        (["place", *ON, "--pin", f"nope{OBEYED}=0"], 2),
        (["place", *ON, "--method", "heft", "--reserve", "1GiB"], 3),
        (["compare", *ON, "--methods", "heft"], 0),
        (["explain", "plan.json", f"a{OBEYED}"], 0),
        (["explain", "plan.json", f"nope{OBEYED}"], 2),
        (["simulate", "plan.json"], 0),
        (["diff", "plan.json", "plan.json"], 0),
        (["check", "plan.json", "--max-peak", f"left{OBEYED}=1GiB"], 0),
        (["what-if", "plan.json", "--remove-device", f"left{OBEYED}"], 0),
        (["coarsen", *ON], 0),
        (["fit", *ON, "--reserve", "1GiB"], 3),
        (["info", f"no{OBEYED}"], 2),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_names_are_shown_not_obeyed(words, code, hostile, capsys):
    assert main(words) == code
    said = capsys.readouterr()
    assert not CONTROLS.search(said.out + said.err)
    both = said.out + said.err
    assert words[0] in ("compare", "coarsen") or SHOWN in both or AS_LINE in both


def test_json_has_names_exactly_and_no_controls(hostile, capsys):
    assert main(["info", *ON, "--json"]) == 0
    said = capsys.readouterr().out
    assert not CONTROLS.search(said)
    assert json.loads(said)["name"] == hostile.name == f"net{OBEYED}"


def test_what_is_exported_is_exact_but_on_a_terminal(hostile, capsys, monkeypatch):
    words = ["export", "plan.json", "--to", "graphml"]
    assert main(words) == 0
    assert "\x9b2J\u202e" in capsys.readouterr().out  # What XML can hold.
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert main(words) == 0
    assert not CONTROLS.search(capsys.readouterr().out)


def test_unknown_words_are_shown_not_obeyed(capsys):
    for words in ([f"no{OBEYED}"], ["info", "example:lenet", f"--no{OBEYED}"]):
        assert main(words) == 2
        assert not CONTROLS.search(capsys.readouterr().err)


def test_a_name_stays_in_its_cell_and_its_line(capsys):
    from loadmaster.base.text import aligned
    from loadmaster.cli.printing import note

    assert aligned([["a\nb", "c"], ["d", "e"]]) == [r"a\nb  c", "d     e"]
    note("two\nlines")
    assert capsys.readouterr().err == "loadmaster: two\\nlines\n"


def test_the_progress_line_shows_names_as_they_are():
    line = progress.ProgressLine()
    line(f"net{OBEYED} [red]by[/nonesuch] heft")
    assert line.line() == rf"net{SHOWN} [red]by[/nonesuch] heft"
    shown = io.StringIO()
    live = progress._live(line.line)
    live.console = Console(file=shown, force_terminal=True, width=80)
    live.console.print(live.get_renderable())
    assert rf"net{SHOWN} [red]by[/nonesuch] heft" in re.sub("\x1b\\[[0-9;]*m", "", shown.getvalue())


def test_characters_that_the_encoding_lacks_are_escaped():
    words = [*COMMAND, "info", "nowhere\u00e9.json"]
    env = {**os.environ, "PYTHONIOENCODING": "ascii:strict"}
    done = subprocess.run(words, capture_output=True, text=True, env=env)
    assert done.returncode == 2
    assert done.stderr.startswith(r"loadmaster: cannot read nowhere\xe9.json")


METHOD = """
import atexit
import numpy as np
from loadmaster.strategies import Assignment
atexit.register(print, "at the end")
print("a method's own word", end="")
def mine(problem):
    n = problem.graph.n_ops
    return Assignment(np.zeros(n, np.int32), np.arange(n, dtype=np.int32))
def broken(problem):
    return 1 // 0
"""


@pytest.mark.parametrize(("method", "code"), [("mine", 0), ("broken", 1)])
def test_a_command_ends_its_process_with_its_code_and_everything_is_out(tmp_path, method, code):
    file = tmp_path / "method.py"
    file.write_text(METHOD)
    words = f"place example:lenet --cluster 2xV100-NVLink --method {file}:{method}"
    done = subprocess.run([*COMMAND, *words.split()], capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    assert done.stdout.startswith("a method's own word")
    assert done.stdout.endswith("at the end\n")
