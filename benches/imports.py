"""Lists cycles of imports in the package, those inside of functions counted.

    python benches/imports.py [ROOT] [--json]

A file imports another where a statement of it does, at its head or inside of a function. An import
for type checkers alone does not count. Nor does that of a one-line method of ``Plan``,
``Measured``, ``Cluster`` or ``OpGraph``: its body imports one function and calls it. Such a method
hangs a function of a floor above on a type of the data, for its users' sake. Needs only Python's
own library.
"""

from __future__ import annotations

import argparse
import ast
import json
from collections.abc import Iterator
from pathlib import Path

#: The types on which functions of the floors above hang as methods.
HUNG_ON = {"Plan", "Measured", "Cluster", "OpGraph"}

PACKAGE = "loadmaster"

Functions = ast.FunctionDef | ast.AsyncFunctionDef


def graph_of_imports(folder: Path) -> dict[str, set[str]]:
    """The modules that each module under a package's folder imports, by their dotted names."""
    paths = {module_name(path, folder): path for path in sorted(folder.rglob("*.py"))}
    graph = {}
    for name, path in paths.items():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        imported = {module for node in statements(tree) for module in modules_of(node, set(paths))}
        graph[name] = imported - {name}
    return graph


def module_name(path: Path, folder: Path) -> str:
    """The dotted name of a file under the package's folder."""
    parts = path.relative_to(folder.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def statements(node: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """The imports under a node that count."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child
        elif isinstance(child, ast.If) and is_for_type_checkers(child):
            for other in child.orelse:
                yield from statements(other)
        elif isinstance(child, ast.ClassDef) and child.name in HUNG_ON:
            for member in child.body:
                if not (isinstance(member, Functions) and is_one_line(member)):
                    yield from statements(member)
        else:
            yield from statements(child)


def is_for_type_checkers(node: ast.If) -> bool:
    """True of ``if TYPE_CHECKING:``."""
    return isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def is_one_line(function: Functions) -> bool:
    """True of a function that is a docstring, one import, and one statement more."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return len(body) == 2 and isinstance(body[0], ast.ImportFrom)


def modules_of(node: ast.Import | ast.ImportFrom, modules: set[str]) -> Iterator[str]:
    """The modules of the package that an import loads."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if alias.name in modules)
        return
    assert node.level == 0, "the package has no relative imports"
    if node.module not in modules:
        return
    for alias in node.names:
        whole = f"{node.module}.{alias.name}"
        yield whole if whole in modules else node.module


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """The sets of modules that import each other, largest first: Tarjan's components."""
    index: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    components: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = lowest[name] = len(index)
        stack.append(name)
        for other in sorted(graph[name]):
            if other not in index:
                visit(other)
            if other in stack:
                lowest[name] = min(lowest[name], lowest[other])
        if lowest[name] == index[name]:
            start = stack.index(name)
            components.append(sorted(stack[start:]))
            del stack[start:]

    for name in sorted(graph):
        if name not in index:
            visit(name)
    return sorted((c for c in components if len(c) > 1), key=lambda c: (-len(c), c))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("root", type=Path, nargs="?", default=Path(__file__).parents[1])
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    graph = graph_of_imports(arguments.root.resolve() / "python" / PACKAGE)
    if arguments.json:
        print(json.dumps(cycles(graph)))
        return
    for cycle in cycles(graph):
        print(f"{len(cycle)} files import each other:")
        for name in cycle:
            inside = sorted(other for other in graph[name] if other in cycle)
            print(f"    {name}: {', '.join(inside)}")


if __name__ == "__main__":
    main()
