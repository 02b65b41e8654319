"""Forms that a plan is written in, by the names that the command line knows: those of systems, and
pictures.
"""

from __future__ import annotations

import os
from typing import Any

from loadmaster.base.errors import InputError
from loadmaster.base.text import meant
from loadmaster.base.warnings import warn
from loadmaster.plans.plan import Plan
from loadmaster.systems.registry import SYSTEMS, WrittenForm

_FLAGS = {"path": "-o FILE", "model": "--model FILE"}

#: Forms of a plan that no system runs, by their names.
PICTURES = {
    "dot": WrittenForm("loadmaster.writers.pictures.drawings:dot", "DOT for Graphviz"),
    "graphml": WrittenForm(
        "loadmaster.writers.pictures.drawings:graphml", "GraphML for Gephi, yEd, networkx"
    ),
    "perfetto": WrittenForm(
        "loadmaster.writers.pictures.trace:write_trace",
        "Perfetto/Chrome trace (JSON)",
        is_file=True,
    ),
}


def forms() -> dict[str, WrittenForm]:
    """Every form by its name, those of systems first."""
    written = {name: system.form for name, system in SYSTEMS.items() if system.form is not None}
    return written | PICTURES


def form_of(name: str) -> WrittenForm:
    """The form of a name.

    Raises
    ------
    InputError
        There is none.
    """
    if name in PICTURES:
        return PICTURES[name]
    form = SYSTEMS[name].form if name in SYSTEMS else None
    if form is None:
        raise InputError(f"nothing is written as {name!r}{meant(name, forms())}")
    return form


def export(
    plan: Plan,
    target: str | None = None,
    path: str | os.PathLike[str] | None = None,
    *,
    check: bool = True,
    **options: Any,
) -> Any:
    """Writes a plan in a named form, that of the target that it was planned for if none is named.

    A file is checked by the system's own code, where that is installed; ``plan.checked`` says by
    target what came of it. Options that are None count as not given. Where a writer takes no
    ``model``, that is ``FILE.py:FUNCTION``, which builds the model for the check.

    Returns
    -------
    What the writer returns: a document, a text, or an object of the other system.

    Raises
    ------
    InputError
        No such target, an option that the target does not take, an option that is missing, or an
        error of the writer; the system refuses the file, which then stands all the same.

    Examples
    --------
    >>> import loadmaster as lm
    >>> plan = lm.place(lm.read("example:lenet"), lm.Cluster.preset("2xV100-NVLink"), "heft")
    >>> lm.export(plan, "tensorflow")["convolution"]
    '/device:GPU:0'
    """
    target = target_for(plan, target)
    chosen = form_of(target)
    settings = {key: value for key, value in options.items() if value is not None}
    is_checked = target in SYSTEMS and bool(SYSTEMS[target].checker)
    builds = None
    if is_checked and "model" not in chosen.options:
        builds = settings.pop("model", None)
    for key in settings:
        if key not in chosen.options:
            raise InputError(f"{target} takes no option {key!r}")
    missing = [key for key, needed in chosen.options.items() if needed and key not in settings]
    if chosen.is_file and path is None:
        missing.append("path")
    for key in missing:
        raise InputError(f"{target} needs a {key}: give {_FLAGS[key]}")
    written = chosen.write(plan, path, **settings)
    plan.checked.pop(target, None)
    if check and is_checked and path is not None:
        outcome = plan.checked[target] = SYSTEMS[target].check(plan, path, builds)
        if outcome.differs:
            warn(f"{target}: {outcome.differs}: its step may take longer or shorter than planned")
    return written


def target_for(plan: Plan, target: str | None) -> str:
    """The target of that name; if there is no name, the one that the plan was made for.

    Raises
    ------
    InputError
        There is neither.
    """
    target = target or plan.target
    if target is None:
        raise InputError(
            "the plan was made for no target of its own, so say what to write it as: --target "
            f"{', '.join(forms())}"
        )
    return target
