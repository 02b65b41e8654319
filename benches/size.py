"""Counts lines of code, and finds functions that are long or take many arguments.

    python benches/size.py [ROOT] [--json]

A line counts where it has code: blank lines, comments, docstrings and tests do not. Counted is the
repository at ``ROOT`` (this one, if absent): of Python ``python/``, of Rust the folders ``src``
under ``rust/``, without modules that are built for tests only.

Four lists follow the totals: the largest files; functions of more than 60 such lines, in both
languages; functions of the binding (``rust/fast``) with more than 7 arguments; public Python
functions with more than 6 parameters that can be given by position. Public is what the face or a
module of the face names in ``__all__``, with the methods of classes; functions are found by name,
in all files but the command line's. Needs only Python's own library.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import re
import tokenize
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

#: Most lines of a function, arguments of one of the binding, positional parameters of a public one.
MOST_LINES, MOST_ARGUMENTS, MOST_POSITIONAL = 60, 7, 6

#: How many of the largest files are listed.
LARGEST = 10

#: Tokens of Python that are no code.
NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}

#: What a line of Rust may have that is no code, or hides braces: comments, strings, characters.
HIDDEN = re.compile(
    r"""//[^\n]*|/\*.*?\*/|r(?P<hashes>\#*)".*?"(?P=hashes)|"(?:\\.|[^"\\])*"|'(?:\\[^']+|[^'\\])'""",
    re.DOTALL,
)

Functions = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Function:
    """A function with its file, its lines of code, and its arguments that may be positional."""

    file: str
    name: str
    lines: int
    arguments: int


@dataclass(frozen=True)
class Source:
    """A file with its lines of code and its functions."""

    file: str
    lines: int
    functions: list[Function]


# -- Python --------------------------------------------------------------------------------------


def python_source(path: Path, root: Path) -> Source:
    """A file of Python."""
    text = path.read_text()
    tree = ast.parse(text)
    code = code_lines(text) - docstring_lines(tree)
    file = str(path.relative_to(root))
    functions = []
    for name, node in python_functions(tree, ""):
        first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
        lines = len(code.intersection(range(first, node.end_lineno + 1)))
        functions.append(Function(file, name, lines, positional(node, "." in name)))
    return Source(file, len(code), functions)


def code_lines(text: str) -> set[int]:
    """Numbers of the lines that have a token of code."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    return lines


def docstring_lines(tree: ast.AST) -> set[int]:
    """Numbers of the lines of docstrings."""
    lines: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, Functions)):
            first = node.body[0] if node.body else None
            value = first.value if isinstance(first, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                lines.update(range(value.lineno, value.end_lineno + 1))
    return lines


def python_functions(node: ast.AST, owner: str) -> Iterator[tuple[str, Functions]]:
    """All functions with their names, those of classes and of functions as ``owner.name``."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.ClassDef, Functions)):
            name = f"{owner}.{child.name}" if owner else child.name
            if not isinstance(child, ast.ClassDef):
                yield name, child
            yield from python_functions(child, name)
        else:
            yield from python_functions(child, owner)


def positional(node: Functions, is_member: bool) -> int:
    """Parameters that may be given by position, without ``self`` and ``cls``."""
    names = [a.arg for a in (*node.args.posonlyargs, *node.args.args)]
    return len(names) - (is_member and names[:1] in (["self"], ["cls"]))


def public(root: Path, sources: list[Source]) -> list[Function]:
    """The functions that users call: see the head of this file."""
    package = root / "python" / "loadmaster"
    face = exported(package / "__init__.py")
    named = {*face}
    for name in face:
        for module in (package / name / "__init__.py", package / f"{name}.py"):
            named.update(exported(module) if module.is_file() else [])
    found = []
    for source in sources:
        if "/cli/" not in source.file:
            found += [f for f in source.functions if is_public(f.name.split("."), named)]
    return found


def is_public(parts: list[str], named: set[str]) -> bool:
    """Whether a function of such a name, in parts, is one of these or a method of one of these."""
    return parts[0] in named and not any(p.startswith("_") and p != "__init__" for p in parts)


def exported(path: Path) -> list[str]:
    """The names in ``__all__`` of a module."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            return list(ast.literal_eval(node.value))
    return []


# -- Rust ----------------------------------------------------------------------------------------


def rust_source(path: Path, root: Path) -> Source:
    """A file of Rust."""
    # Arrows are no brackets.
    text = without_hidden(path.read_text()).replace("->", "  ").replace("=>", "  ")
    text = without_tests(text)
    file = str(path.relative_to(root))
    functions = []
    for match in re.finditer(r"\bfn\s+(\w+)", text):
        generic = closing(text, match.end(), "<>") if text[match.end()] == "<" else match.end()
        end = closing(text, generic, "()")
        body = re.compile(r"[{;]").search(text, end)
        if body is None or body[0] == ";":
            continue
        start = text.rindex("\n", 0, match.start()) + 1
        whole = text[start : closing(text, body.start(), "{}")]
        arguments = rust_arguments(text[generic + 1 : end - 1])
        functions.append(Function(file, match[1], filled(whole), arguments))
    return Source(file, filled(text), functions)


def filled(text: str) -> int:
    """Number of lines that are not blank."""
    return sum(bool(line.strip()) for line in text.splitlines())


def without_hidden(text: str) -> str:
    """Rust without comments, and with strings and characters emptied; lines stay lines."""

    def emptied(match: re.Match[str]) -> str:
        lines = match[0].count("\n")
        is_comment = match[0].startswith(("//", "/*"))
        # A string is code on each of its lines.
        return "\n" * lines if is_comment else "_\n" * lines + "_"

    return HIDDEN.sub(emptied, text)


def without_tests(text: str) -> str:
    """Rust without items that are built for tests only."""
    while (start := text.find("#[cfg(test)]")) >= 0:
        opening = re.compile(r"[{;]").search(text, start)
        assert opening is not None
        is_block = opening[0] == "{"
        end = closing(text, opening.start(), "{}") if is_block else opening.end()
        text = text[:start] + text[end:]
    return text


def closing(text: str, start: int, pair: str) -> int:
    """Where the bracket that opens at ``start`` has closed."""
    depth = 0
    for i in range(start, len(text)):
        depth += (text[i] == pair[0]) - (text[i] == pair[1])
        if depth == 0:
            return i + 1
    raise ValueError(f"{pair[0]} at {start} is never closed")


def rust_arguments(text: str) -> int:
    """Number of arguments between the parentheses; ``self`` is none."""
    depth, parts = 0, [""]
    for c in text:
        depth += (c in "([<{") - (c in ")]}>")
        if c == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += c
    given = [part.strip() for part in parts]
    return sum(
        bool(part) and re.fullmatch(r"&?('\w+ )?(mut )?self", part) is None for part in given
    )


# -- the report ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Report:
    """All figures of a tree."""

    python: int
    rust: int
    largest: list[tuple[str, int]]
    long: list[Function]
    many_arguments: list[Function]
    many_positional: list[Function]


def report(root: Path) -> Report:
    """What a tree comes to."""
    python = [python_source(path, root) for path in sorted((root / "python").rglob("*.py"))]
    files = [path for path in sorted((root / "rust").rglob("*.rs")) if "/src/" in str(path)]
    rust = [rust_source(path, root) for path in files]
    sources = [*python, *rust]
    functions = [function for source in sources for function in source.functions]
    largest = sorted(sources, key=lambda source: -source.lines)[:LARGEST]
    long = [f for f in functions if f.lines > MOST_LINES]
    return Report(
        python=sum(source.lines for source in python),
        rust=sum(source.lines for source in rust),
        largest=[(source.file, source.lines) for source in largest],
        long=sorted(long, key=lambda f: -f.lines),
        many_arguments=[
            f for f in functions if f.file.startswith("rust/fast/") and f.arguments > MOST_ARGUMENTS
        ],
        many_positional=[f for f in public(root, python) if f.arguments > MOST_POSITIONAL],
    )


def show(found: Report) -> None:
    """Prints a report for a person."""
    print(f"{found.python:7,} lines of Python\n{found.rust:7,} lines of Rust")
    print(f"\nThe {LARGEST} largest files")
    for file, lines in found.largest:
        print(f"{lines:7,}  {file}")
    print(f"\n{len(found.long)} functions of more than {MOST_LINES} lines")
    for f in found.long:
        print(f"{f.lines:7}  {f.file}: {f.name}")
    many = found.many_arguments
    print(f"\n{len(many)} functions of the binding with more than {MOST_ARGUMENTS} arguments")
    for f in many:
        print(f"{f.arguments:7}  {f.file}: {f.name}")
    many = found.many_positional
    print(f"\n{len(many)} public functions with more than {MOST_POSITIONAL} positional parameters")
    for f in many:
        print(f"{f.arguments:7}  {f.file}: {f.name}")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("root", type=Path, nargs="?", default=Path(__file__).parents[1])
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    found = report(arguments.root.resolve())
    if arguments.json:
        print(json.dumps(asdict(found), indent=1))
    else:
        show(found)


if __name__ == "__main__":
    main()
