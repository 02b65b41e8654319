"""Inference as SGLang divides it."""

from __future__ import annotations

from loadmaster.judge.problem import Problem
from loadmaster.strategies.candidate import Candidate
from loadmaster.systems.sglang.semantics import NAME
from loadmaster.systems.shared.serving import served


def sglang(
    problem: Problem,
    *,
    root: str = "",
    layers: str | None = None,
    tp: int | None = None,
    pp: int | None = None,
    expert_parallel: bool | None = None,
) -> Candidate:
    """The best sizes of tensor parallelism and of pipeline parallelism.

    Parameters
    ----------
    problem : Problem
        Of an inference.
    root : str
        What the model is called in the graph's module paths, where it was traced as part of a
        larger one.
    layers : str, optional
        The module list that holds the layers; the longest in the model if absent.
    tp, pp : int, optional
        Sizes. Absent: all whose product the devices are enough for. An encoder has no stages:
        SGLang's classes of encoders know none.
    expert_parallel : bool, optional
        Whether each device of a stage has some routed experts whole, or a part of each. Absent:
        what is better.

    Raises
    ------
    InputError
        A training step, a model of another kind, stages of an encoder; sizes that devices, layers
        or heads do not go into.
    InfeasibleError
        Nothing of that fits.
    """
    return served(problem, NAME, root, layers, tp, pp, expert_parallel)
