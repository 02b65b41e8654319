"""Why an op is where it is: what it waited for, what bound it, what other devices would cost.

An op that has parts is explained part by part. Parts of a recipe have their places on its mesh, so
other labels are tried for them, and no other devices.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadmaster.base.text import Printed, in_lines
from loadmaster.base.units import changed, counted, format_bytes, format_seconds
from loadmaster.dimensions.words import word_of
from loadmaster.judge.simulation import bytes_moved
from loadmaster.judge.verdict import Verdict
from loadmaster.plans.effects import Caused, caused
from loadmaster.plans.plan import Plan
from loadmaster.plans.relabel import Relabelled, relabelled
from loadmaster.plans.told import stage_of
from loadmaster.rules.stages import Stages

#: Meanings of the words of recipes that name no cut.
MEANINGS = {
    "whole": "each does all of it",
    "Replicate": "each has all of it",
    "flat": "each has an equal part of its storage",
    "owner": "one has it",
}


@dataclass(frozen=True)
class Alternative:
    """A step simulated with the op, and those that must go with it, on another device.

    Attributes
    ----------
    device : str
    op_time : float
        Seconds the op takes there.
    makespan : float or None
        Simulated seconds per step; None: the device is not allowed.
    bytes_moved : int or None
        Between devices, in the whole step.
    over : dict of device name to bytes
        Memory short, where the step would not fit.
    """

    device: str
    op_time: float
    makespan: float | None
    bytes_moved: int | None
    over: dict[str, int]


@dataclass(frozen=True)
class Explanation(Printed):
    """Why an op is where it is.

    Attributes
    ----------
    op, kind, module : str
    device : str
    start, finish : float
        Seconds.
    waited : str
        What its start waited for, as a sentence.
    constraint : str
        What bound it, as a sentence.
    goes_with : tuple of str
        Ops that must share its device.
    makespan : float
        Seconds per step, as simulated, like those of the alternatives.
    bytes_moved : int
        Between devices, as planned.
    alternatives : tuple of Alternative
        The other devices, the best first: those that fit, then those that are least over.
    feeds : tuple of str
        The collectives that read what it makes: kind, bytes, devices, when.
    label : tuple of str
        How a recipe shares it, a sentence per axis; of a parameter, how it lies.
    caused : tuple of Caused
        The collectives that bring its input or take its output.
    relabelled : tuple of Relabelled
        The step with each other label, the best first.
    parts : tuple of Explanation
        Of an op that has parts, each of them, by the name of the op that runs. The op's own
        figures are then those of all parts: every device, the first start, the last finish, what
        the part that ends last waited for.
    """

    op: str
    kind: str
    module: str
    device: str
    start: float
    finish: float
    waited: str
    constraint: str
    goes_with: tuple[str, ...]
    makespan: float
    bytes_moved: int
    alternatives: tuple[Alternative, ...]
    feeds: tuple[str, ...] = ()
    label: tuple[str, ...] = ()
    caused: tuple[Caused, ...] = ()
    relabelled: tuple[Relabelled, ...] = ()
    parts: tuple[Explanation, ...] = ()

    def to_document(self) -> dict[str, Any]:
        """As plain data for JSON; what only ops of recipes or with parts have only where it is."""
        document, some = asdict(self), ("feeds", "label", "caused", "relabelled", "parts")
        return {k: v for k, v in document.items() if v or k not in some}

    def __str__(self) -> str:
        kind = f" ({self.kind})" if self.kind else ""
        if self.parts:
            head = f"{self.op}{kind} has {counted(len(self.parts), 'part')}, on {self.device}"
            if self.label:
                return in_lines([head, *self._split, *self._on_mesh])
            return "\n".join([in_lines([head, *self._split]), *map(str, self.parts)])
        lines = [
            f"{self.op}{kind} is on {self.device}, "
            f"from {format_seconds(self.start)} to {format_seconds(self.finish)}",
            *self._split,
            f"it waited for {self.waited}",
            *(f"it feeds {reader}" for reader in self.feeds),
            f"bound by: {self.constraint}",
        ]
        for other in self.alternatives:
            lines.append(f"on {other.device}: {self._verdict(other)}")
        return in_lines(lines)

    @property
    def _split(self) -> list[str]:
        """Its split, with what that caused, and what other labels would."""
        return [*self.label, *map(str, self.caused), *map(str, self.relabelled)]

    @property
    def _on_mesh(self) -> list[str]:
        """Times of the parts of a recipe, and the cause that the last of them ended no sooner."""
        when: dict[str, list[str]] = {}
        for part in self.parts:
            span = f"from {format_seconds(part.start)} to {format_seconds(part.finish)}"
            when.setdefault(span, []).append(part.device)
        last = max(self.parts, key=lambda part: part.finish)
        return [
            *(f"{span} on {', '.join(devices)}" for span, devices in when.items()),
            f"the last to end, on {last.device}, waited for {last.waited}",
            *(f"it feeds {reader}" for reader in last.feeds),
            f"bound by: {last.constraint}",
        ]

    def _verdict(self, other: Alternative) -> str:
        if other.makespan is None or other.bytes_moved is None:
            return "not allowed"
        change = other.makespan - self.makespan
        moved = other.bytes_moved - self.bytes_moved
        step = changed(change, "slower per step", "faster per step", "a step as long")
        bytes_moved = f"{format_bytes(abs(moved))} {'more' if moved > 0 else 'less'} to move"
        text = f"{step}, {bytes_moved if moved else 'as much to move'}"
        short = ", ".join(f"{d} {format_bytes(b)}" for d, b in other.over.items())
        return text + (f"; would not fit (short: {short})" if short else "")


class _Alternative(NamedTuple):
    """An alternative, and its verdict in the room that there is; None where it is not allowed."""

    alternative: Alternative
    verdict: Verdict | None


class When(NamedTuple):
    """The run of an op: its name, seconds, and the event that its start waited for."""

    op: str
    start: float
    finish: float
    waited: str


def when(plan: Plan, op: str | int) -> tuple[When, ...]:
    """The run of an op of the user's, or of each of its parts; as simulated, or as measured.

    Raises
    ------
    InputError
        No op has that name.
    """
    return tuple(_when(plan, i) for i in plan.program.parts_of(plan.graph.index(op)).tolist())


def _when(plan: Plan, index: int) -> When:
    return When(
        plan.program.graph.names[index],
        float(plan.schedule.start[index]),
        float(plan.schedule.finish[index]),
        _waited(plan, index, int(plan.problem.reduced.map[index])),
    )


def explain(plan: Plan, op: str | int) -> Explanation:
    """Explains one op of a plan, by name or index.

    Every other device is tried: the op moves there with all that must share its device, and the
    step is simulated. O(devices) simulations, for each part where the op has several. Of a plan
    with a recipe, every other label is tried too (:mod:`.relabel`).

    Raises
    ------
    InputError
        No op has that name.
    """
    index = plan.graph.index(op)
    name = plan.graph.names[index]
    parts = plan.program.parts_of(index).tolist()
    is_on_mesh = plan.recipe is not None and len(parts) > 1
    explained_parts = tuple(_explained(plan, i, is_on_mesh=is_on_mesh) for i in parts)
    split: dict[str, Any] = {
        "label": _label(plan, index),
        "caused": caused(plan, index),
        "relabelled": relabelled(plan.predicted, index),
    }
    if len(explained_parts) == 1:
        return replace(explained_parts[0], op=name, **split)
    return replace(
        max(explained_parts, key=lambda part: part.finish),
        op=name,
        device=", ".join(dict.fromkeys(part.device for part in explained_parts)),
        start=min(part.start for part in explained_parts),
        goes_with=tuple(
            dict.fromkeys(other for part in explained_parts for other in part.goes_with)
        ),
        alternatives=(),
        feeds=tuple(dict.fromkeys(reader for part in explained_parts for reader in part.feeds)),
        parts=explained_parts,
        **split,
    )


def _label(plan: Plan, index: int) -> tuple[str, ...]:
    """The recipe of a plan on one of the user's ops, a sentence per axis."""
    if plan.recipe is None or plan.graph.view[index]:
        return ()
    if (stage := stage_of(plan)) is not None and plan.recipe.micro is not None:
        micro = counted(plan.recipe.micro.n, "micro-batch", "micro-batches")
        return (f"stage {stage[index]} of {stage.max() + 1}, with {micro}", *_inside(plan, index))
    return _inside(plan, index)


def _inside(plan: Plan, index: int) -> tuple[str, ...]:
    """One of the user's ops in a layout: how it is shared, a sentence per axis."""
    layout, said = plan.layout, list[str]()
    if layout is None:
        return ()
    form_of, is_placeholder = layout.dimensions.form_of, bool(plan.graph.placeholder[index])
    form = layout.dimensions.forms[form_of[index]] if form_of[index] >= 0 else None
    idle = (plan.program.share[plan.program.parts_of(index)] == 0).any()
    part = "some do a part, the others nothing" if idle else "each does a part"
    for axis, label in zip(layout.mesh.axes, layout.labels[:, index].tolist(), strict=True):
        word = word_of(form, label, is_placeholder=is_placeholder)
        meaning = MEANINGS.get(word, "each has a part" if is_placeholder else part)
        if form is not None and label > 0:
            cut = form.cuts[label - 1]
            meaning = meaning if cut.works else "each does all of it, and their results add up"
            word = word if is_placeholder else cut.name
            word += f" ({cut.role})" if cut.role not in ("", word) else ""
        said.append(f"on {axis.name} ({counted(axis.size, 'device')}): {word}, {meaning}")
    if layout.experts_cut[:, index].any():
        said.append(
            f"the busiest device does {layout.expert_imbalance:g} times its fair share of the "
            "experts' work (expert_imbalance)"
        )
    return tuple(said)


def _explained(plan: Plan, index: int, *, is_on_mesh: bool) -> Explanation:
    """Explains an op of the graph that runs. What is on a mesh has no place beside its own."""
    problem, program, ran = plan.problem, plan.program, _when(plan, index)
    planned, stands_for = plan.predicted, int(problem.reduced.map[index])
    sets = plan.binding.sets
    moved = np.flatnonzero(sets == sets[stands_for])
    stages = Stages.of(problem) if plan.constraints.contiguous else None
    here = int(plan.assignment.devices[stands_for])
    tried = [
        _tried(planned, stands_for, moved, device, stages)
        for device in range(plan.cluster.n_devices)
        if device != here and not is_on_mesh
    ]
    rank = problem.objective.rank
    tried.sort(key=lambda one: (0, rank(one.verdict)) if one.verdict else (1, (0, 0.0)))
    others = program.serves[problem.reduced.op_of[moved[moved != stands_for]]].tolist()
    return Explanation(
        op=ran.op,
        kind=program.graph.kinds[index],
        module=program.graph.modules[index],
        device=plan.cluster.devices[here].name,
        start=ran.start,
        finish=ran.finish,
        waited=ran.waited,
        constraint=_constraint(planned, index, stands_for, moved, tried),
        goes_with=tuple(dict.fromkeys(program.source.names[other] for other in others)),
        makespan=planned.makespan,
        bytes_moved=planned.schedule.bytes_moved,
        alternatives=tuple(one.alternative for one in tried),
        feeds=_feeds(plan, stands_for),
    )


def _tried(
    plan: Plan, op: int, moved: NDArray[np.int64], device: int, stages: Stages | None
) -> _Alternative:
    problem = plan.problem
    device_type = plan.cluster.device_types[device]
    name = plan.cluster.devices[device].name
    op_time = float(problem.time[op, device_type])
    devices = plan.assignment.devices.copy()
    devices[moved] = device
    in_order = stages is None or stages.hold(problem, devices)
    if not (in_order and plan.binding.allowed[op, device]):
        return _Alternative(Alternative(name, op_time, None, None, {}), None)
    schedule = problem.simulate(devices, plan.assignment.priority, policy=plan.policy)
    over = plan.cluster.shortfall(schedule.peak, plan.binding.room)
    moved_bytes = bytes_moved(problem, schedule, devices)
    alternative = Alternative(name, op_time, schedule.makespan, moved_bytes, over)
    return _Alternative(alternative, Verdict.of(schedule, plan.binding.room))


def _feeds(plan: Plan, stands_for: int) -> tuple[str, ...]:
    """The collectives that read what a reduced op makes."""
    together, reduced = plan.schedule.collectives, plan.problem.reduced
    src, dst, _, _ = reduced.graph.flows()
    readers = reduced.op_of[dst[src == stands_for]]
    of = together.of_op(plan.program.graph.n_ops)
    said = []
    for reader in readers[of[readers] >= 0].tolist():
        last = int(reduced.map[together.op[of[reader]]])
        was_last = plan.schedule.waited(last) == ("op", stands_for)
        said.append(_under_way(plan, reader) + (", which waited for it last" if was_last else ""))
    return tuple(dict.fromkeys(said))


def _under_way(plan: Plan, member: int) -> str:
    """The collective of an op of the graph that runs, and when it ran."""
    together = plan.schedule.collectives
    of = int(together.of_op(plan.program.graph.n_ops)[member])
    start, finish = float(together.start[of]), float(together.finish[of])
    return f"{together.label(of)}, from {format_seconds(start)} to {format_seconds(finish)}"


def _waited(plan: Plan, index: int, stands_for: int) -> str:
    label, op_of = plan.program.label, plan.problem.reduced.op_of
    if op_of[stands_for] != index:
        if plan.program.graph.view[index]:
            return f"nothing of its own: it is a view of what {label(op_of[stands_for])} made"
        return "nothing: it is there when the step begins"
    cause = _cause(plan, stands_for)
    if not plan.program.graph.is_member[index]:
        return cause
    of = plan.schedule.collectives.of_op(plan.program.graph.n_ops)[index]
    if of < 0:
        return cause
    return f"the last member of {plan.schedule.collectives.label(int(of))}, which needed {cause}"


def _cause(plan: Plan, reduced_op: int) -> str:
    """The cause that the start of an op waited for; of a member, the cause of the last one."""
    label, op_of, sent = plan.program.label, plan.problem.reduced.op_of, plan.schedule.transfers
    devices = [device.name for device in plan.cluster.devices]
    reason, cause = plan.schedule.waited(reduced_op)
    if reason == "op" and plan.program.graph.is_member[op_of[cause]]:
        return _under_way(plan, int(op_of[cause]))
    if reason == "op":
        here, there = plan.assignment.devices[[reduced_op, cause]].tolist()
        where = "the same device" if here == there else devices[there]
        return f"its input from {label(op_of[cause])} on {where}"
    if reason == "device":
        return f"the device, busy with {label(op_of[cause])}"
    if reason == "collective":
        return f"a channel, busy with {_under_way(plan, int(op_of[cause]))}"
    if reason == "channel":
        return f"a channel, busy with what {label(sent.op[cause])} made, on its way"
    if reason == "transfer":
        return (
            f"its input from {label(sent.op[cause])} on {devices[sent.src[cause]]}: "
            f"{format_bytes(int(sent.bytes[cause]))}, sent from "
            f"{format_seconds(sent.start[cause])} to {format_seconds(sent.finish[cause])}"
        )
    if reason == "copy":
        return (
            f"the device, copying out what {label(sent.op[cause])} made for "
            f"{devices[sent.dst[cause]]}"
        )
    if reason == "share":
        return f"the device, busy with its share of {_under_way(plan, int(op_of[cause]))}"
    launched = plan.schedule.timeline.launched
    if reason == "launch" and launched is not None:
        at = format_seconds(float(launched[op_of[cause]]))
        return f"its launch: its host launches one op after another, and this one by {at}"
    return "nothing: it runs first"


def _constraint(
    plan: Plan, index: int, stands_for: int, moved: NDArray[np.int64], others: list[_Alternative]
) -> str:
    problem, label, ran = plan.problem, plan.program.label, plan.program.graph
    op_of = problem.reduced.op_of
    if op_of[stands_for] != index:
        kind = "a view sits with its data" if ran.view[index] else "it lives at home"
        return f"{kind}, with {label(op_of[stands_for])}"
    asked = plan.binding.reasons(stands_for)
    if asked:
        return f"constraint: {'; '.join(asked)}"
    if plan.recipe is not None and not others and plan.program.rank[index] >= 0:
        return f"the recipe: it is on {plan.program.place_of(index)}"
    if others and not plan.binding.allowed[stands_for].sum() > 1:
        return f"device types: it may run on {ran.device_types[index]} only"
    if plan.constraints.contiguous and all(other.verdict is None for other in others):
        return "constraint: contiguous stages leave it no other device"
    if len(moved) > 1:
        first = [label(op_of[m]) for m in moved if m != stands_for]
        more = f" and {len(first) - 1} more" if len(first) > 1 else ""
        return f"colocation: it shares a device with {first[0]}{more}"
    lead = int(problem.graph.lead[stands_for])
    if lead != stands_for and plan.assignment.devices[lead] == plan.assignment.devices[stands_for]:
        return f"nothing, but it follows {label(op_of[lead])}, which reads the same parameter"
    gain = problem.objective.gain
    faster = [o for o in others if o.verdict and gain(plan.verdict, o.verdict) > 0]
    if faster and all(o.alternative.over for o in faster):
        return f"memory: {faster[0].alternative.device} would be faster but does not hold it"
    return "nothing: the method chose this device"
