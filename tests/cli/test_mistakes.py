"""Typical mistakes at the command line and in Python: each is answered by the way out."""

from __future__ import annotations

import json
import re

import pytest

import loadmaster as lm
from loadmaster.cli import main

#: Words of the command line, and what the answer has to say.
MISTAKES = [
    ("plce example:lenet", "did you mean 'place'"),
    ("compair example:lenet", "did you mean 'compare'"),
    ("", "loadmaster --help"),
    ("place", "required: graph"),
    ("place example:lent", "did you mean 'lenet'"),
    ("place EXAMPLE:LeNett", "did you mean 'lenet'"),
    ("place lenet", "example:lenet"),
    ("place exampel:lenet", "did you mean example:lenet"),
    ("place instance:planted", "`loadmaster instances` lists them"),
    ("leaderboard planted --methods heft", "`loadmaster instances` lists them"),
    ("place BERT-large", "example:bert-large"),
    ("place grap.json", "did you mean graph.json"),
    ("place Graph.JSON", "did you mean graph.json"),
    ("place nowhere/at/all.onnx", "cannot read nowhere/at/all.onnx"),
    ("place plan.json", "is a plan"),
    ("place costs.json", "--costs"),
    ("place empty.json", "empty"),
    ("place notes.txt", "graphs are read from"),
    ("place cluster.toml", "graphs are read from"),
    ("place graph.json --cluster 4xV100-PCI", "did you mean '4xV100-PCIe'"),
    ("place graph.json --cluster 4xv100-pcie", "did you mean '4xV100-PCIe'"),
    ("place graph.json --cluster nowhere.toml", "cannot read nowhere.toml"),
    ("place graph.json --cluster clutser.toml", "did you mean cluster.toml"),
    ("place graph.json --cluster graph.json", "not valid TOML"),
    ("place graph.json --method hefd", "did you mean 'heft'"),
    ("place graph.json --method HEFT", "did you mean 'heft'"),
    ("place graph.json --methd heft", "did you mean '--method'"),
    ("place graph.json --option efort=max", "did you mean 'effort'"),
    ("place graph.json --option taget=ddp", "did you mean --target"),
    ("compare graph.json --methods heft --option methd=heft", "did you mean --method"),
    ("coarsen graph.json --option ballance=2", "did you mean 'balance'"),
    ("place graph.json --option effort", "KEY=VALUE"),
    ("place graph.json --effort maximal", "fast, normal, max"),
    ("place graph.json --target dpp", "did you mean 'ddp'"),
    ("place graph.json --target ddp --method heft", "leave out method 'heft'"),
    ("place graph.json --time-limit 10", "unit"),
    ("place graph.json --pin nowhere=gpu0", "nowhere"),
    ("place graph.json --pin a=gpu9", "gpu9"),
    ("place graph.json --reserve 100GiB", "GiB"),
    ("place graph.json -o nowhere/plan.json", "nowhere"),
    ("place graph.json --timeline plan.bmp", ".png"),
    ("explain plan.json b1", "no op is named"),
    ("explain graph.json a", "a plan"),
    ("export plan.json --to onxx", "did you mean 'onnx'"),
    ("compare graph.json --methods heft,hefd", "did you mean 'heft'"),
    ("presets 8xH100", "did you mean '8xH100-NVLink'"),
    ("methods hef", "did you mean 'heft'"),
    ("simulate plan.json --policy fifi", "'fifo'"),
    ("what-if plan.json --remove-device gpu7", "gpu7"),
    ("check plan.json --max-step 5", "unit"),
    ("place graph.json -o graph.json", "is the graph itself"),
    ("place graph.json -o ./graph.json", "is the graph itself"),
    ("place graph.json --method ddp", "--target ddp"),
    ("place graph.json --target heft", "--method heft"),
    ("place graph.json --warm-start graph.json", "`loadmaster place graph.json -o plan.json`"),
    ("diff plan.json graph.json", "is a graph, of which `loadmaster place"),
    ("place graph.json --max-memory 10GiB", "--reserve 2GiB"),
    ("place graph.json --objective latency", "throughput"),
    ("place graph.json --split all", "'none'"),
    ("place my.py", "my.py:FUNCTION"),
    ("place my.py:biuld", "no function 'biuld'"),
    ("place my.py:build", "a dictionary of arguments by name"),
    ("place nowhere.py:build", "no file nowhere.py"),
    ("place torchvision.models:resnet50", "FILE.py:FUNCTION"),
    ("fit graph.json --target dpp", "did you mean 'ddp'"),
    ("fit graph.json --option tp=2", "name the target too"),
    ("fit graph.json --target ddp --option tp=2", "there are replicas"),
    ("advise graph.json --targets ddp,dpp", "did you mean 'ddp'"),
    ("compare graph.json --targets heft", "--method heft"),
    ("compare graph.json --methods heft --option foo=1", "has an option 'foo'"),
    ("report plan.json -o plan.pdf", ".html"),
    ("export plan.json --to onnx", "--model"),
    ("run plan.json", "--emulate"),
    ("calibrate graph.json", "--profile"),
    ("what-if plan.json", "--add-device"),
    ("what-if plan.json --scale-link fast", "no number"),
    ("coarsen graph.json --groups 0", "at least 1"),
    ("recipe plan.json", "splits nothing"),
    ("cluster nwe", "did you mean 'new'"),
    ("cluster new --gpus RTX4090x2", "did you mean 'RTX4090-24GB'"),
    ("help place", "loadmaster COMMAND --help"),
]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A folder with a graph, a plan of it, a cluster, and files that are none of these."""
    folder = tmp_path_factory.mktemp("mistakes")
    graph = lm.OpGraph(
        {"name": ["a", "b"], "flops": [1e9, 2e9], "output_bytes": [10, 10]},
        {"src": [0], "dst": [1], "bytes": [10]},
        name="two",
    )
    graph.save(folder / "graph.json")
    cluster = lm.Cluster.preset("2xV100-NVLink")
    (folder / "cluster.toml").write_text(cluster.to_toml())
    lm.place(folder / "graph.json", folder / "cluster.toml", "heft").save(folder / "plan.json")
    (folder / "costs.json").write_text(json.dumps({"format": "loadmaster-costs"}))
    (folder / "empty.json").write_text("")
    (folder / "notes.txt").write_text("to do: plan\n")
    (folder / "never.py").write_text("raise RuntimeError('executed before all else was checked')\n")
    (folder / "my.py").write_text("def build():\n    return 1\n")
    return folder


@pytest.fixture
def folder(files, monkeypatch):
    """The folder, as the one that commands are called in."""
    monkeypatch.chdir(files)


@pytest.mark.parametrize(("words", "way_out"), MISTAKES, ids=lambda value: value)
def test_a_mistake_is_answered_by_the_way_out(words, way_out, folder, capsys):
    assert main(words.split()) in (2, 3)
    said = capsys.readouterr()
    assert said.out == ""
    assert way_out in said.err
    assert 0 < said.err.count("\n") <= 4
    assert not re.search("^usage|Traceback", said.err, re.MULTILINE)


@pytest.mark.parametrize(
    "command", ["place", "advise", "fit", "info", "coarsen", "compare", "sweep"]
)
def test_a_cluster_that_is_not_there_is_said_before_a_model_is_built(command, folder, capsys):
    assert main([command, "never.py:build", "--cluster", "4xV100-PCI"]) == 2
    assert "no preset is named '4xV100-PCI'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "way_out"),
    [
        ("place --method hefd", "did you mean 'heft'"),
        ("place --target dpp", "did you mean 'ddp'"),
        ("place --target ddp --option tp=2", "has no option 'tp'"),
        ("place --effort fast --method heft", "has no option 'effort'"),
        ("place --recipe nowhere.toml", "cannot read nowhere.toml"),
        ("place --warm-start nowhere.json", "cannot read nowhere.json"),
        ("place --constraints nowhere.toml", "cannot read nowhere.toml"),
        ("advise --targets dpp", "did you mean 'ddp'"),
        ("fit --target ddp --option tp=2", "has no option 'tp'"),
        ("compare --methods hefd", "did you mean 'heft'"),
        ("compare --targets dpp", "did you mean 'ddp'"),
        ("sweep --methods hefd", "did you mean 'heft'"),
    ],
)
def test_other_mistakes_are_said_before_a_model_is_built(words, way_out, folder, capsys):
    command, *rest = words.split()
    assert main([command, "never.py:build", "--cluster", "4xV100-PCIe", *rest]) == 2
    assert way_out in capsys.readouterr().err


def test_a_model_is_told_how_it_becomes_a_graph():
    torch = pytest.importorskip("torch")
    with pytest.raises(lm.InputError, match=r"Linear is a model.*lm\.capture"):
        lm.place(torch.nn.Linear(2, 2), "2xV100-NVLink")


def test_a_graph_and_a_cluster_are_given_by_name(folder):
    by_name = lm.place("graph.json", "2xV100-NVLink", "heft")
    by_object = lm.place(lm.read("graph.json"), lm.Cluster.read("cluster.toml"), "heft")
    assert by_name.makespan == by_object.makespan
    with pytest.raises(lm.InputError, match="a cluster is a Cluster"):
        lm.place("graph.json", 2)


def test_help_shows_examples_that_the_command_takes():
    from loadmaster.cli.parser import parser

    shown = []
    for action in parser()._subparsers._group_actions[0].choices.values():
        examples = re.findall(r"^  (loadmaster .*)", action.format_help(), re.MULTILINE)
        assert examples, action.prog
        shown += examples
    for line in shown:
        arguments, unknown = parser().parse_known_args(line.split()[1:])
        assert arguments.run, line
        assert unknown == [], line
