"""A measured run in words, and as plain data for machines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from loadmaster.base.text import aligned, in_lines
from loadmaster.base.units import counted, format_bytes, format_seconds
from loadmaster.plans.words import title

if TYPE_CHECKING:
    from loadmaster.running.measured.measured import Measured


def summary(measured: Measured) -> str:
    """The step beside its prediction, devices, ratios, and what the difference is made of."""
    return "\n".join([*headline(measured), "", str(measured.ratios()), "", str(measured.causes())])


def lead(measured: Measured) -> list[str]:
    """The first lines: what ran, how long a step took, and whether that can be trusted."""
    plan, steps = measured.plan, measured.steps
    stretched = f", stretched {measured.stretch:g} times" if measured.stretch != 1 else ""
    lines = [
        f"{title(plan)} by {plan.method}: {format_seconds(measured.step)} per step, the "
        f"{measured.step_is} of {counted(len(steps), 'step')}{stretched}",
        f"predicted    {format_seconds(plan.makespan)}: predicted / measured is "
        f"{1 + measured.error:.3f}",
    ]
    if measured.busy:
        lines.append(f"DO NOT TRUST THIS: {measured.busy}")
    return lines


def headline(measured: Measured) -> list[str]:
    """The lead, and what each device did."""
    plan, steps = measured.plan, measured.steps
    head = ["device", "was", "busy", "predicted"]
    table = [head + (["peak", "predicted"] if steps.peaks is not None else [])]
    seen, expected = measured.seen.schedule, plan.schedule
    for d, device in enumerate(plan.cluster.devices):
        cells = [device.name, measured.on[d]]
        cells += [f"{step.utilisation[d]:.0%}" for step in (seen, expected)]
        if steps.peaks is not None:
            cells += [format_bytes(int(step.memory.peak[d])) for step in (seen, expected)]
        table.append(cells)
    return in_lines([*lead(measured), *aligned(table)]).splitlines()


def summary_document(measured: Measured) -> dict[str, Any]:
    """The same as plain data: seconds, bytes, shares."""
    plan, steps = measured.plan, measured.steps
    return {
        "graph": plan.graph.name,
        "cluster": plan.cluster.name,
        "method": plan.method,
        "steps": len(steps),
        "step": measured.step,
        "step_is": measured.step_is,
        "predicted": plan.makespan,
        "error": measured.error,
        "stretch": measured.stretch,
        "delay": measured.delay,
        "busy": measured.busy,
        "devices": [
            {
                "name": device.name,
                "on": measured.on[d],
                "busy": float(measured.seen.schedule.device_busy[d]),
                "busy_predicted": float(plan.schedule.device_busy[d]),
                "peak_bytes": None if steps.peaks is None else int(steps.peaks[d]),
                "peak_bytes_predicted": int(plan.memory.peak[d]),
            }
            for d, device in enumerate(plan.cluster.devices)
        ],
        "ratios": measured.ratios().to_document(),
        "causes": measured.causes().to_document(),
    }
