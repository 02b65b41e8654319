"""Measuring what running a sub-model costs on this machine, beside its ops.

Two sub-models that do next to nothing are run in turn, one bound to few tensors and one to many.
Before each run a buffer is read that is larger than the cache of a core, as ops of other sub-models
would do. Times are 10th percentiles: what disturbs a measurement only makes it longer.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from loadmaster.base import checks
from loadmaster.base.errors import importing
from loadmaster.model.runtime import SessionCost
from loadmaster.running.onnx.segments import CPU, load, runtime

#: Inputs of the two sub-models, which have one output each.
_FEW, _MANY = 1, 33

#: Bytes that are read between runs.
_BETWEEN = 2**22


def measure_sessions(provider: str = CPU, *, runs: int = 300) -> SessionCost:
    """The cost of a run of a session of ONNX Runtime, and of each tensor that is bound to it.

    Parameters
    ----------
    provider : str
        The execution provider of the sessions. Tensors lie in the memory of the CPU.
    runs : int
        Runs that are timed, of each of two sub-models. O(runs).

    Returns
    -------
    SessionCost
        Seconds, for ``session_cost`` of a :class:`~loadmaster.DeviceType`.

    Raises
    ------
    InputError
        No number of runs, or ONNX Runtime has no such provider.
    MissingExtraError
        The package ``onnx`` or ``onnxruntime`` is not installed.

    Examples
    --------
    >>> cost = lm.measure_sessions()                                           # doctest: +SKIP
    >>> types = [replace(kind, session_cost=cost) for kind in cluster.types]   # doctest: +SKIP
    >>> plan = lm.place(graph, cluster.with_types(types), target="onnx")       # doctest: +SKIP
    """
    runs = checks.count("runs", runs)
    checks.one_of("provider", provider, runtime().get_available_providers())
    with tempfile.TemporaryDirectory() as folder:
        few, many = (_bound(Path(folder), n, provider) for n in (_FEW, _MANY))
        between = np.zeros(_BETWEEN, dtype=np.int8)
        times = np.empty((2, runs))
        for i in range(runs):
            for row, session in zip(times, (few, many), strict=True):
                between.sum()
                row[i] = -time.perf_counter()
                session()
                row[i] += time.perf_counter()
    short, long = np.percentile(times, 10, axis=1).tolist()
    tensor = max(long - short, 0.0) / (_MANY - _FEW)
    run = max(short - tensor * (_FEW + 1), 0.0)
    return SessionCost(run, tensor, f"measured, ONNX Runtime {runtime().__version__} by {provider}")


def _bound(folder: Path, inputs: int, provider: str) -> Callable[[], Any]:
    """A run of a sub-model that adds numbers, one an input, with all of its tensors bound."""
    with importing("onnx", "onnx", "measuring sessions"):
        from onnx import TensorProto, helper, save
    names = [f"x{i}" for i in range(inputs)]
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1]) for n in (*names, "y")]
    graph = helper.make_graph(
        [helper.make_node("Sum", names, ["y"])], "sum", infos[:-1], infos[-1:]
    )
    path = folder / f"{inputs}.onnx"
    opset = [helper.make_opsetid("", 17)]
    save(helper.make_model(graph, opset_imports=opset, ir_version=8), path)
    session = load(path, [provider], threads=1)
    binding = session.io_binding()
    for name in names:
        binding.bind_cpu_input(name, np.zeros(1, dtype=np.float32))
    binding.bind_output("y", "cpu")
    return partial(session.run_with_iobinding, binding)
