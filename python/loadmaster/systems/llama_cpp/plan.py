"""Layers as llama.cpp divides them: the first on the CPU, one run of the others on each GPU."""

from __future__ import annotations

import numpy as np

from loadmaster.base import checks
from loadmaster.base.errors import InfeasibleError
from loadmaster.judge.problem import Problem
from loadmaster.model.families import families
from loadmaster.strategies.candidate import Candidate
from loadmaster.systems.llama_cpp.semantics import NAME
from loadmaster.systems.shared.layered import in_runs, inference_layers, layer_of

#: Entries that ``--tensor-split`` takes: one less than ``llama_max_devices()``.
MAX_GPUS = 15


def llama_cpp(
    problem: Problem, *, root: str = "", layers: str | None = None, gpus: int | None = None
) -> Candidate:
    """The best division into layers on the CPU, and runs on GPUs.

    Parameters
    ----------
    problem : Problem
        Of an inference.
    root : str
        What the model is called in the graph's module paths, where it was traced as part of a
        larger one.
    layers : str, optional
        The module list that holds the layers; the longest in the model if absent.
    gpus : int, optional
        GPUs that are used. Absent: the best number.

    Raises
    ------
    InputError
        A training step, or a model without a list of layers; more GPUs than there are.
    InfeasibleError
        CPU and GPUs do not hold the layers.

    Notes
    -----
    The number of layers on the CPU is bisected: the fewest with which GPUs hold the others.
    """
    layer_list = inference_layers(NAME, problem, root, layers)
    layer = layer_of(problem, layer_list)
    family = [name for name, _ in families(problem.cluster)]
    cpu = next((d for d, name in enumerate(family) if name == "cpu"), None)
    on_gpus = [d for d, name in enumerate(family) if name != "cpu"][:MAX_GPUS]
    if gpus is not None:
        checks.integer("gpus", gpus, 0, len(on_gpus))
    candidates = []
    for n in range(1, len(on_gpus) + 1) if gpus is None else [gpus]:
        if (one := _fewest_on_cpu(problem, layer, len(layer_list), on_gpus[:n], cpu)) is not None:
            candidates.append(one)
    if cpu is not None and not gpus:
        candidates += [one for one in [in_runs(problem, layer, [cpu], cpu)] if one is not None]
    if not candidates:
        raise InfeasibleError(
            f"the CPU and {len(on_gpus)} GPUs do not hold {len(layer_list)} layers: "
            "give more memory"
        )
    return problem.objective.best(candidates)


def _fewest_on_cpu(
    problem: Problem, layer: np.ndarray, n: int, gpus: list[int], cpu: int | None
) -> Candidate | None:
    """As many layers on the GPUs as they hold, from the last one on; None: not one."""

    def with_first(k: int) -> Candidate | None:
        return in_runs(problem, np.maximum(layer - k, -1), gpus, gpus[0] if cpu is None else cpu)

    best = with_first(0)
    if best is not None or cpu is None:
        return best
    low, high = 0, n
    while high - low > 1:
        middle = (low + high) // 2
        if (one := with_first(middle)) is None:
            low = middle
        else:
            best, high = one, middle
    return best
