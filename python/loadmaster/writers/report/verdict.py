"""The head of a report: how good the plan is, what was not tried, how sure its times are."""

from __future__ import annotations

from loadmaster.base.units import format_ratio, format_seconds
from loadmaster.plans import commands, ranges
from loadmaster.plans.considered import considered, not_considered
from loadmaster.plans.kept_free import asked, kept_in_words
from loadmaster.plans.plan import Plan
from loadmaster.plans.specs import recipe_in_words
from loadmaster.plans.streams import rate_in_words, shortest, stream_facts
from loadmaster.plans.summary import is_estimated, moved, shares_of_time, shortage, verdict
from loadmaster.plans.words import bound_in_words, no_placement, parallelism_in_words
from loadmaster.strategies.kinds import Kind
from loadmaster.writers.report.markup import definitions, text

#: Arguments of the commands that take measured times in place of estimates.
_CALIBRATE = ("--profile", "STEPS.csv", "-o", "costs.json")
_PLACE = ("--costs", "costs.json")


def head(plan: Plan) -> str:
    """The verdict in one sentence, and a banner where it stands on estimates."""
    return f'<p class="lead">{_sentence(plan)}</p>{_banner(plan)}'


def verdict_list(plan: Plan) -> str:
    """The facts behind the verdict, and how the plan was made, folded."""
    details = f"<details><summary>How it was planned</summary>{definitions(how(plan))}</details>"
    return definitions(facts(plan)) + details


def _sentence(plan: Plan) -> str:
    step = format_seconds(plan.makespan)
    said = f"<b>{text(step)}</b> per step{', measured' if plan.observed else ''}"
    if plan.verdict.steady is not None:
        period = f"a batch every {format_seconds(plan.period)}"
        said = f"<b>{text(period)}</b>, {text(rate_in_words(plan))}"
    elif plan.single is not None and plan.makespan:
        said += f", <b>{format_ratio(plan.single / plan.makespan)} x</b> as fast as one device"
    elif plan.single is None:
        said += ". No one device was found to hold everything"
    fits = (plan.predicted if plan.memory.is_predicted else plan).fits
    return said + (". It fits." if fits else ". It <strong>does not fit</strong>.")


def _banner(plan: Plan) -> str:
    if not is_estimated(plan):
        return ""
    measure = commands.of(plan, "calibrate", *_CALIBRATE), commands.of(plan, "place", *_PLACE)
    shown = "".join(f"<code>{text(command)}</code>" for command in measure)
    return (
        f'<aside role="note"><p>Times of ops are estimates: {text(shares_of_time(plan))}. '
        f"For times of your devices, profile some steps, then plan again:</p>{shown}</aside>"
    )


def facts(plan: Plan) -> list[tuple[str, str]]:
    """Facts that a person wants to know first, as names and values."""
    rows = [
        *([] if plan.verdict.steady is None else stream_facts(plan)),
        ("step time, measured" if plan.observed else "step time", format_seconds(plan.makespan)),
        ("one device", _one_device(plan)),
        ("parallelism", parallelism_in_words(plan)),
        ("recipe", "" if plan.recipe is None else recipe_in_words(plan)),
        *_others(plan),
        ("lower bound", bound_in_words(plan)),
        ("gap", _gap(plan)),
        ("not considered", not_considered(plan)),
        ("memory", _memory(plan)),
        ("moved", moved(plan.schedule)),
        ("constraints", "" if asked(plan).is_empty else str(asked(plan))),
        ("range", ranges.in_words(plan)),
        ("reserve", kept_in_words(plan)),
        ("verdict", verdict(plan) or ""),
    ]
    return [row for row in rows if row[1]]


def _others(plan: Plan) -> list[tuple[str, str]]:
    """The best of each other kind of plans that was judged; one device has a row of its own."""
    rows = []
    for row in considered(plan):
        if row.seconds is not None and not row.is_plan and row.kind is not Kind.ONE_DEVICE:
            left = "" if row.left is None else f", at most {row.left:.1%} better is possible"
            rows.append((f"best {row.kind}", f"{format_seconds(row.seconds)}: {row.what}{left}"))
    return rows


def how(plan: Plan) -> list[tuple[str, str]]:
    """Facts on the making of the plan, as names and values."""
    options = ", ".join(f"{k}={v}" for k, v in plan.options.items())
    rows = [
        ("method", f"{plan.method}{f' ({options})' if options else ''}, seed {plan.seed}"),
        ("target", plan.target or ""),
        ("planned in", format_seconds(plan.planning_seconds)),
        ("times of ops", shares_of_time(plan)),
        *(("note", note) for note in plan.notes),
    ]
    return [row for row in rows if row[1]]


def _gap(plan: Plan) -> str:
    if plan.objective.goal == "throughput":
        return f"{plan.gap:.1%}: {shortest(plan)}"
    return f"{plan.gap:.1%}: {no_placement(plan)} can be faster by more than this"


def _one_device(plan: Plan) -> str:
    if plan.single is None:
        return "none found that holds everything, in any order tried"
    ratio = plan.single / plan.makespan if plan.makespan else 1.0
    return f"{format_seconds(plan.single)}: the plan is {format_ratio(ratio)} x as fast"


def _memory(plan: Plan) -> str:
    """Words on whether it fits; of a run that did not measure its memory, whether it was predicted
    to.
    """
    judged = plan.predicted if plan.memory.is_predicted else plan
    words = shortage(judged.schedule, plan.cluster, plan.program) or "fits"
    return f"{words}, as predicted" if plan.memory.is_predicted else words
