"""Commands that messages show: each is one that the command line takes, whole and quoted."""

from __future__ import annotations

import argparse
import ast
import re
import shlex
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import loadmaster
from loadmaster.base.errors import InputError
from loadmaster.base.text import shortened
from loadmaster.cli import options
from loadmaster.cli.parser import parsed, parser
from loadmaster.plans.advice import Advice, Choice
from loadmaster.strategies.options import ARGUMENTS, no_option
from loadmaster.tasks.place import place

ROOT = Path(loadmaster.__file__).parent

COMMANDS = next(
    action.choices for action in parser()._actions if isinstance(action, argparse._SubParsersAction)
)

#: A command within a text, up to what cannot belong to it.
SHOWN = re.compile(rf"loadmaster (?:{'|'.join(COMMANDS)})\b[^`\n;,)\"]*")


def texts(file):
    """The texts of a file's code, with a word for each thing that is filled in; no docstrings."""
    code = file.read_text(encoding="utf-8")
    if "loadmaster " not in code:
        return
    tree = ast.parse(code)
    inside = {id(one) for n in ast.walk(tree) if isinstance(n, ast.JoinedStr) for one in n.values}
    inside |= {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(v.value if isinstance(v, ast.Constant) else "new" for v in node.values)
        elif isinstance(node, ast.Constant) and id(node) not in inside:
            yield str(node.value)


def refusal(words):
    """What the command line says against the words of a command; nothing where it takes them."""
    try:
        parsed(words)
    except InputError as error:
        return str(error)
    return ""


def test_every_command_in_the_code_is_one():
    shown = {
        m[0] for file in ROOT.rglob("*.py") for text in texts(file) for m in SHOWN.finditer(text)
    }
    assert len(shown) > 12
    for command in sorted(shown):
        words = shlex.split(command)[1:]
        why = refusal(words)
        # A command that is only named lacks what it needs.
        assert not why or (len(words) == 1 and "arguments are required" in why), f"{command}: {why}"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_example_of_help_is_a_command(name):
    for line in (COMMANDS[name].epilog or "").splitlines()[1:]:
        assert refusal(shlex.split(line)[1:]) == "", line


#: A path that somebody has, and a value of a flag, without what a terminal would obey: words of a
#: shell have escapes of bash for that, which ``shlex`` does not read.
CHARACTERS = st.characters(codec="utf-8", exclude_categories=("C", "Z")) | st.sampled_from(
    " '\"$()`"
)
NAMES = st.text(CHARACTERS, min_size=1, max_size=12)
PATHS = NAMES.filter(lambda name: not name.startswith("-"))


@given(
    PATHS,
    PATHS,
    st.lists(NAMES, max_size=2),
    st.one_of(st.none(), st.integers(1, 99)),
    st.booleans(),
)
@settings(max_examples=25, deadline=None)
def test_a_command_of_advice_is_what_was_given_whatever_its_names(
    graph, cluster, fetched, batch, json
):
    words = ["advise", graph, "--cluster", cluster, *[f"--fetch={one}" for one in fetched]]
    words += [f"--batch={batch}"] * (batch is not None) + ["--json"] * json
    arguments = parsed(words)
    given_too = options.words_of(arguments, but=("cluster", "targets", "json"))
    advice = Advice((), {}, arguments.graph, arguments.cluster, tuple(given_too))
    command = advice.command(Choice("ddp", " --target ddp", None))
    placed = parsed(shlex.split(command)[1:])
    assert (placed.graph, placed.cluster, placed.target) == (graph, cluster, "ddp")
    assert (placed.batch, placed.fetch or []) == (batch, fetched)


@given(st.lists(st.text("abcdefgh", min_size=1, max_size=30), min_size=1, max_size=400))
def test_what_is_left_out_of_a_message_is_whole_words(words):
    text = " ".join(words)
    message = str(InputError(text))
    cut = re.fullmatch(r"(.*) \((\d+) characters left out\) (.*)", message)
    if cut is None:
        assert message == text
        return
    start, left, end = cut[1], int(cut[2]), cut[3]
    assert len(message) <= 2000
    assert text == start + text[len(start) : len(start) + left] + end
    assert set(start.split() + end.split()) <= set(words)


@given(st.text(max_size=300), st.integers(40, 60))
def test_a_shortened_text_says_how_much_it_lacks(text, most):
    short = shortened(text, most)
    if len(text) <= most:
        assert short == text
    else:
        kept = len(text) - int(re.findall(r"\((\d+) characters left out\)", short)[-1])
        assert 0 < kept <= 40


@given(st.text(st.sampled_from("ab \n\r\t"), max_size=40))
def test_a_message_is_one_line(text):
    """That of another library may have several: nobody reads a backslash and an n."""
    message = str(InputError(f"cannot read it: {text}"))
    assert "\n" not in message
    assert "\r" not in message
    assert message.split() == f"cannot read it: {text}".split()


def flags(command):
    return {one.removeprefix("--") for a in COMMANDS[command]._actions for one in a.option_strings}


def test_arguments_beside_options_are_those_of_place():
    import inspect

    said = {name.replace("_", "-") for name in ARGUMENTS}
    assert said <= flags("place")
    keywords = inspect.signature(place).parameters.keys() - {
        "graph",
        "refine",
        "progress",
        "options",
    }
    assert keywords <= set(ARGUMENTS)


@pytest.mark.parametrize("argument", [name for name in ARGUMENTS if len(name) > 4])
def test_an_option_that_is_meant_to_be_an_argument_is_told_so(argument):
    for at in range(len(argument)):
        wrong = argument[:at] + argument[at + 1 :]
        said = str(no_option(f"method 'heft' has no option {wrong!r}", wrong, ["rounds"]))
        assert f"did you mean --{argument.replace('_', '-')}, an argument of its own?" in said
    assert "an argument of its own" in str(no_option("", argument, ["rounds"]))
