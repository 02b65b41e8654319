"""Options of methods and targets: derived from functions that plan, checked, listed, printed."""

from __future__ import annotations

import dataclasses
import json
from typing import Literal

import pytest

import loadmaster as lm
from loadmaster.cli import main
from loadmaster.strategies.options import UNSAID, check_options, listed, options_type
from loadmaster.strategies.registry import METHODS, options_of
from loadmaster.systems.registry import SYSTEMS, planned_for


def planner(problem, *, way: Literal["a", "b"] = "a", most: int | None = None, progress=None):
    """A function that plans.

    Parameters
    ----------
    way : "a" or "b"
        The way
        that it goes.
    most : int, optional
        A number.

    Raises
    ------
    InputError
        Never.
    """


def test_a_dataclass_is_derived_from_the_signature_and_the_docstring():
    made = options_type(planner)
    assert made(most=3) == made(way="a", most=3)
    with pytest.raises(dataclasses.FrozenInstanceError):
        made().way = "b"
    way, most = listed(made)
    assert (way.name, way.choices, way.default, way.text) == (
        "way", ("a", "b"), "a", "The way that it goes.",
    )  # fmt: skip
    assert (most.choices, most.wants, most.text) == ((), "an integer or None", "A number.")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"way": "c"}, "way is 'c': wants one of a, b"),
        ({"way": 1}, "way is 1: wants one of a, b"),
        ({"most": 1.5}, "most is 1.5: wants an integer or None"),
        ({"most": True}, "most is True: wants an integer or None"),
        ({"mots": 1}, "method 'mine' has no option 'mots'"),
        ({"progress": 1}, "method 'mine' has no option 'progress'"),
    ],
)
def test_options_of_another_name_or_kind_are_refused(options, message):
    with pytest.raises(lm.InputError, match=message):
        check_options("method 'mine'", planner, options)


class Called:
    """An object that plans."""

    def __call__(self, problem, *, most: int = 3): ...


class Unresolved:
    """An object whose types are not there."""

    def __call__(self, problem, *, most: NoSuchType = 3): ...  # noqa: F821


@pytest.mark.parametrize(("called", "wants"), [(Called(), "an integer"), (Unresolved(), "object")])
def test_an_object_that_is_called_has_options(called, wants):
    (option,) = listed(options_type(called))
    assert (option.name, option.default, option.wants) == ("most", 3, wants)


@pytest.mark.parametrize("name", METHODS)
def test_the_defaults_of_every_method_are_of_the_kind_that_it_wants(name):
    options = options_type(METHODS[name][0])()
    for option in options_of(name):
        if option.default is not UNSAID:
            option.check(getattr(options, option.name))


@pytest.mark.parametrize("name", planned_for())
def test_the_defaults_of_every_target_are_of_the_kind_that_it_wants(name):
    options = options_type(SYSTEMS[name].plan)()
    for option in SYSTEMS[name].options:
        option.check(getattr(options, option.name))


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"method": "heft", "contention": "no"}, "contention is 'no': wants True or False"),
        ({"method": "heft", "rounds": 1.5}, "rounds is 1.5: wants an integer"),
        ({"target": "ddp", "replicas": "two"}, "replicas is 'two': wants an integer or None"),
    ],
)
def test_place_refuses_a_value_of_another_kind_before_any_work(asked, message):
    def progress(stage, best):
        pytest.fail("it began")

    with pytest.raises(lm.InputError, match=message):
        lm.place("example:lenet", "2xV100-NVLink", progress=progress, **asked)


def test_the_command_line_says_the_options_of_a_method_and_of_a_target(capsys):
    assert main(["methods", "heft"]) == 0
    said = capsys.readouterr().out
    assert "--option contention" in said
    assert "True or False; default: True" in said
    assert main(["targets", "ddp"]) == 0
    assert "--option bucket_mb" in capsys.readouterr().out
    assert main(["methods", "--json"]) == 0
    listed_names = json.loads(capsys.readouterr().out)["heft"]["options"]
    assert listed_names == [option.name for option in options_of("heft")]
