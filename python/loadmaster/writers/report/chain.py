"""The chain of causes, summed up: its links by kind of work and module, longest first."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from loadmaster.base.units import counted, format_seconds
from loadmaster.judge.simulation import Blame
from loadmaster.model.patterns import layerless
from loadmaster.plans.plan import Plan
from loadmaster.writers.pictures.messages import WORDS, Messages
from loadmaster.writers.report.markup import breakable, text

#: Parts of a smaller share of the step are summed up, and those after so many longer ones.
LITTLE, MOST = 0.01, 12


@dataclass(frozen=True)
class ChainPart:
    """Links of one kind in modules that differ in numbers alone, or the sum of small parts.

    Attributes
    ----------
    kind : str
        Of op or collective, ``"transfer"``, ``"copies"`` or ``"launches"``; of a sum, what is in
        it.
    module : str
        With ``*`` for numbers; empty: any.
    where : str
        The devices, the longest first.
    seconds : float
    links : tuple of int
        Indices into the chain from its first link on, the longest first.
    """

    kind: str
    module: str
    where: str
    seconds: float
    links: tuple[int, ...]


def parts(plan: Plan) -> list[ChainPart]:
    """The parts of a plan's chain of causes, the longest first; every link is in one of them.

    Those of less than :data:`LITTLE` of the step, and those after the :data:`MOST` longest, are
    summed up by kind; what is little then too is one last part. O(links log links).
    """
    chain, messages = plan.schedule.blame[::-1], Messages(plan)
    length = [link.finish - link.start for link in chain]
    links: dict[tuple[str, str], list[int]] = defaultdict(list)
    for k, link in enumerate(chain):
        links[_kind(plan, messages, link), _module(plan, link)].append(k)

    def part(kind: str, module: str, of: Iterable[int]) -> ChainPart:
        longest = tuple(sorted(of, key=lambda k: (-length[k], k)))
        seconds = sum(length[k] for k in longest)
        return ChainPart(kind, module, _where(plan, messages, longest), seconds, longest)

    least = LITTLE * plan.makespan
    rows = [part(kind, "" if module == "." else module, of) for (kind, module), of in links.items()]
    rows.sort(key=lambda one: (-one.seconds, one.kind, one.module))
    kept = [one for one in rows[:MOST] if one.seconds >= least]
    by_kind: dict[str, list[int]] = defaultdict(list)
    for one in rows[len(kept) :]:
        by_kind[one.kind] += one.links
    named = {one.kind for one in kept}
    sums = [part(kind, "elsewhere" if kind in named else "", of) for kind, of in by_kind.items()]
    little = [one for one in sums if one.seconds < least]
    kept += [one for one in sums if one.seconds >= least]
    kept.sort(key=lambda one: (-one.seconds, one.kind, one.module))
    if len(little) > 1:
        words = f"{counted(len(little), 'kind')}, each less than {LITTLE:.0%}"
        return [*kept, part(words, "", (k for one in little for k in one.links))]
    return kept + little


def _kind(plan: Plan, messages: Messages, link: Blame) -> str:
    if link.doing in WORDS:
        return WORDS[link.doing]
    message = messages.of_link(link)
    if link.op is None or message >= 0:
        return messages.kind(message)
    return plan.program.graph.kinds[link.op] or "ops"


def _module(plan: Plan, link: Blame) -> str:
    """The module that a link is of, without its numbers; of a transfer, the sender's."""
    op = int(plan.schedule.transfers.op[link.transfer]) if link.op is None else link.op
    return layerless(plan.program.graph.modules[op])


def _where(plan: Plan, messages: Messages, links: tuple[int, ...]) -> str:
    chain, devices = plan.schedule.blame[::-1], plan.cluster.devices
    seconds: dict[str, float] = defaultdict(float)
    for k in links:
        link, message = chain[k], messages.of_link(chain[k])
        if link.doing == "launch":
            place = "host"
        elif link.doing == "copy":
            place = devices[int(plan.schedule.transfers.src[message])].name
        elif link.op is None or (message >= 0 and link.doing != "share"):
            place = messages.places[message]
        else:
            place = devices[int(plan.schedule.devices[link.op])].name
        seconds[place] += link.finish - link.start
    (first, _), *others = sorted(seconds.items(), key=lambda row: (-row[1], row[0]))
    return first if not others else f"{first} and {len(others)} more"


def parts_table(rows: list[ChainPart], span: float) -> str:
    """The parts as rows whose buttons open their links (``page.chain.js``), and the time between
    links, which measured steps have.
    """
    most = max((part.seconds for part in rows), default=0.0) or 1.0
    lines = []
    for i, part in enumerate(rows):
        module = f'<span class="quiet">{breakable(part.module)}</span>' if part.module else ""
        lines.append(
            f'<tr><td><button type="button" class="opens" aria-expanded="false" data-part="{i}">'
            f'{breakable(part.kind)}</button> {module}</td><td class="bar"><div>'
            f'<i style="width:{100 * part.seconds / most:.2f}%"></i></div></td>'
            f"<td>{_share(part.seconds, span)}</td><td>{counted(len(part.links), 'link')}</td>"
            f"<td>{text(part.where)}</td></tr>"
        )
    between = span - sum(part.seconds for part in rows)
    if between > 5e-4 * span:
        lines.append(
            f'<tr><td>between links</td><td class="bar"></td><td>{_share(between, span)}</td>'
            "<td></td><td></td></tr>"
        )
    return f'<table id="chain" class="bars"><tbody>{"".join(lines)}</tbody></table>'


def _share(seconds: float, span: float) -> str:
    return f"{seconds / (span or 1.0):.1%}, {format_seconds(seconds)}"
