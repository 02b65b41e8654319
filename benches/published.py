"""Steps that others measured beside what their recipes are predicted to take.

    python benches/published.py [--split fit|check] [--held FOLDER] [--captures FOLDER] [--write]

Needs PyTorch, torchvision and transformers, and ``published`` and ``kernels`` of the large data.
A row is planned as a user plans it: the model by its configuration, captured on the meta device;
the cluster by its device types; the recipe by the options of the system that it names. Where a
step accumulates gradients over several passes, one is planned: a step is as many of it, and one
update. Rows that are not planned are counted by reason. ``--split`` takes only the two thirds of
groups that figures may be fitted on, or the third that checks them: a hash of a row's group says
which. ``--held`` reads files of the same names and columns. Captured steps are kept in a folder.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
from data import at
from published_captures import graph
from published_rows import DECODE, EIGHT, FOUR, FUSED, ONE, STEPS, TF32, TRAINING, Row, rows

import loadmaster as lm
from loadmaster.base.errors import LoadmasterError

RESULTS = Path(__file__).parent / "results"
PAGE, PICTURE = RESULTS / "published.md", RESULTS / "published.svg"

#: Classes in the page's order, and what is wanted of each.
WANTED = {
    TRAINING.format("A100 40 GB"): "median 10 %, four in five within 20 %",
    TRAINING.format("A100 80 GB"): "median 10 %, four in five within 20 %",
    TRAINING.format("H100"): "median 10 %, four in five within 20 %",
    TRAINING.format("H200"): "median 10 %, four in five within 20 %",
    ONE: "median 12 %, none beyond 2 x",
    EIGHT: "-",
    STEPS: "median 8 %, nine in ten within 20 %",
    FOUR: "each within 20 %",
    FUSED: "each within 15 %",
    DECODE: "each within 15 %",
}

#: How far two layouts of one model are apart at least, as measured, to be a pair.
APART = 1.1

#: AMD's data sheet of a type that the package does not know: FLOP/s, B/s.
MI100 = lm.DeviceType("MI100-32GB", {"f32": 23.1e12, "f16": 184.6e12}, 1.2288e12, launch=5e-6)


@dataclass(frozen=True)
class Predicted:
    """A row and what is predicted of it: seconds, GiB of a device, and if that fits."""

    row: Row
    seconds: float
    peak: float
    fits: bool

    @property
    def ratio(self) -> float:
        """Predicted over measured."""
        return self.seconds / self.row.measured


@cache
def cluster_of(gpus: str, hosts: int, network: str | None, tf32: bool) -> lm.Cluster:
    """The cluster of a row."""
    if gpus == f"1x{MI100.name}":
        return lm.Cluster.mesh(1, memory="32GiB", bandwidth=1e10, type=MI100)
    cluster = lm.Cluster.new(gpus, hosts=hosts, network=network)
    if not tf32:
        return cluster
    types = [replace(t, peak={**t.peak, "f32": TF32[t.name]}) for t in cluster.types]
    return cluster.with_types(types)


def planned(row: Row, captures: Path) -> tuple[lm.Plan, float]:
    """The plan of a row, and the seconds of its step.

    Raises
    ------
    LoadmasterError
        There is none.
    """
    assert row.model is not None
    cluster = cluster_of(row.gpus, row.hosts, row.network, row.tf32)
    method = "auto" if row.target else "single"
    plan = lm.place(
        graph(row.model, captures),
        cluster,
        method,
        target=row.target,
        on_oom="best_effort",
        constraints=lm.kept_by_default(cluster, row.runtime),
        runtime=row.runtime,
        **row.options,
    )
    update = update_seconds(plan)
    seconds = row.accumulation * (plan.makespan - update) + (update if row.updates else 0.0)
    return plan, seconds


def predicted(row: Row, captures: Path) -> Predicted:
    """A row beside its plan; raises as :func:`planned` does."""
    plan, seconds = planned(row, captures)
    peak = float(plan.memory.peak.max()) / 2**30
    return Predicted(row, seconds, peak, plan.fits)


def update_seconds(plan: lm.Plan) -> float:
    """Seconds that the optimizer takes on the device where it takes longest."""
    problem, on = plan.problem, plan.assignment.devices
    kinds = np.array(plan.cluster.device_types)[on]
    seconds = problem.compute_time[np.arange(len(on)), kinds]
    phases = np.array(list(plan.program.graph.phases))[problem.reduced.op_of]
    return float(np.bincount(on, np.where(phases == "o", seconds, 0.0)).max())


def table(head: Sequence[str], body: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table."""
    rule = "|".join(["---", *("---:" for _ in head[1:])])
    return [f"| {' | '.join(head)} |", f"|{rule}|", *(f"| {' | '.join(r)} |" for r in body)]


def by_class(every: list[Predicted]) -> list[str]:
    """Errors of each class."""
    body = []
    for kind, wanted in WANTED.items():
        ratios = np.array([p.ratio for p in every if p.row.kind == kind])
        if not len(ratios):
            continue
        error = np.abs(ratios - 1)
        figures = (np.median(ratios), np.median(error), np.quantile(error, 0.9))
        shares = (np.mean(error <= 0.15), np.mean(error <= 0.2), error.max())
        body.append(
            [
                kind,
                str(len(ratios)),
                f"{figures[0]:.2f}",
                *(f"{figure:.1%}" for figure in figures[1:]),
                *(f"{share:.0%}" for share in shares),
                wanted,
            ]
        )
    head = (
        "class",
        "rows",
        "predicted over measured, median",
        "error, median",
        "nine in ten within",
        "within 15 %",
        "within 20 %",
        "worst",
        "wanted",
    )
    return table(head, body)


def layouts(every: list[Predicted]) -> str:
    """Kendall's tau of tokens/s per GPU over pairs of layouts of one model."""
    some = [p for p in every if p.row.file.startswith("kempner")]
    order = 0
    pairs = 0
    for one, other in itertools.combinations(some, 2):
        measured = _rate(one, measured=True) / _rate(other, measured=True)
        if one.row.group != other.row.group or max(measured, 1 / measured) < APART:
            continue
        said = _rate(one) / _rate(other)
        pairs += 1
        order += 1 if (measured > 1) == (said > 1) else -1
    return f"{order / pairs:.2f} over {pairs} pairs" if pairs else "no pairs"


def _rate(each: Predicted, *, measured: bool = False) -> float:
    """Tokens/s of a GPU."""
    gpus = int(each.row.gpus.split("x")[0]) * each.row.hosts
    return each.row.tokens / gpus / (each.row.measured if measured else each.seconds)


def generations(every: list[Predicted]) -> str:
    """Errors of the gain of an H100 over an A100 of 80 GB, over pairs of one model and length."""
    some = [p for p in every if p.row.file.startswith("llm_foundry")]
    new = [p for p in some if "H100" in p.row.gpus]
    old = [p for p in some if "A100-SXM4-80GB" in p.row.gpus]
    pairs = [(n, o) for n in new for o in old if n.row.group == o.row.group]
    if not pairs:
        return "no pairs"
    error = [
        abs(_rate(n) / _rate(o) / (_rate(n, measured=True) / _rate(o, measured=True)) - 1)
        for n, o in pairs
    ]
    return (
        f"{len(pairs)} pairs of one model and length, the gain {np.median(error):.1%} off in the "
        f"median, nine in ten within {np.quantile(error, 0.9):.1%}"
    )


def gains(every: list[Predicted]) -> list[tuple[str, float, float]]:
    """Gains of torch.compile by row, predicted and measured."""
    eager = {p.row.name: p for p in every if p.row.kind == STEPS}
    both = [
        (p, eager[name])
        for p in every
        if p.row.kind == FUSED and (name := p.row.name.removesuffix(", fusion")) in eager
    ]
    return [
        (p.row.name, one.seconds / p.seconds, one.row.measured / p.row.measured) for p, one in both
    ]


def page(every: list[Predicted], left: Counter[str], command: str) -> str:
    """The page."""
    lines = [
        "# Steps that others measured, beside what is predicted",
        "",
        f"`{command} --write`. A row is a step that somebody published, planned by its model, its",
        "devices and its recipe. Error: how far predicted over measured is from 1. Sequences of",
        "512 tokens of `bert-large` seem to be measured without their padding: with it, as they",
        "are planned, they would ask a V100 for more FLOP/s than it has.",
        "",
        *by_class(every),
        "",
        f"* Layouts of one model (kempner), tokens/s per GPU: Kendall's tau {layouts(every)} that "
        "are 10 % apart as measured (wanted: 0.8).",
        f"* An H100 over an A100 of 80 GB: {generations(every)} (wanted: 8 %, 15 %).",
        *(
            f"* torch.compile of {name}: {said:.2f} x predicted, {measured:.2f} x measured."
            for name, said, measured in gains(every)
        ),
        f"* Peaks, predicted over measured: {_peaks(every)}.",
        f"* Measured, but predicted not to fit: {sum(not p.fits for p in every)} of {len(every)}.",
        "",
        "![Measured over predicted](published.svg)",
        "",
        "## Rows that are not planned",
        "",
        *table(("reason", "rows"), [(reason, str(n)) for reason, n in left.most_common()]),
        "",
        "## Rows",
        "",
        *table(("row", "measured, s", "predicted, s", "predicted over measured"), _lines(every)),
    ]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _peaks(every: list[Predicted]) -> str:
    ratios = [p.peak / p.row.peak for p in every if p.row.peak > 0]
    if not ratios:
        return "nobody measured any"
    return f"{min(ratios):.2f} to {max(ratios):.2f} over {len(ratios)} rows"


def _lines(every: list[Predicted]) -> list[tuple[str, ...]]:
    return [
        (
            f"{p.row.name}{'' if p.fits else ' (over the memory)'}",
            f"{p.row.measured:.4g}",
            f"{p.seconds:.4g}",
            f"{p.ratio:.2f}",
        )
        for p in every
    ]


def draw(every: list[Predicted], path: Path) -> None:
    """Measured over predicted, both axes logarithmic, a colour per class."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    # Without these the same picture is another file every time.
    plt.rcParams |= {"svg.hashsalt": "loadmaster", "svg.fonttype": "none", "font.size": 8}
    figure, axis = plt.subplots(figsize=(7, 6))
    for index, kind in enumerate(WANTED):
        some = [p for p in every if p.row.kind == kind]
        x, y = [p.seconds for p in some], [p.row.measured for p in some]
        axis.plot(x, y, "o", color=f"C{index}", alpha=0.6, markersize=3, label=kind)
    ends = [min(p.seconds for p in every), max(p.seconds for p in every)]
    for factor, style in ((1.0, "-"), (1.2, ":"), (1 / 1.2, ":")):
        axis.plot(ends, [factor * end for end in ends], style, color="0.5", linewidth=0.7)
    axis.set(xscale="log", yscale="log", xlabel="predicted, s", ylabel="measured, s")
    axis.set_title("measured over predicted (dotted: 20 % apart)")
    axis.legend(fontsize=6)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def run(wanted: list[Row], captures: Path) -> tuple[list[Predicted], Counter[str]]:
    """All rows that can be planned, and the numbers of others by reason."""
    every, left = [], Counter(row.reason for row in wanted if row.reason)
    plannable = [row for row in wanted if not row.reason]
    for number, row in enumerate(plannable, 1):
        try:
            every.append(predicted(row, captures))
        except LoadmasterError as error:
            left[f"{row.kind}: {str(error).splitlines()[0]}"] += 1
            print(f"{number}/{len(plannable)} {row.name}: {error}", file=sys.stderr, flush=True)
            continue
        ratio = f"{every[-1].ratio:.2f}"
        print(f"{number}/{len(plannable)} {ratio} {row.name}", file=sys.stderr, flush=True)
    return every, left


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--split", choices=["fit", "check"], help="part of the groups of rows")
    parser.add_argument("--held", type=Path, help="folder of files of the same names and columns")
    parser.add_argument("--captures", type=Path, help="folder in which captured steps are kept")
    parser.add_argument("--only", help="rows whose names have this in them")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name}, {PICTURE.name}")
    arguments = parser.parse_args()
    folders = [at("published"), at("kernels")]
    if arguments.held:
        folders = [arguments.held, *(arguments.held / name for name in ("published", "kernels"))]
    wanted = [
        row
        for row in rows(folders)
        if (arguments.split is None or row.is_check == (arguments.split == "check"))
        and (arguments.only or "") in row.name
    ]
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        every, left = run(wanted, arguments.captures or Path(folder))
    if not every:
        raise SystemExit("no row can be planned: name a folder that has files of published steps")
    text = page(every, left, f"python benches/published.py{_words(arguments)}")
    print(text)
    if arguments.write:
        PAGE.write_text(text, encoding="utf-8")
        draw(every, PICTURE)


def _words(arguments: argparse.Namespace) -> str:
    """Options that say which rows there are."""
    split = f" --split {arguments.split}" if arguments.split else ""
    return f"{split}{' --held FOLDER' if arguments.held else ''}"


if __name__ == "__main__":
    main()
