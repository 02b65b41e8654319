"""The words of the package: docstrings begin with the noun or the verb, a public class name means
one thing, and names that were given up do not come back.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

import loadmaster

PACKAGE = Path(loadmaster.__file__).parent

#: Words that begin a question, or a clause that leaves the reader to guess the noun.
QUESTIONS = {"What", "Whether", "How", "Which", "Where"}

#: Words that the field has others for: spec, recomputation, estimate, virtual stages.
GIVEN_UP = re.compile(r"\b(lays|Lay|MadeAnew|made_anew|Mirrors?|mirror_of|n_chunks)\b")

Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@cache
def trees() -> dict[str, ast.Module]:
    """Every file of the package, parsed."""
    files = sorted(PACKAGE.rglob("*.py"))
    return {str(file.relative_to(PACKAGE)): ast.parse(file.read_text()) for file in files}


def test_docstrings_begin_with_the_noun_or_the_verb():
    wrong = [
        f"{file}: {text.splitlines()[0]}"
        for file, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, Documented) and (text := ast.get_docstring(node))
        if re.split(r"\W", text, maxsplit=1)[0] in QUESTIONS
    ]
    assert wrong == []


def test_a_public_class_name_means_one_thing():
    homes = defaultdict(list)
    for file, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(file)
    assert {name: files for name, files in homes.items() if len(files) > 1} == {}


def test_names_that_were_given_up_do_not_come_back():
    names = defaultdict(set)
    for file, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Name):
                names[node.id].add(file)
            elif isinstance(node, ast.ClassDef | ast.FunctionDef):
                names[node.name].add(file)
    assert {name: files for name, files in names.items() if GIVEN_UP.fullmatch(name)} == {}


def test_no_function_is_kept_short_by_leaving_it_unformatted():
    skipped = [
        f"{file}:{line}"
        for file, tree in trees().items()
        for line in skips(PACKAGE / file)
        if any(
            node.lineno <= line <= (node.end_lineno or 0)
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        )
    ]
    assert skipped == []


def skips(file: Path) -> list[int]:
    """Lines of a file that the formatter is told to leave alone."""
    lines = file.read_text().splitlines()
    return [i for i, line in enumerate(lines, start=1) if re.search(r"# fmt: (skip|off)", line)]
