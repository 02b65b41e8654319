"""The tables of a plan with a recipe: modules with their specs, and where the bytes go."""

from __future__ import annotations

from loadmaster.base.units import counted, format_bytes
from loadmaster.plans.footprint import USES, footprints
from loadmaster.plans.plan import Plan
from loadmaster.plans.specs import specs

#: Modules that are listed: those that take most of the time.
MAX_MODULES = 60

BYTES = ("device", "memory", *USES, "left")

Rows = list[tuple[str, ...]]


def module_rows(plan: Plan) -> tuple[tuple[str, ...], Rows]:
    """Head and rows: a module, its share of the time, and how it lies on each axis."""
    assert plan.recipe is not None
    axes = plan.recipe.mesh.axes
    head = ("module", "ops", "of the time", *(f"{axis.name} ({axis.size})" for axis in axes))
    found = specs(plan)
    longest = sorted(range(len(found)), key=lambda i: -found[i].share)
    rows: Rows = [
        (
            found[i].module,
            str(found[i].ops),
            f"{found[i].share:.1%}",
            *(found[i].on(axis.name) for axis in axes),
        )
        for i in sorted(longest[:MAX_MODULES])
    ]
    left = [found[i] for i in longest[MAX_MODULES:]]
    if left:
        ops, share = sum(one.ops for one in left), sum(one.share for one in left)
        more = f"and {counted(len(left), 'module')} more"
        rows.append((more, str(ops), f"{share:.1%}", *("" for _ in axes)))
    return head, rows


def byte_rows(plan: Plan) -> Rows:
    """The bytes that fill each device when it holds most: a column for each use of memory."""
    return [
        (
            found.device,
            format_bytes(found.capacity),
            *(format_bytes(getattr(found, use)) for use in USES),
            format_bytes(found.free) if found.free >= 0 else f"{format_bytes(-found.free)} SHORT",
        )
        for found in footprints(plan.predicted)
    ]
