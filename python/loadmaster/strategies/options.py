"""Options of methods and of systems that are planned for: a frozen dataclass of each, derived.

A function that plans declares its options once: as keywords with types and defaults, described in
its docstring. :func:`options_type` makes a frozen dataclass of them. An instance is the options of
a call, checked; its fields are what the command line, completion and the documentation show.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, make_dataclass
from difflib import SequenceMatcher
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, Unpack, get_args, get_origin, get_type_hints

from loadmaster.base import checks
from loadmaster.base.errors import InputError
from loadmaster.base.text import closest, meant, shown

#: Arguments of ``loadmaster place`` beside ``--option``.
ARGUMENTS = (
    *("cluster", "costs", "explore", "seed", "objective", "on_oom", "max_memory"),
    *("constraints", "pin", "reserve", "no_split", "kinds", "contiguous"),
    *("method", "effort", "time_limit", "split", "target"),
    *("recipe", "expert_imbalance", "runtime", "save_recipe", "warm_start", "output"),
)

#: Likeness from which another argument is suggested for an option.
_NEARLY = 0.8

#: Keywords that :func:`loadmaster.place` itself passes on to functions that take them.
PASSED_ON = ("time_limit", "progress", "warm_start", "start_search")


class Unsaid:
    """The default of an option that its function does not name: another function has it."""

    def __repr__(self) -> str:
        return "as the method has it"


UNSAID = Unsaid()


@dataclass(frozen=True)
class Option:
    """A keyword of a function that plans.

    Attributes
    ----------
    name : str
    kind : type
        A class, ``Literal`` of texts, or a union of these.
    default
        ``dataclasses.MISSING``: there is none; :data:`UNSAID`: it is not known here.
    text : str
        Its description.
    """

    name: str
    kind: Any
    default: Any
    text: str

    @property
    def is_needed(self) -> bool:
        """True if a call cannot do without it."""
        return self.default is MISSING

    @property
    def choices(self) -> tuple[str, ...]:
        """Texts that it may be."""
        return tuple(text for one in parts_of(self.kind) for text in literals_of(one))

    @property
    def wants(self) -> str:
        """Values that it takes, in words.

        >>> Option("threads", int | None, None, "").wants
        'an integer or None'
        """
        words = [_WORDS.get(one, getattr(one, "__name__", str(one))) for one in self._classes]
        some = [", ".join(self.choices)] if self.choices else []
        return " or ".join([*some, *words])

    @property
    def words(self) -> str:
        """Values, the default and the description, in a line."""
        usual = "needed" if self.is_needed else f"default: {self.default}"
        return f"{self.wants}; {usual}{f'. {self.text}' if self.text else ''}"

    @property
    def _classes(self) -> list[Any]:
        return [one for one in parts_of(self.kind) if get_origin(one) is not Literal]

    def check(self, value: object) -> None:
        """Refuses a value of another kind.

        Raises
        ------
        InputError

        Examples
        --------
        >>> Option("groups", int, 200, "").check("many")
        Traceback (most recent call last):
        loadmaster.base.errors.InputError: groups is 'many': wants an integer
        """
        if not any(_is_of(value, one) for one in parts_of(self.kind)):
            one_of = "one of " if self.choices and not self._classes else ""
            raise InputError(f"{self.name} is {shown(value)}: wants {one_of}{self.wants}")
        if checks.is_integer(value) and abs(value) >= 2**63:
            raise InputError(f"{self.name} is {shown(value)}: wants less than 2^63")


#: Words for the classes of options.
_WORDS: dict[Any, str] = {
    bool: "True or False",
    int: "an integer",
    float: "a number",
    str: "a text",
    NoneType: "None",
}


def parts_of(kind: Any) -> tuple[Any, ...]:
    """The types that a union is of; another type alone."""
    if get_origin(kind) in (Union, UnionType):
        return tuple(part for one in get_args(kind) for part in parts_of(one))
    return (kind,)


def literals_of(kind: Any) -> tuple[str, ...]:
    """The texts of a ``Literal``; none of another type."""
    return get_args(kind) if get_origin(kind) is Literal else ()


def _is_of(value: object, kind: Any) -> bool:
    if get_origin(kind) is Literal:
        return isinstance(value, str) and value in get_args(kind)
    if kind is int:
        return checks.is_integer(value)
    if kind is float:
        return checks.is_number(value)
    return not isinstance(kind, type) or isinstance(value, kind)


@cache
def options_type(function: Callable[..., Any]) -> type:
    """The frozen dataclass of a function's options, in the order in which they are declared; those
    that it takes as ``**shared: Unpack[...]`` come first.

    Examples
    --------
    >>> from loadmaster.strategies.registry import METHODS
    >>> heft = options_type(METHODS["heft"][0])
    >>> heft(contention=False)
    HeftOptions(rounds=6, memory='dynamic', contention=False)
    """
    shared: list[Option] = []
    own: list[Option] = []
    wrapped = inspect.unwrap(function)
    hints, texts = hints_of(wrapped), described(wrapped)
    for name, parameter in inspect.signature(wrapped).parameters.items():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            (shared_type,) = get_args(hints.get(name)) or (dict,)
            of_type = described(shared_type, "Attributes")
            for one, kind in get_type_hints(shared_type).items():
                shared.append(Option(one, kind, UNSAID, of_type.get(one, "")))
        elif parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            default = MISSING if parameter.default is parameter.empty else parameter.default
            own.append(Option(name, hints.get(name, object), default, texts.get(name, "")))
    options = [one for one in (*shared, *own) if one.name not in PASSED_ON]
    words = (wrapped.__module__.rpartition(".")[2], "options")
    return make_dataclass(
        "".join(part.title() for word in words for part in word.split("_")),
        [(one.name, one.kind, _field(one)) for one in options],
        frozen=True,
        kw_only=True,
        namespace={"__post_init__": _check},
    )


@cache
def takes(function: Callable[..., Any], name: str) -> bool:
    """True if a function has a keyword of this name."""
    wrapped = inspect.unwrap(function)
    shared = (
        get_args(kind)[0].__annotations__
        for kind in hints_of(wrapped).values()
        if get_origin(kind) is Unpack
    )
    own = inspect.signature(wrapped).parameters.get(name)
    is_own = own is not None and own.kind is inspect.Parameter.KEYWORD_ONLY
    return is_own or any(name in names for names in shared)


def check_options(owner: str, function: Callable[..., Any], options: Mapping[str, object]) -> None:
    """Refuses options that a function does not take, and those of other kinds.

    Parameters
    ----------
    owner : str
        The method or target, as errors name it.
    function : callable
    options : mapping

    Raises
    ------
    InputError
        Also where an option lacks that the function needs.
    """
    declared = options_type(function)
    known = [option.name for option in listed(declared)]
    for name in sorted(set(options) - set(known)):
        raise no_option(f"{owner} has no option {name!r}", name, known)
    for option in listed(declared):
        if option.is_needed and option.name not in options:
            raise InputError(f"{owner} needs the option {option.name!r}")
    declared(**options)


def no_option(begun: str, name: str, known: Sequence[str]) -> InputError:
    """The error for an option of no known name, which says what is meant: an option, or another
    argument.

    >>> print(no_option("heft has no option 'taget'", "taget", ["rounds"]))
    heft has no option 'taget': did you mean --target, an argument of its own? There are rounds
    """
    others = [one for one in ARGUMENTS if one not in known]
    other = closest(name, [*known, *others])
    if other not in others or SequenceMatcher(None, name, other).ratio() < _NEARLY:
        return InputError(f"{begun}{meant(name, known)}")
    flag = f"--{other.replace('_', '-')}"
    listed = f"There are {', '.join(known)}" if known else "There is no option"
    return InputError(f"{begun}: did you mean {flag}, an argument of its own? {listed}")


def hints_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The types of a function's parameters, or those of an object that is called as one; none where
    a user's function names a type that is not there.
    """
    called = function if inspect.isroutine(function) else type(function).__call__
    try:
        return get_type_hints(called)
    except (NameError, TypeError):
        return {}


def _field(option: Option) -> Any:
    return field(default=option.default, metadata={"option": option})


def _check(options: Any) -> None:
    """Refuses values of other kinds, of an instance of any such dataclass."""
    for option in listed(type(options)):
        value = getattr(options, option.name)
        # A default that is not known here is the function's own.
        if value is not option.default:
            option.check(value)


def listed(options: type) -> list[Option]:
    """The options that a dataclass of them has."""
    return [one.metadata["option"] for one in fields(options)]


def described(documented: Any, section: str = "Parameters") -> dict[str, str]:
    """Descriptions by name, from a section of a docstring in numpy's form.

    >>> described(described)
    {}
    """
    lines = inspect.cleandoc(documented.__doc__ or "").splitlines()
    if section not in lines:
        return {}
    texts: dict[str, str] = {}
    names: list[str] = []
    for line in _of_section(lines[lines.index(section) + 2 :]):
        if line.startswith(" "):
            texts |= {name: f"{texts[name]} {line.strip()}".strip() for name in names}
        else:
            names = line.partition(" : ")[0].split(", ")
            texts |= dict.fromkeys(names, "")
    return texts


def _of_section(lines: list[str]) -> Iterator[str]:
    """The lines before the next section, whose head is underlined; none that is blank."""
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        if following.startswith("---"):
            return
        if line:
            yield line
