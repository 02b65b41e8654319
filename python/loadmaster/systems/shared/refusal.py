"""Reasons against writing a plan for a system, in one message, with the way out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

from loadmaster.base.errors import InputError
from loadmaster.model.recipe import Recipe
from loadmaster.plans import commands
from loadmaster.plans.plan import Plan
from loadmaster.systems.registry import is_planned_for
from loadmaster.systems.shared.names import NAMED

#: A sentence that stands alone, or one with the things that it is true of, in words.
Reason: TypeAlias = "str | tuple[str, Sequence[str]]"


def staged(recipe: Recipe) -> Iterator[Reason]:
    """The reason against micro-batches, for files that do not have them."""
    if recipe.micro is None:
        return
    if any(recipe.stages.values()):
        yield "it is a pipeline of stages"
    else:
        yield f"it accumulates gradients over {recipe.micro.n} micro-batches, which no file says"


def refusal(plan: Plan, name: str, reasons: Iterable[Reason]) -> InputError:
    """The error for a plan that a target cannot say.

    Parameters
    ----------
    plan : Plan
    name : str
        Of the target.
    reasons : iterable of str or (str, sequence of str)
        Everything that is in the way. Of the things that a reason is true of, the first few are
        named, and how many more there are.

    Examples
    --------
    >>> import loadmaster as lm
    >>> plan = lm.place(lm.read("example:lenet"), lm.Cluster.preset("2xV100-NVLink"), "heft")
    >>> print(refusal(plan, "dot", [("ops are apart", ["a", "b", "c", "d", "e"])]))
    the plan by heft cannot be written as dot: ops are apart: a, b, c and 2 more
    """
    said = "; ".join(map(_said, reasons))
    way = ""
    if is_planned_for(name):
        way = f". What plans for it: {commands.of(plan, 'place', '--target', name)}"
    return InputError(f"the plan by {plan.made_by} cannot be written as {name}: {said}{way}")


def _said(reason: Reason) -> str:
    if isinstance(reason, str):
        return reason
    sentence, things = reason
    more = f" and {len(things) - NAMED} more" if len(things) > NAMED else ""
    return f"{sentence}: {', '.join(things[:NAMED])}{more}"
