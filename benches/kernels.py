"""Kernel surfaces: builds the package's tables from measurements, and checks what they predict.

    python benches/kernels.py fit                    writes the tables of loadmaster.costs.kernels
    python benches/kernels.py check [--held FOLDER]  predicted beside measured, of shapes apart

``check`` without a folder fits four fifths of the shapes and predicts the fifth. With a folder, it
predicts the files of that folder, which have the columns of the fitted ones, from all tables.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import tomli_w
import whole_steps
from data import at
from numpy.typing import NDArray

from loadmaster.costs.kernels import tables as package
from loadmaster.costs.kernels.families import FAMILIES, ITEM
from loadmaster.costs.kernels.kin import Figures
from loadmaster.costs.kernels.tables import MISSING, SITE_STEP, STEP, KernelTables, encoded
from loadmaster.model.machine.types import known_types

Floats = NDArray[np.float64]

HERE = Path(package.__file__).parent
RESULTS = Path(__file__).parent / "results"

#: What the tables may come to, in bytes.
MOST_BYTES = 1_000_000

#: Rows of a table that are predicted at most, evenly spread over them.
MOST_ROWS = 300

#: Sources by letter: what they are called, and their licence.
SOURCES = {
    "A": ("NVIDIA aiconfigurator, commit 095f58a5", "Apache-2.0"),
    "N": ("NeuSight, commit 6945927d (PyTorch 2.1, float32 without TF32)", "MIT"),
    "V": ("Vidur, commit 7d475133", "MIT"),
}

#: Seconds of the host that stand in every measurement of N, at most, where no kernel is so short
#: that it is hidden behind them.
MOST_FLOOR = 55e-6

#: Data sheets of measured types that the package does not know: FLOP/s by dtype, B/s. AMD's of the
#: Instinct MI100 (vector float32).
OTHER_SHEETS = {"MI100-32GB": ({"f32": 23.1e12, "f16": 184.6e12}, 1.2288e12)}

#: How unevenly tokens go to experts, as a coordinate.
SKEW = {"balanced": 0.0, "power_law_1.01": 1.0, "power_law_1.2": 1.2}


@dataclass(frozen=True)
class Measured:
    """What somebody measured of one family, dtype and device type, a row each."""

    family: str
    dtype: str
    device: str
    source: str
    sizes: Floats
    seconds: Floats

    def some(self, rows: NDArray[np.bool_]) -> Measured:
        """Some of the rows."""
        return replace(self, sizes=self.sizes[rows], seconds=self.seconds[rows])

    @property
    def figures(self) -> Figures:
        """The data sheet of the device type, at the dtype."""
        known = known_types().get(self.device)
        peak, bandwidth = OTHER_SHEETS.get(self.device, ({}, 0.0))
        if known is not None:
            peak, bandwidth = known.type.peak, known.type.memory_bandwidth
        fallback = peak.get("f16", peak["f32"])
        return Figures(peak.get(self.dtype, fallback), bandwidth)


def _frame(folder: Path, name: str) -> pd.DataFrame:
    path = folder / f"{name}.parquet"
    return pq.read_table(path).to_pandas() if path.exists() else pd.DataFrame()


def _of_each(
    frame: pd.DataFrame, by: Sequence[str], source: str, family: Callable[..., tuple[str, str]]
) -> Iterator[Measured]:
    """One :class:`Measured` for each device type and value of ``by``; ``s0``, ... are sizes."""
    columns = sorted(c for c in frame if c.startswith("s") and c[1:].isdigit())
    for key, rows in frame.groupby(["device", *by], observed=True) if len(frame) else ():
        device, *values = key
        sizes = rows[columns].to_numpy(dtype=np.float64)
        yield Measured(*family(*values), device, source, sizes, rows.seconds.to_numpy(np.float64))


def _sized(frame: pd.DataFrame, *columns: object) -> pd.DataFrame:
    return frame.assign(**{f"s{i}": column for i, column in enumerate(columns)})


def _dtyped(frame: pd.DataFrame) -> pd.DataFrame:
    dtype = frame["dtype"].astype(str).map({"bfloat16": "f16", "float16": "f16", "fp8": "f8"})
    return frame.assign(kind=dtype)[dtype.notna()]


def products(folder: Path) -> Iterator[Measured]:
    """Products, of 16 and 8 bits and of float32."""
    if len(frame := _frame(folder, "gemm")):
        frame = _dtyped(frame)
        frame = _sized(frame, 1.0, frame.m, frame.n, frame.k)
        yield from _of_each(frame, ["kind"], "A", lambda dtype: ("products", dtype))
    if len(frame := _frame(folder, "products_f32")):
        frame = _sized(frame, frame.batch, frame.m, frame.n, frame.k)
        names = {"linear": "products", "bmm": "batched products"}
        yield from _of_each(frame, ["kind"], "N", lambda kind: (names[kind], "f32"))


def attention(folder: Path) -> Iterator[Measured]:
    """Fused attention of 16 bits."""
    if len(f := _frame(folder, "attention")):
        keys = f.length + f.past
        f = _sized(f, f.batch, f.heads, f.kv_heads, f.length, keys, f.head_dim, f.window)
        yield from _of_each(f, ["phase"], "A", lambda phase: (phase, "f16"))


def experts(folder: Path) -> Iterator[Measured]:
    """Routed experts."""
    if len(f := _frame(folder, "experts")):
        f = _dtyped(f)
        rows = f.tokens * f.top_k / f.ep
        skew = f.distribution.astype(str).map(SKEW)
        f = _sized(f, rows, f.hidden, f.inner / f.tp, f.top_k, f.experts / f.ep, skew)
        yield from _of_each(f, ["kind"], "A", lambda dtype: ("experts", dtype))


def vectors(folder: Path) -> Iterator[Measured]:
    """Norms, softmax, and what works element by element."""
    if len(f := _frame(folder, "vectors_f32")):
        kind = f.kind.astype(str)
        touched = (
            4.0 * f["rows"] * f["columns"] * np.where(kind.isin(["add", "mul", "div", "pow"]), 3, 2)
        )
        family = kind.map({"ln": "norm", "softmax": "softmax"}).fillna("pointwise")
        f = _sized(f.assign(family=family), touched, f["columns"])
        yield from _of_each(f, ["family"], "N", lambda family: (family, "f32"))
    if len(f := _frame(folder, "transformer_parts_f16")):
        op = f["op"].astype(str)
        family = op.map({"input_layernorm": "norm"})
        f = _sized(f.assign(family=family), 4.0 * f.tokens * f.width, f.width)[family.notna()]
        yield from _of_each(f, ["family"], "V", lambda family: (family, "f16"))


def convolutions(folder: Path) -> Iterator[Measured]:
    """Convolutions of 3 x 3."""
    if len(f := _frame(folder, "convolutions_f32")):
        f = _sized(f, f.batch, f.in_channels, f.out_channels, f["size"])
        yield from _of_each(f.assign(kind=0), ["kind"], "N", lambda _: ("convolutions", "f32"))


READERS = (products, attention, experts, vectors, convolutions)


def read(folder: Path) -> list[Measured]:
    """All that was measured."""
    return [one for reader in READERS for one in reader(folder)]


# ---- fitting ------------------------------------------------------------------------------------


def build(rows: Sequence[Measured]) -> tuple[dict[str, NDArray[np.generic]], list[dict]]:
    """The arrays of the tables, and the facts of each."""
    groups: dict[str, list[Measured]] = {}
    for one in rows:
        groups.setdefault(one.family, []).append(_merged(one))
    arrays: dict[str, NDArray[np.generic]] = {}
    facts = []
    for family, group in sorted(groups.items()):
        sites = np.unique(np.concatenate([one.sizes for one in group]), axis=0)
        arrays[f"sites/{family}"] = _compact(sites.T)
        for one in sorted(group, key=lambda one: (one.dtype, one.device)):
            floor = _floor(one)
            logs = encoded((family, one.dtype, floor), one.sizes, one.seconds, one.figures)
            places = _places(sites, one.sizes)
            total = np.bincount(places, logs, len(sites))
            count = np.bincount(places, minlength=len(sites))
            steps = np.rint(total / np.maximum(count, 1) / STEP)
            values = np.where(count > 0, np.clip(steps, -127, 127), MISSING).astype(np.int8)
            arrays[f"values/{family}/{one.dtype}/{one.device}"] = values
            facts.append(_fact(one, floor, int((count > 0).sum())))
    return arrays, facts


def _merged(one: Measured) -> Measured:
    """Element by element only bytes count: a point for each sixteenth of a factor of 2."""
    if one.family != "pointwise":
        return one
    bins = np.rint(np.log2(one.sizes[:, 0]) * 16)
    kept = np.unique(bins)
    seconds = [np.exp(np.log(one.seconds[bins == each]).mean()) for each in kept]
    size = np.rint(2.0 ** (kept / 16))
    return replace(one, sizes=np.stack([size, np.ones(len(size))], 1), seconds=np.array(seconds))


def _floor(one: Measured) -> float:
    """Seconds of the host: the least measured, if that is far above what the data sheet says."""
    if one.source != "N":
        return 0.0
    shortest = int(one.seconds.argmin())
    floor = float(one.seconds[shortest])
    sheet = (one.figures.peak, one.figures.bandwidth, ITEM[one.dtype])
    least = FAMILIES[one.family].least(one.sizes[shortest : shortest + 1], *sheet)[0]
    return float(f"{floor if least < floor / 4 else min(floor, MOST_FLOOR):.3g}")


def _places(sites: Floats, sizes: Floats) -> NDArray[np.intp]:
    """The site of each row."""
    both, at_site = np.unique(np.concatenate([sites, sizes]), axis=0, return_inverse=True)
    assert len(both) == len(sites), "every row is a site"
    return at_site.reshape(-1)[len(sites) :]


def _compact(sites: Floats) -> NDArray[np.generic]:
    """Differences from each site to the next in steps of :data:`SITE_STEP`, as they repeat."""
    whole = np.rint(sites / SITE_STEP).astype(np.int64)
    return np.diff(whole, axis=1, prepend=0)


def _fact(one: Measured, floor: float, sites: int) -> dict:
    name, licence = SOURCES[one.source]
    return {
        "family": one.family,
        "dtype": one.dtype,
        "device": one.device,
        "peak": one.figures.peak,
        "bandwidth": one.figures.bandwidth,
        "floor": floor,
        "shortest": float(f"{one.seconds.min():.3g}"),
        "sites": sites,
        "source": name,
        "licence": licence,
    }


def fit() -> None:
    """Writes the tables of the package."""
    arrays, facts = build(read(at("kernels")))
    np.savez_compressed(HERE / "tables.npz", **arrays)
    (HERE / "tables.toml").write_text(tomli_w.dumps({"table": facts}), encoding="utf-8")
    size = sum((HERE / f"tables.{end}").stat().st_size for end in ("npz", "toml"))
    print(f"{len(facts)} tables, {size} bytes")
    if size > MOST_BYTES:
        sys.exit(f"more than {MOST_BYTES} bytes")


# ---- checking -----------------------------------------------------------------------------------


def predicted(tables: KernelTables, one: Measured) -> Floats | None:
    """Seconds as the tables have them; None where they have neither the device type nor its kin."""
    table = tables.table(one.family, one.dtype, one.device, one.figures)
    return None if table is None else table.measured(one.sizes, one.figures)


def held(one: Measured, share: float = 0.2) -> NDArray[np.bool_]:
    """Shapes that are kept apart: by whole shapes, for products by n and k alone."""
    shape = one.sizes[:, 2:] if one.family == "products" and one.dtype != "f32" else one.sizes
    frame = pd.DataFrame(shape)
    return (pd.util.hash_pandas_object(frame, index=False).to_numpy() % 1000) < 1000 * share


def thinned(one: Measured, most: int) -> Measured:
    """At most so many of the rows, evenly spread."""
    n = len(one.seconds)
    kept = np.zeros(n, dtype=bool)
    kept[np.linspace(0, n - 1, min(n, most)).astype(int)] = True
    return one.some(kept)


def errors(tables: KernelTables, rows: Sequence[Measured]) -> list[tuple[Measured, Floats]]:
    """Relative errors of each, in the order of the rows."""
    pairs = []
    for whole in rows:
        one = thinned(whole, MOST_ROWS) if len(whole.seconds) else whole
        seconds = predicted(tables, one) if len(one.seconds) else None
        if seconds is not None:
            pairs.append((one, np.abs(seconds / one.seconds - 1)))
    return pairs


def table_of(pairs: Sequence[tuple[Measured, Floats]]) -> list[str]:
    """A table of errors, a family and dtype a row, with the medians of device types."""
    lines = [
        "| family | dtype | rows | median | nine in ten | by device type: median, nine in ten |"
    ]
    lines.append("|---|---|---:|---:|---:|---|")
    groups: dict[tuple[str, str], list[tuple[str, Floats]]] = {}
    for one, error in pairs:
        groups.setdefault((one.family, one.dtype), []).append((one.device, error))
    for (family, dtype), group in sorted(groups.items()):
        every = np.concatenate([error for _, error in group])
        each = ", ".join(
            f"{device.rpartition('-')[0]} {np.median(e):.1%} {np.quantile(e, 0.9):.0%}"
            for device, e in sorted(group, key=lambda pair: pair[0])
        )
        lines.append(
            f"| {family} | {dtype} | {len(every)} | {np.median(every):.1%} "
            f"| {np.quantile(every, 0.9):.1%} | {each} |"
        )
    return lines


#: Device types that are predicted from their kin, with the types that stay.
KIN = (
    ("GB300-279GB", ("B200-180GB", "B300-288GB")),
    ("B200-180GB", ("GB300-279GB",)),
    ("H200-SXM-141GB", ("H100-SXM5-80GB",)),
    ("H100-SXM5-80GB", ("A100-SXM4-80GB",)),
)


def check_kernels(folder: Path | None) -> list[str]:
    """Lines of the page: shapes that were not fitted, and device types that were not."""
    rows = read(at("kernels"))
    if folder is not None:
        return [
            "## Shapes kept apart",
            "",
            *table_of(errors(KernelTables(*build(rows)), read(folder))),
        ]
    apart = KernelTables(*build([one.some(~held(one)) for one in rows]))
    lines = ["## A fifth of the shapes, not fitted", ""]
    lines += table_of(errors(apart, [one.some(held(one)) for one in rows]))
    for device, others in KIN:
        known = KernelTables(*build([one for one in rows if one.device in others]))
        lines += ["", f"## {device} from {', '.join(others)}", ""]
        lines += table_of(
            errors(known, [one.some(held(one)) for one in rows if one.device == device])
        )
    return lines


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=("fit", "check"))
    parser.add_argument("--held", type=Path, help="folder of measurements that were kept apart")
    arguments = parser.parse_args()
    if arguments.command == "fit":
        fit()
        return
    lines = ["# Kernels: predicted beside measured", "", *check_kernels(arguments.held)]
    steps = (arguments.held or at("kernels")) / "steps_f32.csv"
    if steps.exists():
        lines += ["", "## Whole float32 steps on one device", "", *whole_steps.table(steps)]
    print("\n".join(lines))
    if arguments.held is None:
        (RESULTS / "kernels.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
