"""What the instances that come along are packed from, and the best steps known of the models.

    python benches/instances.py pack     # scheduling and measured instances, from tests/data
    python benches/instances.py best     # best.toml: the models' best known steps; 20 minutes

``pack`` simulates every published schedule: its makespan is what the instance says is known. With
equal links it must be the published one to the last microsecond. ``best`` plans every listed
instance of a model by ``auto`` with the effort that is named in the file, and keeps what is there
already if that is shorter.
"""

from __future__ import annotations

import argparse
import gzip
import json
import shutil
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import tomli_w
from data import DATA
from data import scheduling as document

import loadmaster as lm
from loadmaster.base.errors import InfeasibleError
from loadmaster.readers.instances import models, scheduling

HERE = Path(lm.instances.__file__).parent

#: Work of ``auto`` per instance and space of plans, as it counts it.
EFFORT = "normal"


def pack() -> None:
    """Writes ``data/``."""
    best = json.loads((DATA / "scheduling" / "best_known.json").read_text())
    packed: dict[str, Any] = {}
    for name, known in sorted(best.items()):
        raw = document(name)
        kept = {key: raw[key] for key in ("n", "K", "hom", "p", "mem", "cap", "tensors")}
        packed[name] = {**kept, **known, "seconds": 0.0}
        del packed[name]["gap"], packed[name]["optimal"]
    write(packed)
    for name, row in packed.items():
        scheduling._documents.cache_clear()
        found = lm.instances.load(f"scheduling/{name}")
        seen = lm.simulate(
            found.graph, found.cluster, found.devices, found.priority, policy="fixed"
        )
        assert seen.fits, name
        row["seconds"] = round(seen.makespan, 12)
        published = row["makespan"] * 1e-6
        assert row["seconds"] >= published - 1e-12, f"{name} is shorter than what was proved"
        if row["hom"]:
            assert row["seconds"] == round(published, 12), name
        print(f"{name}: {row['seconds'] / published - 1:+.4%} of the published makespan")
    write(packed)
    for name in ("moirai-googlenet", "moirai-transformer"):
        source = DATA / "heterogeneous" / f"{name}.cluster.toml"
        shutil.copyfile(source, HERE / "data" / source.name)
    source = DATA / "heterogeneous" / "moirai-transformer.json.gz"
    shutil.copyfile(source, HERE / "data" / source.name)


def write(packed: dict[str, Any]) -> None:
    """Writes the scheduling instances; the same data gives the same bytes."""
    text = json.dumps(packed, separators=(",", ":"), sort_keys=True)
    (HERE / "data" / "scheduling.json.gz").write_bytes(gzip.compress(text.encode(), 9, mtime=0))


def best(pattern: str) -> None:
    """Writes ``best.toml`` anew where a shorter step is found."""
    file = HERE / "best.toml"
    known = models._known() if file.exists() else {}
    for name in [*lm.instances.names("measured/*"), *lm.instances.names("models/*")]:
        if not lm.instances.names(pattern).count(name):
            continue
        found, began = lm.instances.load(name), time.process_time()
        row = known.setdefault(name, {})
        for space, split in (("whole", "none"), ("split", "auto")):
            try:
                plan = lm.place(found.graph, found.cluster, effort=EFFORT, split=split)
            except InfeasibleError:
                continue
            by = (
                f"auto, effort={EFFORT}, split={split}; Loadmaster {metadata.version('loadmaster')}"
            )
            if plan.makespan < row.get(space, {}).get("seconds", float("inf")):
                row[space] = {"seconds": plan.makespan, "by": by}
        took = time.process_time() - began
        print(name, row, f"{took:.0f} s of CPU", flush=True)
        head = "# Best known steps of models. Written by benches/instances.py best\n\n"
        file.write_text(head + tomli_w.dumps(dict(sorted(known.items()))))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=["pack", "best"])
    parser.add_argument("--instances", default="*", help="best: only those that a glob matches")
    arguments = parser.parse_args()
    pack() if arguments.what == "pack" else best(arguments.instances)


if __name__ == "__main__":
    main()
