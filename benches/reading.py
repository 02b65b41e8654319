"""Measures readers: CPU seconds and peak memory of ``lm.read``, each row in a process of its own.

    python benches/reading.py [WORD ...] [--repeats 5] [--json]      # rows whose file has the WORDs

One thread; the median over processes. Imports come before: what they cost is shown as memory of
their own. Files that are not at hand are left out (tests/support/folders.py says where they are).
"""

from __future__ import annotations

import argparse
import gzip
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from data import at

SAMPLE = "gpu_traces/kineto_resnet50_gpu_2021.pt.trace.json.gz"

#: File, options of ``lm.read`` (a profile is a file, too), target in CPU seconds.
ROWS: tuple[tuple[str, dict[str, Any], float | None], ...] = (
    ("20 MB", {"step": 5}, 1.0),  # the first 20 MB of the sample
    (SAMPLE, {}, None),
    ("gpu_traces/hta_nccl_parser_config_nccl_data.json.gz", {}, None),
    ("torch/resnet18_b4_joint.kineto.json.gz", {}, None),
    ("torch/resnet18_b4_joint.et.json.gz", {}, None),
    (
        "torch/resnet18_b4_joint.et.json.gz",
        {"profile": "torch/resnet18_b4_joint.kineto.json.gz"},
        None,
    ),
    ("torch/resnet18_w8.pt2", {}, None),
    ("onnx/bert_large_noweights.onnx", {}, 1.0),
    (
        "onnx/bertmini_d64.ort_optimized.onnx",
        {"profile": "onnx/bertmini_d64_b4.ortprofile.json.gz"},
        None,
    ),
    ("tf/tf_inception_v3_train_b512.graphdef.pb.gz", {}, None),
    ("tf/tf_inception_v3_train_b512_ctlstorm.graphdef.pb.gz", {}, 2.0),
    (
        "tf/tf_lstm_static.graphdef.pb.gz",
        {"profile": "tf/tf_lstm_static_b16.runmetadata.pb.gz"},
        None,
    ),
    ("jax/transformer.stablehlo.mlir.gz", {}, None),
    ("jax/transformer.optimized_hlo.txt.gz", {}, None),
)

_CHILD = """
import json, sys, time, warnings
warnings.simplefilter("ignore")
import loadmaster as lm
from loadmaster.readers import opgraph
from loadmaster.readers.pytorch import execution_trace as chakra
from loadmaster.readers.pytorch import kineto
from loadmaster.readers.onnx import model as onnx
from loadmaster.readers.tensorflow import graph_def as tensorflow
try:
    import onnx.inliner, onnx.reference, onnx.shape_inference
except ImportError:
    pass
# Linux: what `getrusage` tells of a process that has started begins at its parent's peak.
peak = lambda: int(open("/proc/self/status").read().partition("VmHWM:")[2].split()[0]) / 1024
path, options = json.loads(sys.argv[1])
before, start = peak(), time.process_time()
graph = lm.read(path, **options)
print(json.dumps([time.process_time() - start, peak(), before, graph.n_ops, graph.n_edges]))
"""


def unpacked(path: Path) -> int:
    """Bytes of a file unpacked."""
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    with gzip.open(path) if packed else path.open("rb") as stream:
        return sum(len(piece) for piece in iter(lambda: stream.read(1 << 16), b""))


def measure(path: Path, options: dict[str, Any], repeats: int) -> dict[str, Any]:
    """The row of a file."""
    argument = json.dumps([str(path), options])
    runs = [
        json.loads(subprocess.check_output([sys.executable, "-c", _CHILD, argument]))
        for _ in range(repeats)
    ]
    return {
        "file": path.name,
        "with": " ".join(sorted(options)),
        "MB": unpacked(path) / 1e6,
        "seconds": statistics.median(run[0] for run in runs),
        "peak MiB": statistics.median(run[1] for run in runs),
        "before MiB": statistics.median(run[2] for run in runs),
        "ops": runs[0][3],
        "edges": runs[0][4],
    }


def first_part(path: Path, size: int, target: Path) -> Path:
    """The first events of a trace that Kineto wrote, as a trace of so many bytes, gzipped."""
    with gzip.open(path) as stream:
        text = stream.read(size)
    with gzip.open(target, "wb") as file:
        file.write(text[: text.rindex(b"\n  },")] + b"\n  }\n  ]\n}\n")
    return target


def main() -> None:
    """Prints the table, or a JSON object per row."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("words", nargs="*")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if not arguments.json:
        print("| file | MB unpacked | CPU s | target | peak MiB | of which imports | ops | edges |")
        print("|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for name, given, target in ROWS:
            if not all(word in name for word in arguments.words):
                continue
            source = at(f"artifacts/{SAMPLE if name == '20 MB' else name}")
            if not source.exists():
                print(f"{source} is not here", file=sys.stderr)
                continue
            path = source
            if name == "20 MB":
                path = first_part(source, 20_000_000, Path(folder) / "the sample's first 20 MB")
            options = {
                key: str(at(f"artifacts/{value}")) if key == "profile" else value
                for key, value in given.items()
            }
            row = measure(path, options, arguments.repeats)
            text = json.dumps({**row, "target": target}) if arguments.json else line(row, target)
            print(text, flush=True)


def line(row: dict[str, Any], target: float | None) -> str:
    """The row of the table."""
    label = f"{row['file']}{' with ' + row['with'] if row['with'] else ''}"
    return (
        f"| {label} | {row['MB']:.1f} | {row['seconds']:.2f} | {target or ''} | "
        f"{row['peak MiB']:.0f} | {row['before MiB']:.0f} | {row['ops']} | {row['edges']} |"
    )


if __name__ == "__main__":
    main()
