"""The figures of a report that need no zooming of their own, as Plotly's data and layout.

Plain dictionaries: building them needs no plotly, whose script draws them in the browser.
"""

from __future__ import annotations

import html
from collections import defaultdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

import loadmaster.fast as fast
from loadmaster.base.units import counted, format_bytes, format_seconds
from loadmaster.judge.coarsening import coarsen_problem
from loadmaster.plans.comparison import Comparison
from loadmaster.plans.plan import Plan
from loadmaster.writers.pictures.bars import of_ops
from loadmaster.writers.pictures.graph_files import COLOURS
from loadmaster.writers.pictures.lanes import SENT, TOGETHER
from loadmaster.writers.pictures.messages import WORDS, Messages

Figure = dict[str, Any]

#: Groups of ops that the graph is shown in, each once per device that has some of it; the edges
#: shown are the heaviest.
GROUPS = 60
MAX_EDGES = 400

#: Kinds of op that the chain of causes is broken down by; the others count as one kind.
MAX_KINDS = 10

OURS, OTHERS, BOUND, IDLE = "#2f6db3", "#9db8d6", "#c43c2c", "#e3e7eb"
_ROW, _MARGIN, _BAND = 26, 70, 110


def figures(plan: Plan, comparison: Comparison | None) -> dict[str, Figure]:
    """All of them, by the id of the element each is drawn in."""
    return {
        "quality": quality(plan, comparison),
        "utilisation": utilisation(plan),
        "reasons": reasons(plan),
        "graph": coarse_graph(plan),
        "provenance": provenance(plan),
    }


def _named(name: str) -> str:
    """A name with HTML escaped, since Plotly's labels read some HTML."""
    return html.escape(name, quote=False)


def _bars(
    names: list[str], lengths: list[float], colour: str | list[str], hover: str, **more: Any
) -> Figure:
    """Horizontal bars; ``hover`` is Plotly's template of what a bar says."""
    return {
        "type": "bar",
        "orientation": "h",
        "y": [_named(name) for name in names],
        "x": lengths,
        "marker": {"color": colour},
        "hovertemplate": f"{hover}<extra></extra>",
        **more,
    }


def _layout(rows: list[str], **layout: Any) -> Figure:
    """A layout for horizontal bars, the first row on top."""
    axis = {"autorange": "reversed", "type": "category", "automargin": True, "ticksuffix": "  "}
    return {
        "height": _MARGIN + _ROW * max(len(rows), 2),
        "margin": {"l": 60, "r": 30, "t": 10, "b": 40},
        "yaxis": axis,
        "barmode": "stack",
        "showlegend": False,
        **layout,
    }


def quality(plan: Plan, comparison: Comparison | None) -> Figure:
    """Step times, or periods of plans for throughput, beside the lower bound: the plan, one device,
    other methods, fastest first.
    """
    seconds_of = plan.objective.seconds
    own = seconds_of(plan.verdict)
    rows = [(f"this plan ({plan.made_by})", own, f"gap {plan.gap:.1%}", OURS)]
    if plan.observed is not None:
        predicted = seconds_of(plan.predicted.verdict)
        rows.append(("this plan, predicted", predicted, "as simulated", OTHERS))
    if plan.single is not None:
        rows.append(("one device", plan.single, "all ops on the fastest that holds them", OTHERS))
    for method, other in comparison.best_first if comparison else ():
        peaks = zip(other.memory.peak.tolist(), other.cluster.memory, strict=True)
        fullest = max(peak / max(capacity, 1) for peak, capacity in peaks)
        said = (
            f"gap {other.gap:.1%}, moved {format_bytes(other.schedule.bytes_moved)}, "
            f"fullest device {fullest:.0%}{'' if other.fits else ' (DOES NOT FIT)'}, "
            f"planned in {format_seconds(other.planning_seconds)}"
        )
        rows.append((method, seconds_of(other.verdict), said, OTHERS))
    names, seconds, said_all, colours = (list(column) for column in zip(*rows, strict=True))
    lines, labels = _bound_lines(
        [plan, *(other for _, other in (comparison.best_first if comparison else ()))]
    )
    layout = _layout(
        names,
        xaxis={"rangemode": "tozero", "tickformat": "~s", "ticksuffix": "s"},
        shapes=lines,
        annotations=labels,
    )
    layout["margin"] |= {"t": 30}
    text = [format_seconds(s) for s in seconds]
    hover = "%{y}: %{text}<br>%{hovertext}"
    bars = _bars(names, seconds, colours, hover, text=text, hovertext=said_all)
    return {"data": [bars], "layout": layout}


def _bound_lines(plans: list[Plan]) -> tuple[list[Figure], list[Figure]]:
    """A line for the bound of each space of plans that one of these was searched in, and its label.

    The first plan's bound of a space counts.
    """
    bounds: dict[str, float] = {}
    for plan in plans:
        bounds.setdefault(plan.space, plan.lower_bound)
    lines: list[Figure] = []
    labels: list[Figure] = []
    for space, seconds in bounds.items():
        of = f" of {space}" if len(bounds) > 1 else ""
        line = {"type": "line", "x0": seconds, "x1": seconds, "yref": "paper", "y0": 0, "y1": 1}
        lines.append(line | {"line": {"color": BOUND, "width": 2, "dash": "dot"}})
        label = {"x": seconds, "yref": "paper", "y": 1, "yanchor": "bottom", "showarrow": False}
        text = f"lower bound{of} {format_seconds(seconds)}"
        labels.append(label | {"text": text, "font": {"color": BOUND}})
    return lines, labels


def utilisation(plan: Plan) -> Figure:
    """How much of the step each device computes and each channel carries something."""
    schedule, span = plan.schedule, plan.makespan or 1.0
    used = np.flatnonzero(schedule.channel_busy > 0).tolist()
    used.sort(key=lambda c: -schedule.channel_busy[c])
    busy = schedule.device_busy
    rows = [(d.name, busy[i], OURS) for i, d in enumerate(plan.cluster.devices)]
    rows += [(plan.cluster.channels[c], schedule.channel_busy[c], SENT) for c in used]
    names = [name for name, _, _ in rows]
    shares = [100 * float(busy) / span for _, busy, _ in rows]
    text = [f"{share:.1f} %" for share in shares]
    said = [format_seconds(float(busy)) for _, busy, _ in rows]
    colours = [colour for _, _, colour in rows]
    hover = "%{y}: %{text}, %{hovertext}"
    bars = _bars(names, shares, colours, hover, text=text, hovertext=said)
    idle = _bars(names, [100 - share for share in shares], IDLE, "%{y}: idle %{x:.1f} %")
    axis = {"range": [0, 100], "ticksuffix": " %"}
    return {"data": [bars, idle], "layout": _layout(names, xaxis=axis)}


def reasons(plan: Plan) -> Figure:
    """Seconds of the chain of causes, by kind of op or collective, and by device or devices."""
    seconds: dict[tuple[str, str], float] = defaultdict(float)
    messages, devices, schedule = Messages(plan), plan.cluster.devices, plan.schedule
    for link in schedule.blame:
        message = messages.of_link(link)
        if link.doing in WORDS:
            at = None if link.transfer is None else schedule.transfers.src[link.transfer]
            key = (WORDS[link.doing], "host" if at is None else devices[int(at)].name)
        elif link.op is None or message >= 0:
            key = (messages.kind(message), messages.places[message])
        else:
            device = devices[int(plan.schedule.devices[link.op])].name
            key = (plan.program.graph.kinds[link.op] or "ops", device)
        seconds[key] += link.finish - link.start
    by_kind: dict[str, float] = defaultdict(float)
    for (kind, _), s in seconds.items():
        by_kind[kind] += s
    kinds = sorted(by_kind, key=lambda kind: (-by_kind[kind], kind))
    shown = {kind: kind for kind in kinds[:MAX_KINDS]}
    merged: dict[tuple[str, str], float] = defaultdict(float)
    for (kind, place), s in seconds.items():
        merged[shown.get(kind, counted(len(kinds) - MAX_KINDS, "other kind")), place] += s
    rows = list(dict.fromkeys([*shown, *(kind for kind, _ in merged)]))
    colour = dict.fromkeys(messages.places[messages.n_transfers :], TOGETHER)
    colour |= {d.name: COLOURS[i % len(COLOURS)] for i, d in enumerate(devices)}
    traces = []
    for place in dict.fromkeys(place for _, place in merged):
        here = [row for row in rows if (row, place) in merged]
        lengths = [merged[row, place] for row in here]
        hover = "%{y}, %{fullData.name}: %{x:.3s}s"
        shown_in = colour.get(place, SENT)
        traces.append(_bars(here, lengths, shown_in, hover, name=_named(place)))
    axis = {"tickformat": "~s", "ticksuffix": "s"}
    order = {"categoryarray": [_named(row) for row in rows], "categoryorder": "array"}
    layout = _layout(rows, xaxis=axis)
    layout["yaxis"] |= order
    return {"data": traces, "layout": layout}


def provenance(plan: Plan) -> Figure:
    """Where the times come from, by share of the time."""
    traces = []
    for i, (word, share) in enumerate(plan.provenance.items()):
        colour, text = COLOURS[i % len(COLOURS)], [f"{word} {share:.0%}"]
        hover = f"{word}: %{{x:.1f}} %"
        traces.append(_bars(["times"], [100 * share], colour, hover, name=word, text=text))
    return {"data": traces, "layout": _layout([""], xaxis={"range": [0, 100], "ticksuffix": " %"})}


# -- the coarsened graph ---------------------------------------------------------------------


def coarse_graph(plan: Plan) -> Figure:
    """Groups of ops, parted by device, each at the middle of the time in which it runs.

    A node's area is its compute time, its colour and band the device; ``customdata`` is when its
    first op starts and its last ends. Edges are tensors between nodes, once per node that reads
    one.
    """
    problem, devices = plan.problem, plan.cluster.devices
    group = coarsen_problem(problem, "sequential", GROUPS).group.astype(np.int64)
    pair = group * len(devices) + plan.assignment.devices
    members, node = np.unique(pair, return_inverse=True)
    device = (members % len(devices)).astype(np.int64)
    x, y = _positions(plan, node, device)
    edges, left_out = _edges(plan, node, len(members))
    nodes = _nodes(plan, node, device, x, y)
    layout = {
        "height": _MARGIN + _BAND * len(devices),
        "margin": {"l": 60, "r": 30, "t": 30, "b": 40},
        "xaxis": {"tickformat": "~s", "ticksuffix": "s", "zeroline": False, "showgrid": False},
        "yaxis": {
            "autorange": "reversed",
            "tickvals": list(range(len(devices))),
            "ticktext": [_named(d.name) for d in devices],
            "automargin": True,
            "zeroline": False,
            "showgrid": False,
        },
        "showlegend": False,
        "hovermode": "closest",
        "title": {
            "text": f"{counted(problem.graph.n_ops, 'op')} in {counted(len(members), 'group')}"
            + (f", the {MAX_EDGES} heaviest of {MAX_EDGES + left_out} edges" if left_out else ""),
            "font": {"size": 12},
        },
    }
    return {"data": [*_lines(edges, x, y), nodes], "layout": layout}


def _positions(
    plan: Plan, node: NDArray[np.int64], device: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Positions of nodes: the mean middle of the ops' times, weighted by length; the device's band.

    A band has five rows, so that nodes overlap less.
    """
    ran = of_ops(plan)
    start, finish = ran.start, ran.finish
    weight = finish - start + 1e-12
    n = len(device)
    x = np.bincount(node, weight * (start + finish) / 2, n) / np.bincount(node, weight, n)
    y = device.astype(np.float64)
    for d in np.unique(device).tolist():
        here = np.flatnonzero(device == d)
        in_turn = here[np.argsort(x[here], kind="stable")]
        y[in_turn] += (np.arange(len(in_turn)) * 2 % 5 - 2) * 0.18
    return x, y


def _edges(plan: Plan, node: NDArray[np.int64], n: int) -> tuple[list[tuple[int, int, float]], int]:
    """Pairs of nodes with the bytes between them, the heaviest, and how many more there are."""
    src, dst, tensor, sizes, _ = fast.edges(plan.problem.graph)
    pair = node[src] * n + node[dst]
    apart = (node[src] != node[dst]) & (tensor >= 0)
    once = np.unique(np.stack([pair[apart], tensor[apart].astype(np.int64)]), axis=1,
                     return_index=True)[1]  # fmt: skip
    pairs, which = np.unique(pair[apart][once], return_inverse=True)
    total = np.bincount(which, sizes[apart][once].astype(np.float64), len(pairs))
    heaviest = np.argsort(-total, kind="stable")[:MAX_EDGES]
    rows = [(*divmod(int(pairs[i]), n), float(total[i])) for i in heaviest.tolist()]
    return rows, len(pairs) - len(heaviest)


def _lines(
    edges: list[tuple[int, int, float]], x: NDArray[np.float64], y: NDArray[np.float64]
) -> list[dict[str, Any]]:
    """A trace for each of three widths: edges in thirds by bytes, the heaviest first."""
    third = -(-len(edges) // 3) or 1
    traces = []
    for i, wide in enumerate((2.5, 1.2, 0.5)):
        part = edges[i * third : (i + 1) * third]
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "x": [v for a, b, _ in part for v in (float(x[a]), float(x[b]), None)],
                "y": [v for a, b, _ in part for v in (float(y[a]), float(y[b]), None)],
                "line": {"color": "rgba(70,80,90,0.35)", "width": wide},
                "hoverinfo": "skip",
            }
        )
    return traces


def _nodes(
    plan: Plan,
    node: NDArray[np.int64],
    device: NDArray[np.int64],
    x: NDArray[np.float64],
    y: NDArray[np.float64],
) -> dict[str, Any]:
    op_of, ran = plan.problem.reduced.op_of, of_ops(plan)
    start, finish = ran.start, ran.finish
    n = len(device)
    seconds = np.bincount(node, finish - start, n)
    order = np.argsort(node, kind="stable")
    edges = np.searchsorted(node[order], np.arange(n + 1))
    said, spans = [], []
    for g in range(n):
        ops = order[edges[g] : edges[g + 1]]
        longest = int(op_of[ops[np.argmax(finish[ops] - start[ops])]])
        spans.append([float(start[ops].min()), float(finish[ops].max())])
        module = plan.program.graph.modules[longest]
        said.append(
            f"{counted(len(ops), 'op')}, {format_seconds(float(seconds[g]))}<br>"
            f"longest: {_named(plan.program.graph.names[longest])}"
            + (f"<br>module {_named(module)}" if module else "")
        )
    return {
        "type": "scatter",
        "mode": "markers",
        "x": x.tolist(),
        "y": y.tolist(),
        "customdata": spans,
        "text": said,
        "hovertemplate": "%{text}<extra></extra>",
        "marker": {
            "size": (6 + 34 * np.sqrt(seconds / max(float(seconds.max()), 1e-300))).tolist(),
            "color": [COLOURS[d % len(COLOURS)] for d in device.tolist()],
            "line": {"color": "#1f2933", "width": 0.7},
            "opacity": 0.9,
        },
    }
