"""The bar charts of a report: step times beside bounds, utilisation, where times come from."""

from __future__ import annotations

import numpy as np

from loadmaster.base.units import counted, format_bytes, format_seconds
from loadmaster.costs import PROVENANCES
from loadmaster.plans.comparison import Comparison
from loadmaster.plans.plan import Plan
from loadmaster.writers.pictures.lanes import SENT
from loadmaster.writers.report.markup import Bar

OURS, OTHERS = "#2f6db3", "#6b93c1"

#: Channels that utilisation lists: the busiest.
MAX_CHANNELS = 12


def quality(plan: Plan, comparison: Comparison | None) -> list[Bar]:
    """Step times, or periods of plans for throughput: the plan, one device, other methods, fastest
    first. A plan's mark is the lower bound of plans of its space.
    """
    seconds_of = plan.objective.seconds
    own = seconds_of(plan.verdict)
    rows = [Bar(f"this plan ({plan.made_by})", own, _of_bound(plan), OURS, plan.lower_bound)]
    if plan.observed is not None:
        predicted = seconds_of(plan.predicted.verdict)
        words = f"{format_seconds(predicted)} as simulated"
        rows.append(Bar("this plan, predicted", predicted, words, OTHERS))
    if plan.single is not None:
        words = f"{format_seconds(plan.single)}: all ops on the fastest that holds them"
        rows.append(Bar("one device", plan.single, words, OTHERS))
    for method, other in comparison.best_first if comparison else ():
        peaks = zip(other.memory.peak.tolist(), other.cluster.memory, strict=True)
        fullest = max(peak / max(capacity, 1) for peak, capacity in peaks)
        words = (
            f"{_of_bound(other)}; moves {format_bytes(other.schedule.bytes_moved)}, "
            f"fullest device {fullest:.0%}{'' if other.fits else ' (DOES NOT FIT)'}"
        )
        rows.append(Bar(method, seconds_of(other.verdict), words, OTHERS, other.lower_bound))
    return rows


def _of_bound(plan: Plan) -> str:
    """A plan's time, and how much better plans of its space can be."""
    own = format_seconds(plan.objective.seconds(plan.verdict))
    return f"{own}; at most {plan.gap:.1%} better is possible by {plan.space}"


def utilisation(plan: Plan) -> tuple[list[Bar], str]:
    """Shares of the step for which devices compute and channels carry something, and which are
    left out: those that are idle, and channels that are less busy.
    """
    schedule, span = plan.schedule, plan.makespan or 1.0
    busiest = np.argsort(-schedule.channel_busy, kind="stable").tolist()
    used = [c for c in busiest if schedule.channel_busy[c] > 0]
    devices = [device.name for device in plan.cluster.devices]
    rows = [
        _share(name, float(busy), span, OURS)
        for name, busy in zip(devices, schedule.device_busy, strict=True)
        if busy > 0
    ]
    rows += [
        _share(plan.cluster.channels[c], float(schedule.channel_busy[c]), span, SENT)
        for c in used[:MAX_CHANNELS]
    ]
    idle, less = len(devices) - int(np.count_nonzero(schedule.device_busy)), len(used)
    left = [counted(idle, "device is idle", "devices are idle")] if idle else []
    if less > MAX_CHANNELS:
        rest = counted(less - MAX_CHANNELS, "channel is", "channels are")
        left.append(f"{rest} no busier than those")
    if len(busiest) > less:
        left.append(f"{counted(len(busiest) - less, 'channel carries', 'channels carry')} nothing")
    return rows, "; ".join(left)


def _share(name: str, busy: float, span: float, colour: str) -> Bar:
    return Bar(name, busy / span, f"{busy / span:.1%}, {format_seconds(busy)}", colour)


def provenance(plan: Plan) -> list[Bar]:
    """Sources of times, by share of the time."""
    counts = np.bincount(plan.problem.costs.provenance, minlength=len(PROVENANCES)).tolist()
    return [
        Bar(word, share, f"{share:.1%}, {counted(counts[PROVENANCES.index(word)], 'op')}", OURS)
        for word, share in plan.provenance.items()
    ]
