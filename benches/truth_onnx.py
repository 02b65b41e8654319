"""ONNX exports beside what their plans predict; ``truth.py onnx`` runs it.

Two models, Inception-v3 and a mixture of experts, on two cores. Each is optimised once by ONNX
Runtime, placed on two devices by ``auto``, ``heft`` and at random, exported, and run with a process
per core, one thread each. All plans take turns in rounds. In the same rounds the whole model runs
under ONNX Runtime's profiler: on one core alone, and on both at once, each by itself. What an op
took in the fastest of these steps is its cost, by which the plans are judged again: a plan of
one device by the first, others by the second, for an op takes longer beside a busy core. What a
message takes, a byte more, and the run of a session are measured at first, with ops
in a row that change cores, and with models of one op. A step is the least of all.

Where processes had to wait for a core for more than 2 % of the time, the machine is too busy:
nothing is written then, unless ``--anyway`` is given, and the page says so. Needs two cores, and
the extras onnx and onnxruntime; Inception-v3 comes from the large data, with random weights.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from data import LARGE
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from quality import table

import loadmaster as lm
from loadmaster.judge import segmented
from loadmaster.judge.problem import Problem
from loadmaster.judge.segmented import sessions
from loadmaster.judge.simulation import as_costs
from loadmaster.plans.plan import Plan
from loadmaster.plans.segments import Segments
from loadmaster.readers.onnx.profile import profile
from loadmaster.running.measured.measured import MOST_DELAY, typical
from loadmaster.running.onnx.processes import OnnxProcesses, SegmentSteps
from loadmaster.running.onnx.segments import CPU
from loadmaster.systems.onnx.semantics import SESSION

Floats = NDArray[np.float64]

PAGE = Path(__file__).parent / "results" / "truth-onnx.md"

#: How far a least step may be from the prediction.
TARGET = 0.05

#: Methods and their options; all place whole ops.
METHODS: dict[str, dict[str, Any]] = {
    "auto": {"split": "none"},
    "heft": {},
    "random": {"seed": 0},
    "single": {},
}

#: What the model knows of a core.
CORE: dict[str, Any] = {"memory": "64GiB", "type": "cpu"}

#: Messages in a row that a message's time is measured with, and floats of each where bytes count.
HOPS, FLOATS = 20, 1 << 17


# ---- models -----------------------------------------------------------------------------------


def inception() -> onnx.ModelProto:
    """Inception-v3 for inference, of one picture, with random weights."""
    path = LARGE / "artifacts" / "onnx" / "inception_v3_noweights.onnx"
    model = onnx.load(path, load_external_data=False)
    random = np.random.default_rng(0)
    filled = []
    for weight in model.graph.initializer:
        if weight.data_location != TensorProto.EXTERNAL:
            filled.append(weight)
            continue
        shape = list(weight.dims)
        scale = (2 / max(np.prod(shape[1:]), 1)) ** 0.5
        values = scale * random.standard_normal(shape)
        filled.append(numpy_helper.from_array(values.astype(np.float32), weight.name))
    del model.graph.initializer[:]
    model.graph.initializer.extend(filled)
    return model


def experts(layers: int = 4, n: int = 4, tokens: int = 128, size: int = 512) -> onnx.ModelProto:
    """A mixture of experts of which every token asks all."""
    random = np.random.default_rng(0)
    nodes, weights = [], []

    def weight(name: str, *shape: int) -> str:
        values = random.standard_normal(shape) / shape[0] ** 0.5
        weights.append(numpy_helper.from_array(values.astype(np.float32), name))
        return name

    def node(kind: str, reads: list[str], *makes: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(kind, reads, list(makes), f"{makes[0]}_op", **attributes))
        return makes[0]

    x = "x"
    for layer in range(layers):
        at = f"layer{layer}"
        scores = node("MatMul", [x, weight(f"{at}.gate", size, n)], f"{at}.scores")
        gates = node("Softmax", [scores], f"{at}.gates", axis=1)
        shares = [f"{at}.share{i}" for i in range(n)]
        node("Split", [gates], *shares, axis=1, num_outputs=n)
        asked = []
        for i in range(n):
            here = f"{at}.expert{i}"
            inner = node("MatMul", [x, weight(f"{here}.up", size, 4 * size)], f"{here}.inner")
            inner = node("Relu", [inner], f"{here}.relu")
            out = node("MatMul", [inner, weight(f"{here}.down", 4 * size, size)], f"{here}.out")
            asked.append(node("Mul", [out, shares[i]], f"{here}.scaled"))
        x = node("Sum", [x, *asked], f"{at}.sum")
    return _model("experts", nodes, ["x"], [x], (tokens, size), weights)


def products() -> onnx.ModelProto:
    """Ops in a row with little to hand over, so long that a process falls asleep meanwhile."""
    size = 1024
    values = np.full((size, size), 1 / size, dtype=np.float32)
    nodes = [
        helper.make_node("MatMul", [f"v{i}", "w"], [f"v{i + 1}"], f"hop{i}") for i in range(HOPS)
    ]
    weights = [numpy_helper.from_array(values, "w")]
    return _model("products", nodes, ["v0"], [f"v{HOPS}"], (1, size), weights)


def nothing() -> onnx.ModelProto:
    """One op that does next to nothing."""
    nodes = [helper.make_node("Relu", ["v0"], ["v1"], "nothing")]
    return _model("nothing", nodes, ["v0"], ["v1"], (1, 1), [])


def copies() -> onnx.ModelProto:
    """Ops in a row that do little but read what the last one has made."""
    nodes = [helper.make_node("Relu", [f"v{i}"], [f"v{i + 1}"], f"hop{i}") for i in range(HOPS)]
    return _model("copies", nodes, ["v0"], [f"v{HOPS}"], (1, FLOATS), [])


def _model(
    name: str, nodes: Any, inputs: list[str], outputs: list[str], shape: Any, weights: Any
) -> onnx.ModelProto:
    infos = [
        [helper.make_tensor_value_info(value, TensorProto.FLOAT, shape) for value in values]
        for values in (inputs, outputs)
    ]
    graph = helper.make_graph(nodes, name, *infos, weights)
    opset = [helper.make_opsetid("", 20)]
    model: onnx.ModelProto = helper.make_model(graph, opset_imports=opset, ir_version=9)
    return model


MODELS: dict[str, Callable[[], onnx.ModelProto]] = {"inception-v3": inception, "experts": experts}


# ---- one device, profiled ---------------------------------------------------------------------


class Profiled:
    """A model on one core, under ONNX Runtime's profiler."""

    def __init__(self, path: Path, feeds: dict[str, Any], core: int) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.enable_profiling = True
        options.profile_file_prefix = str(path.with_suffix(""))
        self._path, self._feeds, self._core = path, feeds, core
        self._session = onnxruntime.InferenceSession(str(path), options, providers=[CPU])

    def run(self) -> None:
        """Runs a step."""
        with pinned(self._core):
            self._session.run(None, self._feeds)

    def seconds(self) -> dict[str, float]:
        """What each op takes, in seconds; of no use for running after this."""
        seen = profile(self._session.end_profiling(), graph=str(self._path))
        columns = np.asarray(seen.seconds)
        least = columns[:, columns.sum(axis=0).argmin()]
        return dict(zip(seen.names, least.tolist(), strict=True))


class Single:
    """The whole model on one core alone, and on both at once."""

    def __init__(self, path: Path, feeds: dict[str, Any]) -> None:
        first, second = sorted(os.sched_getaffinity(0))[:2]
        self._alone = Profiled(path, feeds, first)
        self._beside = [Profiled(path, feeds, core) for core in (first, second)]

    def run(self, steps: int) -> None:
        """Runs so many steps alone, then as many on both cores."""
        for _ in range(steps):
            self._alone.run()
        with ThreadPoolExecutor(2) as pool:
            for _ in range(steps):
                list(pool.map(Profiled.run, self._beside))

    def costs(self, graph: lm.OpGraph) -> tuple[Floats, Floats]:
        """A cost for each op, [n_ops, 1], alone and beside the other core; of no use after this.
        What the profiles do not name takes no time.
        """
        runs = [one.seconds() for one in (self._alone, *self._beside)]
        alone, *beside = np.array([[ran.get(name, 0.0) for name in graph.names] for ran in runs])
        return alone[:, None], np.mean(beside, axis=0)[:, None]


@contextmanager
def pinned(core: int) -> Iterator[None]:
    """Keeps this thread on a core."""
    usable = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, usable)


# ---- plans ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """A plan of a model, what is predicted of it, and how it ran."""

    model: str
    method: str
    segments: int
    predicted: float
    steps: SegmentSteps

    @property
    def least(self) -> float:
        """Seconds of the fastest step."""
        return float(self.steps.seconds.min())

    @property
    def error(self) -> float:
        """Predicted over measured, minus 1."""
        return self.predicted / self.least - 1

    @property
    def waited(self) -> float:
        """The share of the time for which processes had no core."""
        return float(self.steps.delay.sum() / self.steps.seconds.sum())

    def cells(self) -> list[str]:
        """As the table has it."""
        error = f"{self.error:+.1%}"
        return [
            self.model,
            self.method,
            str(self.segments),
            f"{self.predicted * 1e3:.2f}",
            f"{self.least * 1e3:.2f}",
            error if abs(self.error) <= TARGET else f"**{error}**",
            f"{self.steps.step * 1e3:.2f}",
            f"{self.waited:.1%}",
        ]


def saved(model: onnx.ModelProto, folder: Path) -> Path:
    """The model as ONNX Runtime optimises it: what is placed is what runs."""
    raw, path = folder / "raw.onnx", folder / "model.onnx"
    onnx.save(model, raw)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(path)
    onnxruntime.InferenceSession(str(raw), options, providers=[CPU])
    return path


def feeds_of(path: Path) -> dict[str, Any]:
    """Values for the inputs of a model."""
    random = np.random.default_rng(1)
    return {
        given.name: random.standard_normal(given.shape).astype(np.float32)
        for given in onnxruntime.InferenceSession(str(path), providers=[CPU]).get_inputs()
    }


def in_turn(model: onnx.ModelProto, method: str) -> SegmentSteps:
    """A row of ops, each on the other core than the last, or all on one."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = folder / "row.onnx"
        onnx.save(model, path)
        graph = lm.read(path)
        cluster = lm.Cluster.mesh(2, **CORE, bandwidth=1e10, latency=1e-6)
        plan = lm.place(graph, cluster, method, costs=np.full((graph.n_ops, 1), 1e-4))
        lm.writers.onnx(plan, folder / "parts", model=path)
        with OnnxProcesses(folder / "parts", feeds_of(path), optimize=False) as placed:
            return placed.measure(50)


def two_cores() -> lm.Cluster:
    """Two cores of this machine, with what a session's run costs them.

    A message takes what passes from the end of a segment to the start of the next, and the time
    that an op takes longer to read what the other core has made.
    """
    call = float(typical(in_turn(nothing(), "single").seconds))
    apart = in_turn(products(), "round-robin")
    # A segment tells that it is done just before its end is noted.
    latency = max(float(np.median(apart.start[:, 1:] - apart.finish[:, :-1])), 0.0)
    apart, close = in_turn(copies(), "round-robin"), in_turn(copies(), "single")
    longer = np.median(apart.finish - apart.start) - call - (close.seconds.min() - call) / HOPS
    bandwidth = 4 * FLOATS / max(float(longer), 1e-9)
    kind = lm.DeviceType("cpu", session_cost=lm.measure_sessions())
    return lm.Cluster.mesh(
        2, memory=CORE["memory"], type=kind, latency=latency, bandwidth=bandwidth
    )


def measured(name: str, cluster: lm.Cluster, rounds: int, steps: int) -> list[Row]:
    """All plans of a model."""
    with tempfile.TemporaryDirectory() as temporary, ExitStack() as stack:
        folder = Path(temporary)
        path = saved(MODELS[name](), folder)
        feeds = feeds_of(path)
        first = Single(path, feeds)
        first.run(10)
        graph = lm.read(path)
        _, costs = first.costs(graph)
        plans, placed = {}, {}
        for method, options in METHODS.items():
            plans[method] = lm.place(graph, cluster, method, costs=costs, **options)
            lm.writers.onnx(plans[method], folder / method, model=path)
            processes = OnnxProcesses(folder / method, feeds, optimize=False)
            placed[method] = stack.enter_context(processes)
        single = Single(path, feeds)
        runs: dict[str, list[SegmentSteps]] = {method: [] for method in plans}
        random = np.random.default_rng(0)
        for turn in range(rounds + 1):
            single.run(steps)
            for method in random.permutation(list(plans)):
                ran = placed[method].measure(steps)
                # The first round warms up.
                runs[method] += [ran] if turn else []
        alone, beside = single.costs(graph)
        return [
            Row(
                name,
                method,
                len(placed[method].manifest["segments"]),
                step_of(plan, alone if method == "single" else beside),
                joined(runs[method]),
            )
            for method, plan in plans.items()
        ]


def step_of(plan: Plan, costs: Floats) -> float:
    """Seconds per step of a plan, in the segments that it was exported in, by other costs."""
    problem = Problem.make(plan.graph, plan.cluster, as_costs(costs, plan.graph, plan.cluster))
    of = Segments.cut(plan, SESSION).of
    runs = sessions(plan.cluster, SESSION)
    return segmented.step_of(problem, plan.assignment, of, runs)


def joined(runs: list[SegmentSteps]) -> SegmentSteps:
    """Steps of several runs as those of one."""
    columns = ("seconds", "start", "finish", "delay")
    return SegmentSteps(*(np.concatenate([getattr(run, c) for run in runs]) for c in columns))


# ---- the page ---------------------------------------------------------------------------------


def page(rows: list[Row], cluster: lm.Cluster, command: str) -> str:
    """The page ``truth-onnx.md``."""
    split = [row for row in rows if row.method != "single"]
    good = sum(abs(row.error) <= TARGET for row in split)
    waited = max(row.waited for row in rows)
    latency, per_byte = cluster._core.mean_link
    run = sessions(cluster, SESSION)[0].run
    head = ["model", "plan", "segments", "predicted, ms", "least, ms", "error",
            "10th percentile, ms", "waited for a core"]  # fmt: skip
    lines = [
        "# ONNX exports beside their predictions",
        "",
        f"    {command}",
        "",
        f"{good} of {len(split)} plans are within {TARGET:.0%} of their prediction, by the least "
        f"of {len(rows[0].steps.seconds)} steps. A message takes {latency * 1e6:.0f} us, and a GB "
        f"{per_byte * 1e12:.0f} ms more; a session's run {run * 1e6:.0f} us.",
        "",
        *table(head, [row.cells() for row in rows]),
    ]
    if waited > MOST_DELAY:
        lines += [f"**The machine was busy**: processes waited for a core for {waited:.1%}.", ""]
    return "\n".join(lines)


def main(names: Sequence[str], rounds: int, steps: int, anyway: bool, command: str) -> bool:
    """Measures, prints, and writes the page; whether it was written."""
    cluster = two_cores()
    rows = [row for name in names for row in measured(name, cluster, rounds, steps)]
    text = page(rows, cluster, command)
    print(text)
    if max(row.waited for row in rows) > MOST_DELAY and not anyway:
        print("the machine is too busy: nothing is written; run it again when it is idle")
        return False
    PAGE.write_text(text)
    return True
