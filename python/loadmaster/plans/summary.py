"""The summary of a plan: at most a dozen lines of text, or plain data for JSON."""

from __future__ import annotations

from typing import Any

import numpy as np

from loadmaster.base.text import in_lines
from loadmaster.base.units import counted, format_bytes, format_seconds
from loadmaster.judge.problem import parallelism
from loadmaster.judge.simulation import Simulation
from loadmaster.model.cluster import Cluster
from loadmaster.model.program import Program
from loadmaster.plans import gradients_held, ranges, runtimes
from loadmaster.plans.considered import considered, head, not_considered
from loadmaster.plans.kept_free import asked, kept_in_words
from loadmaster.plans.plan import Plan
from loadmaster.plans.specs import recipe_in_words
from loadmaster.plans.streams import stream_document, stream_lines
from loadmaster.plans.words import bound_in_words, no_placement, parallelism_in_words, title

#: Below this parallelism, several devices gain less than 5 % even if transfers are free.
WORTH_SPLITTING = 1.05

#: Devices per line, and lines, of the summary.
_PER_LINE = 4
_DEVICE_LINES = 4


def verdict(plan: Plan) -> str | None:
    """A sentence that says that whole ops on several devices cannot be faster than on one.

    None: they may be (with a host for each device, hosts share the launches), the plan's ops are
    not whole, or it was made for throughput.
    """
    if (
        plan.objective.goal == "throughput"
        or not plan.program.is_plain
        or (plan.cluster.dispatch and not plan.cluster.dispatch.one_host)
    ):
        return None
    ratio = parallelism(plan.problem.graph, plan.problem.op_time)
    if ratio >= WORTH_SPLITTING or plan.cluster.n_devices == 1:
        return None
    gain = max(ratio - 1, 0.0)
    at_most = "none of them is" if gain < 0.005 else f"none of them is more than {gain:.0%}"
    why = f"work / critical path is {ratio:.2f}, so {at_most} faster than one device"
    if plan.single is None:
        return f"Placing whole ops on several devices buys memory, not time: {why}."
    return f"Placing whole ops on several devices cannot help time: {why}; everything fits one."


def summary(plan: Plan) -> str:
    """Step time, the best of each kind of plans, the bound, devices, bytes moved."""
    if plan.objective.goal == "throughput":
        words = ranges.in_words(plan)
        known = [f"range        {words}"] if words else []
        return in_lines([*stream_lines(plan), *known, *_said(plan)])
    under = "" if asked(plan).is_empty else "under the constraints "
    op_by_op = f" ({format_seconds(plan.makespan)} op by op)" if plan.as_run > plan.makespan else ""
    lines = [
        f"{title(plan)} by {plan.made_by}: {format_seconds(plan.as_run)} per step{op_by_op}, "
        f"planned in {format_seconds(plan.planning_seconds)}",
        *head(plan),
        *([f"parallelism  {words}"] if (words := parallelism_in_words(plan)) else []),
        *([] if plan.recipe is None else [f"recipe       {recipe_in_words(plan)}"]),
        f"lower bound  {bound_in_words(plan)}: "
        f"{no_placement(plan)} {under}can be more than {plan.gap:.1%} faster",
        *([f"range        {words}"] if (words := ranges.in_words(plan)) else []),
        *_what_happened(plan.schedule, plan.cluster, plan.program),
    ]
    return in_lines([*lines, *_said(plan)])


def _said(plan: Plan) -> list[str]:
    """Constraints of a plan, sources of its times, and notes from its making."""
    lines = [f"gradients    {words}"] if (words := gradients_held.in_words(plan)) else []
    rules = asked(plan)
    lines += [] if rules.is_empty else [f"constraints  {rules}"]
    lines += [f"reserve      {words}"] if (words := kept_in_words(plan)) else []
    lines.append(f"times        {estimated(plan)}{collective_times(plan)}")
    lines += [f"runtime      {words}"] if (words := runtimes.in_words(plan)) else []
    sentence = verdict(plan)
    if sentence:
        lines.append(sentence)
    elif plan.notes:
        lines.append(f"note         {'; '.join(plan.notes)}")
    return lines


def estimated(plan: Plan) -> str:
    """Sources of the times of ops, and how to get better ones where they are estimates."""
    better = "; `loadmaster calibrate` takes measured ones" if is_estimated(plan) else ""
    return f"of ops: {shares_of_time(plan)}{better}"


def collective_times(plan: Plan) -> str:
    """Sources of the times of a plan's collectives; empty where it has none."""
    ways = plan.schedule.collectives.algorithm
    hosts = {t.source.partition(",")[0] for t in plan.cluster.collectives}
    by_table = f"measured on {', '.join(sorted(filter(None, hosts))) or 'such hosts'}"
    sources = {by_table if way == "table" else "links" for way in ways} - {"nothing to send"}
    return f"; of collectives: {', '.join(sorted(sources, reverse=True))}" if sources else ""


def shares_of_time(plan: Plan) -> str:
    """Sources of the times of ops, by share of the time, the largest first."""
    shares = sorted(plan.provenance.items(), key=lambda row: -row[1])
    return ", ".join(f"{share:.0%} {word}" for word, share in shares if round(share, 2)) or "none"


def is_estimated(plan: Plan) -> bool:
    """True if less than half of the time was measured, or given by the user."""
    return sum(plan.provenance.get(word, 0.0) for word in ("measured", "given")) < 0.5


def _what_happened(simulation: Simulation, cluster: Cluster, program: Program) -> list[str]:
    """Devices, bytes moved and the first overflow."""
    lines = [*_device_lines(simulation, cluster), f"moved        {moved(simulation)}"]
    if simulation.launching:
        hosts = "host" if cluster.dispatch and cluster.dispatch.one_host else "busiest host"
        share = f" ({simulation.launching / simulation.makespan:.0%} of the step)"
        lines.append(
            f"launches     keep the {hosts} for {format_seconds(simulation.launching)}{share}"
        )
    short = shortage(simulation, cluster, program)
    return [*lines, short] if short else lines


def moved(simulation: Simulation) -> str:
    """Bytes that go from one device to another, by which transfers and collectives.

    A collective counts with what its devices send in all (:attr:`Collectives.bytes_sent`); the
    bytes of the tensors stand beside it.
    """
    text = f"{format_bytes(simulation.bytes_moved)} in "
    sent, together = len(simulation.transfers), simulation.collectives
    if not len(together):
        return text + counted(sent, "transfer")
    span = simulation.makespan
    share = f", {together.seconds / span:.0%} of the step" if span else ""
    return (
        f"{text}{counted(sent, 'transfer') + ' and ' if sent else ''}"
        f"{counted(len(together), 'collective')} ({format_bytes(together.bytes_in_all)} of "
        f"tensors, under way for {format_seconds(together.seconds)}{share})"
    )


def shortage(simulation: Simulation, cluster: Cluster, program: Program) -> str:
    """Devices whose memory is too small, the bytes that are missing, where that shows first.

    Empty where the plan fits.
    """
    memory = simulation.memory
    first = memory.overflow
    if first is None:
        return ""
    short = cluster.shortfall(memory.peak, memory.capacity.tolist())
    devices = [f"{device} by {format_bytes(size)}" for device, size in short.items()]
    if len(devices) > _DEVICE_LINES:
        devices[_DEVICE_LINES - 1 :] = [f"{len(devices) - _DEVICE_LINES + 1} more"]
    op = "" if first.op is None else f", at op {program.label(first.op)}"
    return (
        f"DOES NOT FIT: memory is exceeded on {', '.join(devices)}; first on "
        f"{cluster.devices[first.device].name} at {format_seconds(first.time)}{op}"
    )


def _device_lines(simulation: Simulation, cluster: Cluster) -> list[str]:
    span, known = simulation.makespan or 1.0, simulation.memory.is_known
    cells = [
        f"{d.name} busy {busy:.0%}{f', copies {copying / span:.0%}' if copying else ''}"
        + f", peak {format_bytes(int(peak))} of {format_bytes(d.memory)}" * known
        for d, busy, copying, peak in zip(
            cluster.devices,
            simulation.utilisation,
            simulation.copying.tolist(),
            simulation.memory.peak,
            strict=True,
        )
    ]
    if len(cells) <= _DEVICE_LINES:
        return [f"  {cell}" for cell in cells]
    shown = cells[: _PER_LINE * _DEVICE_LINES]
    short = [cell.replace(" busy", "").replace(", peak", "") for cell in shown]
    rows = [" | ".join(short[i : i + _PER_LINE]) for i in range(0, len(short), _PER_LINE)]
    if len(cells) > len(shown):
        rows[-1] += f" | and {len(cells) - len(shown)} more"
    return [f"  {row}" for row in rows]


def simulation_lines(simulation: Simulation, cluster: Cluster, program: Program) -> list[str]:
    """One simulation in lines for a person."""
    step = f"step time    {format_seconds(simulation.makespan)}"
    return [step, *_what_happened(simulation, cluster, program)]


def simulation_document(simulation: Simulation, cluster: Cluster) -> dict[str, Any]:
    """One simulation as plain data: seconds, bytes, shares.

    ``bytes_moved`` is what transfers and collectives send between devices. Of the collectives,
    ``bytes`` are those of the tensors, ``seconds`` those in which at least one is under way.
    ``launching`` is for how long the busiest host launches ops, ``copying`` for how long a device
    copies out what it sends.
    """
    return {
        "makespan": simulation.makespan,
        "fits": simulation.fits,
        "bytes_moved": simulation.bytes_moved,
        "transfers": len(simulation.transfers),
        "collectives": {
            "count": len(simulation.collectives),
            "bytes": simulation.collectives.bytes_in_all,
            "seconds": simulation.collectives.seconds,
        },
        "launching": simulation.launching,
        "devices": [
            {
                "name": d.name,
                "type": d.type,
                "ops": int(np.count_nonzero(simulation.devices == i)),
                "busy": float(simulation.device_busy[i]),
                "utilisation": float(simulation.utilisation[i]),
                "copying": float(simulation.copying[i]),
                "peak_bytes": int(simulation.memory.peak[i])
                if simulation.memory.is_known
                else None,
                "static_bytes": int(simulation.memory.static[i]),
                "memory": d.memory,
            }
            for i, d in enumerate(cluster.devices)
        ],
        "channels": {
            name: float(busy)
            for name, busy in zip(cluster.channels, simulation.channel_busy, strict=True)
        },
    }


def document(plan: Plan) -> dict[str, Any]:
    """The summary as plain data: seconds, bytes, shares."""
    return {
        "graph": plan.graph.name,
        "cluster": plan.cluster.name,
        "method": plan.method,
        "target": plan.target,
        "runtime": plan.runtime,
        "runtime_gains": runtimes.gains(plan),
        "options": dict(plan.options),
        "seed": plan.seed,
        "single_device": plan.single,
        "lower_bound": plan.lower_bound,
        "bound_source": plan.bound_source,
        "space": plan.space,
        "bounds": dict(plan.bounds),
        "offers": [
            {"space": one.space, "what": one.what, "seconds": one.seconds} for one in plan.offers
        ],
        "considered": [row.to_document() for row in considered(plan)],
        "not_considered": not_considered(plan),
        "gap": plan.gap,
        "ranges": ranges.document(plan),
        **stream_document(plan),
        "parallelism": parallelism(plan.problem.graph, plan.problem.op_time),
        "planning_seconds": plan.planning_seconds,
        "estimate": plan.estimate,
        "policy": plan.policy,
        "provenance": plan.provenance,
        **simulation_document(plan.schedule, plan.cluster),
        **({"fits": plan.fits} if plan.verdict.steady is not None else {}),
        "constraints": plan.constraints.to_document(),
        **gradients_held.document(plan),
        **({} if plan.parallelism is None else {"degrees": plan.parallelism.to_document()}),
        **({} if plan.recipe is None else {"recipe": plan.recipe.to_document()}),
        "notes": list(plan.notes),
        "verdict": verdict(plan),
    }
