"""Advice: what each system that runs plans would make of a graph on a cluster, side by side."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from loadmaster.base.quoting import command
from loadmaster.base.text import Printed, aligned, in_lines
from loadmaster.base.units import format_bytes, format_ratio, format_seconds
from loadmaster.judge.bounds import WHOLE_OPS, launches_in_words
from loadmaster.plans import ranges
from loadmaster.plans.apart import in_words
from loadmaster.plans.considered import considered
from loadmaster.plans.kept_free import kept_in_words
from loadmaster.plans.plan import Plan
from loadmaster.plans.summary import document, estimated
from loadmaster.plans.words import no_placement, parallelism_in_words, title
from loadmaster.transforms.shares import batch_size

_SPLITTING = "replicas, split ops, pipelines"


@dataclass(frozen=True)
class Choice:
    """A plan, and the arguments of ``loadmaster place`` that make it.

    Attributes
    ----------
    name : str
        Of the target, or of the method ``auto``.
    arguments : str
        Of ``loadmaster place``, behind the graph and the cluster.
    plan : Plan
    """

    name: str
    arguments: str
    plan: Plan

    @property
    def words(self) -> str:
        """The plan in a few words."""
        named = parallelism_in_words(self.plan)
        return named or next(row for row in considered(self.plan) if row.is_plan).in_words


@dataclass(frozen=True)
class Advice(Printed):
    """Advice on a graph and a cluster: choices, the fastest that fits first.

    Attributes
    ----------
    choices : tuple of Choice
        ``auto`` is among them: the best plan of any space. The others are of targets.
    refused : mapping of target to str
        Why a target that was tried has no plan.
    graph, cluster : str
        As the command line takes them, for the commands: names or paths, or words for them.
    flags : tuple of str
        Arguments of the command line that are those of each command too.
    unsure : int
        How many of the first choices cannot be told apart by their times.
    """

    choices: tuple[Choice, ...]
    refused: Mapping[str, str]
    graph: str
    cluster: str
    flags: tuple[str, ...] = ()
    unsure: int = 1

    @property
    def best(self) -> Plan:
        """The fastest plan that fits, or the simplest of those that cannot be told apart."""
        return self.choices[0].plan

    def command(self, choice: Choice) -> str:
        """The command that makes a choice's plan."""
        words = ("loadmaster", "place", self.graph, "--cluster", self.cluster, *self.flags)
        return command(*words, *choice.arguments.split(), "-o", "plan.json")

    def to_document(self) -> dict[str, Any]:
        """As plain data for JSON."""
        return {
            "choices": [
                {"name": one.name, "command": self.command(one), "plan": document(one.plan)}
                for one in self.choices
            ],
            "not_told_apart": [one.name for one in self.choices[: self.unsure]],
            "refused": dict(self.refused),
        }

    def __str__(self) -> str:
        best = self.best
        step = "a training step" if best.problem.waits_for_updates else "an inference"
        batch = batch_size(best.graph)
        rows = [(*self._row(choice), self.command(choice)) for choice in self.choices]
        return in_lines(
            [
                f"{title(best)}: {step}{f', batch {batch}' if batch else ''}",
                *(f"  {line}" for line in aligned(rows)),
                *in_words([one.name for one in self.choices[: self.unsure]]),
                *([f"Range of the first: {words}."] if (words := ranges.in_words(best)) else []),
                f"{no_placement(best).capitalize()} can be more than {best.gap:.1%} faster than "
                f"the first ({best.bound_source}, {launches_in_words(best.cluster)}).",
                *self._left_out(),
                f"Times {estimated(best)}.",
                *([f"Reserve {words}."] if (words := kept_in_words(best)) else []),
            ]
        )

    def _row(self, choice: Choice) -> tuple[str, ...]:
        """A line of the table; one device is at the prices of the plan's own system."""
        plan, single = choice.plan, choice.plan.single
        ratio = (
            f"{format_ratio(single / plan.as_run)} x one device" if single else "one device cannot"
        )
        fullest = max(
            zip(plan.memory.peak.tolist(), plan.cluster.memory, strict=True),
            key=lambda pair: pair[0] / max(pair[1], 1),
        )
        memory = f"{format_bytes(fullest[0])} of {format_bytes(fullest[1])}"
        return (
            choice.name,
            choice.words,
            format_seconds(plan.as_run),
            ratio,
            f"fits, {memory}" if plan.fits else f"DOES NOT FIT, {memory}",
        )

    def _left_out(self) -> list[str]:
        lines = [f"{name} has no plan: {why}" for name, why in self.refused.items()]
        streams = any(one.name == "device-map" for one in self.choices)
        spaces = [] if any(one.plan.space != WHOLE_OPS for one in self.choices) else [_SPLITTING]
        left = [*spaces, *([] if streams else ["weights kept on the CPU"]), "lower precision"]
        lines.append(f"Not considered: {', '.join(left)}.")
        return lines
