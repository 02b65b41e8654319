"""No text that is made for people steers the program: data are values, words are made of them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest
from sources import trees

from loadmaster.strategies.kinds import Kind

#: Names of variables and attributes that hold a text for people, or several.
PRINTED = {"bound_source", "ended", "limit", "made_by", "note", "notes", "reason", "warning", "why"}

#: Methods that look into a text.
LOOKING = {
    "startswith", "endswith", "removeprefix", "removesuffix", "partition", "rpartition", "split",
    "find", "index", "count",
}  # fmt: skip

#: Words for kinds of plans, which stand in the enumeration alone.
KINDS = {kind.value for kind in Kind if " " in kind.value}

#: A reason of the simulator is one of a few codes, and no text.
CODES = {("plans/explain.py", "reason")}


def name_of(node: ast.expr) -> str:
    """The last name in an expression that leads to a value: ``limit`` of ``steady.limit``."""
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Subscript):
        return name_of(node.value)
    return node.id if isinstance(node, ast.Name) else ""


def is_text(node: ast.expr) -> bool:
    """True of a text that the source writes out, or of several; the empty one asks for none."""
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        return any(map(is_text, node.elts))
    if isinstance(node, ast.JoinedStr):
        return True
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value != ""


def steering(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Lines, and names of printed texts, where one is looked into or compared."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in LOOKING:
                yield node.lineno, name_of(node.func.value)
        elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant | ast.UnaryOp):
            yield node.lineno, name_of(node.value)
        elif isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            if any(map(is_text, sides)):
                for side in sides:
                    yield node.lineno, name_of(side)
            for operator, right in zip(node.ops, node.comparators, strict=True):
                if isinstance(operator, ast.In | ast.NotIn):
                    yield node.lineno, name_of(right)


def compared_kinds(tree: ast.AST) -> Iterator[int]:
    """Lines where something is compared with the words for a kind of plans."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            for side in (node.left, *node.comparators):
                for part in ast.walk(side):
                    if isinstance(part, ast.Constant) and part.value in KINDS:
                        yield node.lineno


@pytest.mark.parametrize(
    "source",
    [
        'steady.limit.startswith("memory")',
        '"update" in plan.limit',
        "INTERRUPTED in candidate.notes",
        'note == "too busy"',
        "one.notes[0]",
        "notes[-1]",
        'why in ("full", "over")',
    ],
)
def test_a_look_into_a_printed_text_is_seen(source):
    assert PRINTED & {name for _, name in steering(ast.parse(source))}


@pytest.mark.parametrize("source", ["limit < 3", "note is None", 'notes == ""', "(*notes, why)"])
def test_what_looks_into_no_text_is_free(source):
    assert not PRINTED & {name for _, name in steering(ast.parse(source))}


def test_no_printed_text_steers_the_program():
    wrong = []
    for file, tree in trees().items():
        for line, name in steering(tree):
            if name in PRINTED and (file, name) not in CODES:
                wrong.append(f"{file}:{line}: {name}")
        wrong += [f"{file}:{line}: a kind of plans" for line in compared_kinds(tree)]
    assert wrong == []


def test_no_strategy_holds_arguments_of_the_command_line():
    """It holds a method and its options; commands are made of these where they are printed."""
    wrong = [
        f"{file}:{node.lineno}: {node.value}"
        for file, tree in trees().items()
        if file.startswith("strategies/")
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and re.match(r"\s*--[a-z]", node.value)
    ]
    assert wrong == []
