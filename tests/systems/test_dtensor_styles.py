"""Styles of modules that the planner chose are what the writer writes."""

from __future__ import annotations

from dataclasses import replace

import pytest

import loadmaster as lm
from loadmaster.base.errors import InputError
from loadmaster.systems.dtensor.module_styles import Forward


@pytest.fixture(scope="module")
def plan():
    graph, cluster = lm.read("example:gpt3-330m"), lm.Cluster.preset("8xH100-NVLink")
    return lm.place(graph, cluster, target="dtensor", tp=2)


def test_the_writer_finds_no_styles_anew(plan, tmp_path, monkeypatch):
    text = lm.writers.dtensor(plan)
    plan.save(tmp_path / "plan.json")

    def refuse(*arguments, **options):
        raise AssertionError("the solver of styles ran")

    monkeypatch.setattr(Forward, "__init__", refuse)
    monkeypatch.setattr(Forward, "styled", refuse)
    assert lm.writers.dtensor(plan) == text
    assert lm.writers.dtensor(lm.Plan.load(tmp_path / "plan.json")) == text
    with pytest.raises(AssertionError, match="ran"):
        lm.writers.dtensor(replace(plan, for_writer={}))


def test_the_labels_of_a_plan_say_the_same_styles(plan):
    assert lm.writers.dtensor(replace(plan, for_writer={})) == lm.writers.dtensor(plan)


@pytest.mark.parametrize(
    "styles",
    [
        ["h.0"],
        {"h.0": None},
        {"h.0": {"kind": "columns"}},
        {"h.0": {"kind": "()", "takes": None, "gives": None, "parts": 1, "is_local": True}},
    ],
)
def test_damaged_styles_are_refused(plan, styles):
    with pytest.raises(InputError, match="the plan is damaged"):
        lm.writers.dtensor(replace(plan, for_writer={"styles": styles}))
