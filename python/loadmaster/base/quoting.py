r"""Text of others within files and commands: for each language one function that quotes.

Names of ops, modules and devices come from files of others, and may have quotes, line breaks or
commands in them. A file that is code is a template that :func:`python_file` or :func:`shell_file`
fills in: what goes in is quoted, unless it is :class:`Code`.
"""

from __future__ import annotations

import html
import json
import keyword
import re
import shlex
from collections.abc import Iterable, Mapping
from string import Formatter
from typing import Any

from loadmaster.base.text import OBEYED, escaped

#: Characters that XML cannot hold.
_NO_XML = re.compile("[\0-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")

#: Breaks of lines, and tabs, that a parser of XML would change.
_CHANGED_BY_XML = str.maketrans({"\r": "&#13;", "\n": "&#10;", "\t": "&#9;"})

#: Characters by which Markdown makes links, code, emphasis and cells of tables.
_OF_MARKDOWN = re.compile(r"[\\\[\]`*|]")

#: Words that are truth values or null in YAML.
_WORDS_OF_YAML = {"y", "n", "yes", "no", "on", "off", "true", "false", "null"}

#: Types whose ``repr`` is a literal of Python.
_PLAIN = (str, int, float, bool, type(None))


class Code(str):
    """Text that is code of the language that it goes into, and is not quoted."""

    __slots__ = ()


def python(value: Any) -> Code:
    r"""A literal of Python: of a text, a number, None, or lists, tuples and mappings of them.

    >>> print(python({"a": ("it's", None)}))
    {'a': ("it's", None)}
    >>> print(python("x'\0\u2028"))
    "x'\x00\u2028"
    """
    return Code(_literal(value))


def _literal(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{_literal(k)}: {_literal(v)}' for k, v in value.items())}}}"
    if isinstance(value, tuple):
        return f"({', '.join(map(_literal, value))}{',' * (len(value) == 1)})"
    if isinstance(value, list):
        return f"[{', '.join(map(_literal, value))}]"
    if type(value) not in _PLAIN or value != value or value in (float("inf"), -float("inf")):
        raise TypeError(f"{value!r} has no literal in Python")
    return repr(value)


def python_name(text: object, otherwise: str) -> Code:
    """A text that is a name in Python and begins with a capital, as classes do; else another one.

    >>> python_name("AdamW", "SGD"), python_name("SGD()", "Adam"), python_name("None", "Adam")
    ('AdamW', 'Adam', 'Adam')
    """
    name = str(text)
    is_name = name.isascii() and name.isidentifier() and not keyword.iskeyword(name)
    return Code(name if is_name and name[0].isupper() else otherwise)


def python_words(text: str) -> Code:
    r"""Words within a docstring or another text between three double quotes.

    >>> print(python_words('a"\0'))
    a\"\\x00
    """
    return Code(escaped(text).replace("\\", "\\\\").replace('"', '\\"'))


def comment(text: str, before: str = "# ") -> Code:
    r"""A comment of Python, of a shell, or of YAML: one line, whatever the text.

    >>> comment("x\nrm -r ~")
    '# x\\nrm -r ~'
    """
    return Code(f"{before}{escaped(text)}".rstrip())


def python_file(template: str, **parts: object) -> Code:
    r"""A template of Python, filled in.

    ``{part}`` becomes a literal, ``{part:words}`` words within a docstring. Code stays as it is.

    >>> template = "{imports}; name = {title}  # {title:words}"
    >>> print(python_file(template, title='a "b"', imports=Code("import os")))
    import os; name = 'a "b"'  # a \"b\"
    """
    return Code(_Filling(python, python_words).vformat(template, (), parts))


def shell(text: object) -> Code:
    r"""A word of a POSIX shell; with characters that a terminal would obey, of bash, zsh and ksh.

    >>> print(shell("model.json"), shell("my $(touch x) model.json"))
    model.json 'my $(touch x) model.json'
    >>> print(shell("a\nb"))
    $'a\x0ab'

    A NUL, which no word can have, is escaped.
    """
    word = str(text).replace("\0", r"\x00")
    if escaped(word) == word:
        return Code(shlex.quote(word))
    raw = word.encode(errors="surrogateescape")
    return Code(f"$'{''.join(map(_in_dollar_quotes, raw))}'")


def _in_dollar_quotes(byte: int) -> str:
    character = chr(byte)
    return character if character.isascii() and character.isalnum() else f"\\x{byte:02x}"


def command(*words: object) -> Code:
    """A command line that a shell takes apart into these words.

    >>> command("loadmaster", "place", "my model.json", "--cluster", "2xA100")
    "loadmaster place 'my model.json' --cluster 2xA100"
    """
    return Code(" ".join(map(shell, words)))


def shell_file(template: str, **parts: object) -> Code:
    """A template of a shell script, filled in: ``{part}`` becomes a word. Code stays as it is."""
    return Code(_Filling(shell, comment).vformat(template, (), parts))


def yaml(document: Mapping[str, Any], before: str = "") -> Code:
    """Lines of YAML of a mapping, each after some spaces; mappings within it are indented.

    >>> print(yaml({"stage": 2, "mixed_precision": "no", "fsdp": {"on": True, "classes": ["A"]}}))
    stage: 2
    mixed_precision: "no"
    fsdp:
      "on": true
      classes: ["A"]
    """
    rows = []
    for key, value in document.items():
        is_plain = key.isascii() and key.isidentifier() and key.lower() not in _WORDS_OF_YAML
        name = f"{before}{key if is_plain else json_text(key)}:"
        if isinstance(value, Mapping) and value:
            rows += [Code(name), yaml(value, f"{before}  ")]
        else:
            rows.append(Code(f"{name} {json_text(value)}"))
    return lines(rows)


def yaml_file(template: str, **parts: object) -> Code:
    """A template of YAML, filled in: ``{part}`` becomes a scalar. Code stays as it is."""
    return Code(_Filling(json_text, comment).vformat(template, (), parts))


class _Filling(Formatter):
    """A template's parts, quoted."""

    def __init__(self, literal: Any, words: Any) -> None:
        self._quoted = {"": literal, "words": words}

    def format_field(self, value: Any, format_spec: str) -> str:
        """A part as the template wants it."""
        return value if type(value) is Code else str(self._quoted[format_spec](value))


def json_text(document: Any, indent: int | None = None) -> str:
    r"""JSON, in characters that a terminal shows, which is YAML too.

    >>> print(json_text({"a": "\033[31m\u2028\x7f"}))
    {"a":"\u001b[31m\u2028\u007f"}

    Raises
    ------
    ValueError
        Infinity or NaN, which JSON cannot hold.
    """
    separators = None if indent else (",", ":")
    text = json.dumps(
        document, indent=indent, separators=separators, ensure_ascii=False, allow_nan=False
    )
    # Controls stand within texts alone, but for breaks of lines, which stand between them.
    return OBEYED.sub(_in_json, text)


def _in_json(match: re.Match[str]) -> str:
    return match[0] if match[0] == "\n" else f"\\u{ord(match[0]):04x}"


def markup(text: str) -> Code:
    r"""Text of HTML, XML or SVG, also within quotes. Characters that XML cannot hold are escaped.

    >>> print(markup('<a href="x">\0'))
    &lt;a href=&quot;x&quot;&gt;\x00
    """
    held = _NO_XML.sub(lambda match: ascii(match[0])[1:-1], text)
    return Code(html.escape(held).translate(_CHANGED_BY_XML))


def markdown(text: str) -> Code:
    r"""Text of Markdown, also in the cell of a table: no link, no emphasis, no HTML.

    >>> print(markdown("a|b\n<script>[c](d)"))
    a\|b\\n&lt;script&gt;\[c\](d)
    """
    return Code(_OF_MARKDOWN.sub(r"\\\g<0>", html.escape(escaped(text), quote=False)))


def dot(text: str) -> Code:
    r"""A text of DOT, the language of Graphviz; a break of a line stays one.

    >>> print(dot('a "b"\n\0\\'))
    "a \"b\"\n\\x00\\"
    """
    shown = escaped(text, but="\n").replace("\\", "\\\\").replace('"', '\\"')
    return Code(f'"{shown}"'.replace("\n", "\\n"))


def lines(texts: Iterable[Code]) -> Code:
    """Code of a line each, one below the other."""
    return Code("\n".join(texts))
