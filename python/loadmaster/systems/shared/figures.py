"""The figures of a plan as comments, for the head of a file that people read."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

from loadmaster.base.quoting import Code, lines
from loadmaster.base.text import escaped
from loadmaster.base.units import format_bytes, format_ratio, format_seconds
from loadmaster.plans.plan import Plan
from loadmaster.plans.words import bound_in_words, no_placement, parallelism_in_words, title

#: Characters of a line.
_WIDTH = 100


def figures(plan: Plan, more: Iterable[str] = ()) -> Code:
    """Lines of comments: step time, over one device, peaks, bound, where times come from, notes.

    Parameters
    ----------
    plan : Plan
    more : iterable of str
        What else is to be said, a sentence each.

    Examples
    --------
    >>> import loadmaster as lm
    >>> plan = lm.place(lm.read("example:lenet"), lm.Cluster.preset("2xV100-NVLink"), "heft")
    >>> print(figures(plan).splitlines()[0])
    # lenet_train_b256 on 2xV100-NVLink, by heft of Loadmaster.
    """
    return lines(
        Code(line)
        for sentence in sentences(plan, more)
        for line in textwrap.wrap(
            escaped(sentence),
            _WIDTH,
            initial_indent="# ",
            subsequent_indent="#   ",
            break_long_words=False,
        )
    )


def sentences(plan: Plan, more: Iterable[str] = ()) -> list[str]:
    """The figures of :func:`figures`, a sentence or two each."""
    ratio = format_ratio(plan.single / plan.makespan) if plan.single else ""
    gain = f"{ratio} x as fast as" if ratio else "not possible on"
    peaks: dict[int, list[str]] = {}
    for device, peak in zip(plan.cluster.devices, plan.memory.peak.tolist(), strict=True):
        if peak:
            peaks.setdefault(peak, []).append(device.name)
    of_devices = [
        f"{format_bytes(peak)} on {names[0] if len(names) == 1 else f'{names[0]} to {names[-1]}'}"
        for peak, names in peaks.items()
    ]
    some = of_devices[:4] + [f"and {len(of_devices) - 4} more peaks"] * (len(of_devices) > 4)
    sources = sorted(plan.provenance.items(), key=lambda row: -row[1])
    named = parallelism_in_words(plan)
    return [
        f"{title(plan)}, by {plan.made_by} of Loadmaster.",
        *([f"Parallelism: {named}."] if named else []),
        f"Step: {format_seconds(plan.makespan)} as simulated, {gain} one device.",
        f"Peak memory: {', '.join(some)}.",
        f"Lower bound: {bound_in_words(plan)}; "
        f"{no_placement(plan)} can be more than {plan.gap:.1%} faster.",
        f"Times of ops: {', '.join(f'{share:.0%} {word}' for word, share in sources if share)}.",
        *more,
        *(f"Note: {note}." for note in plan.notes),
    ]
