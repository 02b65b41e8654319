"""The head of a summary: the best plan of each kind that was judged, and what was left out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from loadmaster.base.quoting import command
from loadmaster.base.text import aligned
from loadmaster.base.units import counted, format_bytes, format_ratio, format_seconds
from loadmaster.judge.bounds import WHOLE_OPS
from loadmaster.plans.gradients_held import is_short
from loadmaster.plans.plan import Plan
from loadmaster.plans.rejudged import on_one_device
from loadmaster.plans.specs import mesh_in_words
from loadmaster.strategies import kinds
from loadmaster.strategies.candidate import Best, fullest
from loadmaster.strategies.kinds import REQUESTS, Kind, Request
from loadmaster.strategies.registry import DEFAULT

#: Ways that no method considers; systems have limits of their own.
_NEVER = "offloading, lower precision; `loadmaster advise` has what each system can run"

#: Behind a plan on one device that fits.
_HELD = ", but not with all gradients held until PyTorch's optimizer.step()"

#: Words for a kind where its plans on one device stand apart.
_OF_SEVERAL: dict[str, str] = {Kind.WHOLE_OPS: "whole ops on several devices"}


@dataclass(frozen=True)
class Considered:
    """The best plan of a kind.

    Attributes
    ----------
    kind : Kind
    what : str
        The plan in a few words.
    seconds : float or None
        Its step time, or its period where the objective is throughput. None: there is none.
    ratio : float or None
        How many times as fast as one device. None: no device holds the graph.
    peak, memory : int or None
        Bytes at the peak and the capacity of the device that is fullest. None: not known.
    fits : bool
    left : float or None
        By which share a plan of whole ops could be shorter at most; None: of another kind.
    request : Request or None
        The arguments of :func:`loadmaster.place` that make such a plan; None: none do alone.
    is_plan : bool
        Whether it is the plan itself.
    """

    kind: Kind
    what: str
    seconds: float | None
    ratio: float | None = None
    peak: int | None = None
    memory: int | None = None
    fits: bool = True
    left: float | None = None
    request: Request | None = None
    is_plan: bool = False

    @property
    def in_words(self) -> str:
        """The plan in a few words, where its kind does not stand beside it."""
        if self.kind is Kind.ONE_DEVICE:
            return self.kind
        # Of these kinds only the number of devices is said.
        is_bare = self.kind in (Kind.WHOLE_OPS, Kind.SPLIT_OPS)
        return f"{self.kind} {self.what}" if is_bare else self.what

    @property
    def arguments(self) -> str:
        """The arguments of ``loadmaster place``, behind the graph and the cluster, that make such a
        plan; empty: none do alone.
        """
        return "" if self.request is None else arguments_of(self.request)

    def to_document(self) -> dict[str, Any]:
        """As plain data for JSON: seconds, bytes, shares."""
        fields = vars(self) | {"arguments": self.arguments}
        del fields["request"]
        return fields


def considered(plan: Plan) -> list[Considered]:
    """The best plan of each kind that was judged, the fastest that fits first.

    The plan itself is among them, and what one device takes: where none holds the graph, without
    seconds and at the end.
    """
    bests: dict[Kind, Best] = {}
    for one in sorted(plan.offers, key=lambda one: one.seconds):
        bests.setdefault(_kind(one), one)
    own = _own(plan, bests)
    bests = {kind: one for kind, one in bests.items() if kind != own.kind}
    rows = [_row(plan, own, is_plan=True), *(_row(plan, one) for one in bests.values())]
    if not any(row.kind is Kind.ONE_DEVICE for row in rows):
        single, ratio = plan.single, None if plan.single is None else 1.0
        request = REQUESTS[Kind.ONE_DEVICE]
        rows.append(Considered(Kind.ONE_DEVICE, "", single, ratio, request=request))
    return sorted(rows, key=lambda row: (row.seconds is None, not row.fits, row.seconds or 0.0))


def _own(plan: Plan, bests: Mapping[Kind, Best]) -> Best:
    """The plan as the best of its kind: what its method said of it, or what can be seen of it."""
    is_step = plan.objective.goal == "step"
    seconds = plan.as_run if is_step else plan.objective.seconds(plan.verdict)
    for one in bests.values():
        if one.seconds == seconds and one.kind:
            return one
    space = WHOLE_OPS if plan.program.is_plain else plan.space
    measured = ", measured" if plan.observed else ""
    peaks = zip(plan.verdict.peak.tolist(), plan.cluster.memory, strict=True)
    return Best(space, f"{in_words(plan)}{measured}", seconds, kind_of(plan), *fullest(peaks))


def _kind(one: Best) -> Kind:
    """The kind of an offer; plans of older versions name the space alone."""
    return one.kind or Kind(one.space)


def _row(plan: Plan, one: Best, *, is_plan: bool = False) -> Considered:
    left, single = None, plan.single
    if one.kind is Kind.WHOLE_OPS and one.seconds and WHOLE_OPS in plan.bounds:
        left = max(1 - plan.bounds[WHOLE_OPS] / one.seconds, 0.0)
    return Considered(
        kind=_kind(one),
        what=one.what,
        seconds=one.seconds,
        ratio=single / one.seconds if single and one.seconds else None,
        peak=one.peak,
        memory=one.memory,
        fits=plan.fits if is_plan else (one.peak or 0) <= (one.memory or 0),
        left=left,
        request=one.request,
        is_plan=is_plan,
    )


def kind_of(plan: Plan) -> Kind:
    """The kind of plans that a plan is of; see :func:`loadmaster.strategies.kinds.kind_of`."""
    return kinds.kind_of(plan.program, len(set(plan.running_devices.tolist())))


def in_words(plan: Plan) -> str:
    """A plan in a few words, by what it looks like."""
    if kind_of(plan) is Kind.REPLICAS:
        return kinds.replicas_in_words(plan.program)
    if plan.recipe is None:
        return f"on {counted(len(set(plan.running_devices.tolist())), 'device')}"
    words = mesh_in_words(plan.recipe.mesh)
    micro = plan.recipe.micro
    if micro is None:
        return f"a mesh of {words}"
    return f"{words}, {counted(micro.n, 'micro-batch', 'micro-batches')}, {micro.schedule}"


def head(plan: Plan) -> list[str]:
    """A line for each kind of plans, and one for what was not considered, for a person."""
    rows = considered(plan)
    first = next((row for row in rows if row.ratio is not None), None)
    lines = aligned([_cells(plan, row, row is first) for row in rows])
    left = not_considered(plan)
    return [*(f"  {line}" for line in lines), *([f"Not considered: {left}."] if left else [])]


def arguments_of(request: Request) -> str:
    """The arguments of ``loadmaster place`` that ask for a plan.

    >>> arguments_of(Request("data-parallel", (("replicas", 2),)))
    '--method data-parallel --option replicas=2'
    >>> arguments_of(REQUESTS[Kind.WHOLE_OPS])
    '--split none'
    """
    words = [] if request.method == DEFAULT else ["--method", request.method]
    for name, value in request.options:
        words += ["--split", str(value)] if name == "split" else ["--option", f"{name}={value}"]
    return command(*words)


def _cells(plan: Plan, row: Considered, is_first: bool) -> tuple[str, ...]:
    if row.seconds is None:
        return row.kind, "-", "", "", "found none that holds everything, in any order tried"
    ratio = (
        ""
        if row.ratio is None
        else f"{format_ratio(row.ratio)} x{' one device' if is_first else ''}"
    )
    fits = "fits" if row.fits else "DOES NOT FIT"
    if row.peak is not None and row.memory is not None:
        fits += f", {format_bytes(row.peak)} of {format_bytes(row.memory)}"
    if row.kind is Kind.ONE_DEVICE and row.fits and not row.is_plan:
        single = on_one_device(plan)
        fits += _HELD if single is not None and is_short(single) else ""
    name = "" if row.kind is Kind.ONE_DEVICE else row.what
    said = ["this plan", name] if row.is_plan else [name, row.arguments]
    words = [": ".join(filter(None, said))]
    if row.left is not None and not (row.is_plan and plan.space == WHOLE_OPS):
        words.append(f"at most {row.left:.1%} better is possible with ops whole")
    return row.kind, format_seconds(row.seconds), ratio, fits, "; ".join(words)


def not_considered(plan: Plan) -> str:
    """Kinds of plans that were not judged and might be better, with why; empty on one device."""
    if plan.cluster.n_devices == 1:
        return ""
    if plan.target is not None:
        limits = [f"{kind}; {why}" for kind, why in plan.left_out]
        return limits[0] if limits else f"what the target {plan.target} cannot run"
    if plan.method == DEFAULT:
        reasons: dict[str, list[str]] = {}
        for kind, why in plan.left_out:
            reasons.setdefault(why, []).append(_OF_SEVERAL.get(kind, kind))
        left = [f"{', '.join(kinds)} ({why})" for why, kinds in reasons.items()]
        return "; ".join([*left, _NEVER])
    others = [kind for kind in REQUESTS if kind not in (Kind.ONE_DEVICE, kind_of(plan))]
    return f"other methods, such as {DEFAULT}, which has {', '.join(others)} where it can"
