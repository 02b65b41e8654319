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
    modules = specs(plan)
    longest = sorted(range(len(modules)), key=lambda i: -modules[i].share)
    rows: Rows = [
        (
            modules[i].module,
            str(modules[i].ops),
            f"{modules[i].share:.1%}",
            *(modules[i].on(axis.name) for axis in axes),
        )
        for i in sorted(longest[:MAX_MODULES])
    ]
    left = [modules[i] for i in longest[MAX_MODULES:]]
    if left:
        ops, share = sum(one.ops for one in left), sum(one.share for one in left)
        more = f"and {counted(len(left), 'module')} more"
        rows.append((more, str(ops), f"{share:.1%}", *("" for _ in axes)))
    return head, rows


def byte_rows(plan: Plan) -> Rows:
    """The bytes that fill each device when it holds most: a column for each use of memory."""
    return [
        (
            footprint.device,
            format_bytes(footprint.capacity),
            *(format_bytes(getattr(footprint, use)) for use in USES),
            format_bytes(footprint.free)
            if footprint.free >= 0
            else f"{format_bytes(-footprint.free)} SHORT",
        )
        for footprint in footprints(plan.predicted)
    ]
