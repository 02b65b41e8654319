"""The words of the package: docstrings begin with the noun or the verb, a class name means one
thing, variables say what they hold, and names that were given up do not come back.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

from sources import PACKAGE, trees

#: Words that begin a question, or a clause that leaves the reader to guess the noun.
QUESTIONS = {"What", "Whether", "How", "Which", "Where"}

#: Words that the field has others for: spec, recomputation, estimate, virtual stages.
GIVEN_UP = re.compile(r"\b(lays|Lay|MadeAnew|made_anew|Mirrors?|mirror_of|n_chunks)\b")

#: Words that say of a thing only that somebody made it, found it or gave it, not what it is.
SAY_NOTHING = {"found", "made", "told", "given", "what"}

#: Fields of results that users read, and that documents have as keys.
OF_RESULTS = {
    "AccountRow.what",
    "Best.what",
    "Considered.what",
    "Finding.found",
    "Finding.what",
    "Remedy.what",
    "SpecChange.what",
}

Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def test_docstrings_begin_with_the_noun_or_the_verb():
    wrong = [
        f"{file}: {text.splitlines()[0]}"
        for file, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, Documented) and (text := ast.get_docstring(node))
        if re.split(r"\W", text, maxsplit=1)[0] in QUESTIONS
    ]
    assert wrong == []


def test_a_class_name_means_one_thing():
    homes = defaultdict(list)
    for file, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
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


def test_variables_and_fields_are_named_by_what_they_hold():
    wrong = [
        f"{file}:{node.lineno} {name}"
        for file, tree in trees().items()
        for node in ast.walk(tree)
        if (name := stored(node)) in SAY_NOTHING
        and not any(f"{of}.{name}" in OF_RESULTS for of in classes_around(tree, node))
    ]
    assert wrong == []


def stored(node: ast.AST) -> str:
    """The name of the variable, parameter or attribute that a node sets; empty: it sets none."""
    if isinstance(node, ast.arg):
        return node.arg
    if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
        return node.id if isinstance(node, ast.Name) else node.attr
    return ""


def classes_around(tree: ast.Module, node: ast.AST) -> list[str]:
    """The classes of which a node is a field."""
    return [
        one.name
        for one in ast.walk(tree)
        if isinstance(one, ast.ClassDef)
        and any(isinstance(field, ast.AnnAssign) and field.target is node for field in one.body)
    ]


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


#: Functions whose keywords users write: parts of the face, and methods and systems, whose keywords
#: are their options.
WITH_OPTIONS = {
    "judge/coarsening.py coarsen",
    "judge/simulation.py simulate",
    "model/cluster.py __init__",
    "readers/pytorch/capture.py capture",
    "running/measured/together.py measure_ops",
    "running/run.py run",
    "running/tape/record.py record",
    "strategies/auto/auto.py place",
    "strategies/exact/cpsat.py place",
    "strategies/exact/ilp.py place",
    "strategies/exact/moirai.py place",
    "strategies/rivals/trials.py by_trials",
    "systems/accelerate_config/plan.py plan",
    "systems/dtensor/plan.py place",
    "systems/lightning/plan.py plan",
    "systems/maxtext/plan.py flax",
    "systems/maxtext/plan.py maxtext",
    "systems/megatron/plan.py megatron",
    "systems/ray/plan.py plan",
    "systems/torchtitan/plan.py torchtitan",
    "systems/trainer/plan.py plan",
    "tasks/calibrate.py calibrate",
    "tasks/compare.py compare",
    "tasks/place.py place",
    "tasks/sweep.py sweep",
    "tasks/what_if.py what_if",
}


def test_functions_take_at_most_7_parameters_but_those_whose_options_users_write():
    wide = {
        f"{file} {node.name}"
        for file, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and n_parameters(node) > 7
    }
    assert wide == WITH_OPTIONS


def n_parameters(function: ast.FunctionDef) -> int:
    """The number of a function's parameters, but for the object that a method is of."""
    names = [one.arg for one in (*function.args.posonlyargs, *function.args.args)]
    return len(names[names[:1] in (["self"], ["cls"]) :]) + len(function.args.kwonlyargs)


def skips(file: Path) -> list[int]:
    """Lines of a file that the formatter is told to leave alone."""
    lines = file.read_text().splitlines()
    return [i for i, line in enumerate(lines, start=1) if re.search(r"# fmt: (skip|off)", line)]
