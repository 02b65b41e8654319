"""Advice: plans side by side, the fastest first, each with the command that makes it."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest

import loadmaster as lm
from loadmaster.cli import main
from loadmaster.plans.advice import Choice


@pytest.fixture(scope="module")
def advice():
    return lm.advise("example:lenet", "2xV100-NVLink", targets=["ddp", "vllm"])


def test_the_fastest_that_fits_comes_first_and_each_is_as_fast_as_its_plan(advice):
    times = [choice.plan.makespan for choice in advice.choices]
    assert times == sorted(times)
    assert {choice.name for choice in advice.choices} == {"auto", "ddp"}
    assert advice.best.makespan == times[0]
    assert all(choice.plan.fits for choice in advice.choices)


def test_a_target_of_another_kind_has_its_reason_in_whole(advice):
    assert list(advice.refused) == ["vllm"]
    assert f"vllm has no plan: {advice.refused['vllm']}" in str(advice).splitlines()
    assert "inference" in advice.refused["vllm"] or "layers" in advice.refused["vllm"]


def test_plans_are_of_the_runtime_that_was_asked_for(capsys):
    command = "example:lenet --cluster 2xV100-NVLink --runtime compiled --targets ddp,pipelining"
    main(["advise", *command.split(), "--json"])
    said = json.loads(capsys.readouterr().out)
    plan = lm.place("example:lenet", "2xV100-NVLink", target="ddp", runtime="compiled")
    times = {choice["name"]: choice["plan"]["makespan"] for choice in said["choices"]}
    assert times["ddp"] == pytest.approx(plan.makespan)
    assert "leave out runtime 'compiled'" in said["refused"]["pipelining"]
    assert all("--runtime=compiled" in choice["command"] for choice in said["choices"])


def test_every_choice_has_its_command_in_whole(advice):
    said = str(advice)
    assert all(advice.command(choice) in said for choice in advice.choices)
    assert "..." not in said


def test_a_cluster_that_nobody_named_is_said(capsys):
    assert main(["advise", "example:lenet", "--targets", "ddp"]) == 0
    said = capsys.readouterr().err
    assert "no cluster was named, so this is for 4xV100-PCIe: --cluster names another" in said
    assert main(["advise", "example:lenet", "--targets", "ddp", "--cluster", "2xV100-PCIe"]) == 0
    assert "no cluster was named" not in capsys.readouterr().err


def test_the_command_of_a_choice_makes_its_plan(advice, capsys):
    choice = next(one for one in advice.choices if one.name == "ddp")
    words = ["place", "example:lenet", "--cluster", "2xV100-NVLink", *choice.arguments.split()]
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["makespan"] == choice.plan.makespan


def test_the_command_line_says_the_same(advice, capsys):
    words = ["advise", "example:lenet", "--cluster", "2xV100-NVLink", "--targets", "ddp,vllm"]
    assert main(words) == 0
    said = capsys.readouterr().out
    for line in str(advice).splitlines()[:3]:
        assert line in said
    assert main([*words, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [one["name"] for one in document["choices"]] == [one.name for one in advice.choices]


@pytest.mark.parametrize("name", ["my $(touch x) model.json", "a\nb'\x1b[31m.json", "=x;.json"])
def test_the_command_that_is_printed_names_the_file_whatever_its_name(name, tmp_path, capsys):
    lm.read("example:lenet").save(tmp_path / name)
    file = str(tmp_path / name)
    assert main(["advise", file, "--cluster", "2xV100-NVLink", "--targets", "ddp"]) == 0
    said = capsys.readouterr().out
    lines = [line for line in said.splitlines() if "loadmaster place" in line]
    assert len(lines) == 2
    for line in lines:
        command = line[line.index("loadmaster place") :]
        print_words = f"loadmaster() {{ printf '%s\\0' \"$@\"; }}; {command}"
        bash = shutil.which("bash") or pytest.skip("needs bash")
        words = subprocess.run([bash, "-c", print_words], capture_output=True, check=True, env={})
        begun = words.stdout.decode().split("\0")[:4]
        assert begun == ["place", file, "--cluster", "2xV100-NVLink"]


def test_words_of_a_plan_say_replicas_and_devices():
    graph, cluster = lm.read("example:lenet"), lm.Cluster.preset("2xV100-NVLink")
    words = {
        method: Choice(method, "", lm.place(graph, cluster, method)).words
        for method in ("single", "round-robin", "data-parallel")
    }
    assert words == {
        "single": "one device",
        "round-robin": "whole ops on 2 devices",
        "data-parallel": "DDP over 2",
    }


def test_an_unknown_target_is_refused_before_any_work():
    with pytest.raises(lm.InputError, match="did you mean 'ddp'"):
        lm.advise("example:lenet", "2xV100-NVLink", targets=["dpp"])


def test_a_summary_says_where_times_are_from():
    plan = lm.place("example:lenet", "2xV100-NVLink", "heft", costs="roofline")
    assert "times        of ops: 100% roofline; `loadmaster calibrate`" in str(plan)


def test_plans_side_by_side_are_held_against_one_device():
    """At the prices of a method: those of a target that launches nothing are its own."""
    found = lm.compare("example:lenet", "2xV100-NVLink", ["single"], targets=["graph"])
    rows = {line.split("  ")[0]: line for line in str(found).splitlines()}
    single = found.plans["single"].makespan
    assert "1.00 x" in rows["single"]
    assert f"{single / found.plans['target graph'].makespan:.2f} x" in rows["target graph"]


@pytest.mark.parametrize("name", ["alexnet", pytest.param("gpt3-330m", marks=pytest.mark.nightly)])
def test_every_choice_is_the_plan_that_its_command_makes(name):
    """What one plan leaves known of the graph changes no other."""
    graph, cluster = lm.read(f"example:{name}"), lm.Cluster.preset("4xV100-PCIe")
    for choice in lm.advise(graph, cluster, targets=["ddp", "fsdp", "dtensor"]).choices:
        target = None if choice.name == "auto" else choice.name
        plan = lm.place(graph, cluster, target=target)
        assert plan.makespan == choice.plan.makespan
        assert plan.devices.tolist() == choice.plan.devices.tolist()
        assert plan.priority.tolist() == choice.plan.priority.tolist()


def test_a_command_names_what_was_given_by_name_and_nothing_that_no_file_has():
    given, made = "example:lenet", lm.read("example:lenet")
    of_names = lm.advise(given, "2xV100-NVLink", targets=[])
    of_objects = lm.advise(made, lm.Cluster.preset("2xV100-NVLink"), targets=[])
    words = [one.command(one.choices[0]) for one in (of_names, of_objects)]
    assert words == [
        "loadmaster place example:lenet --cluster 2xV100-NVLink -o plan.json",
        "loadmaster place GRAPH --cluster CLUSTER -o plan.json",
    ]
