"""Training as Megatron-LM divides it: tensor parallelism in replicas, or a pipeline of layers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from loadmaster.base.errors import InfeasibleError, InputError
from loadmaster.base.progress import Progress
from loadmaster.dimensions.dimensions import Dimensions
from loadmaster.judge.problem import Problem
from loadmaster.model.recipe import Mesh
from loadmaster.rules.layer_list import LayerList
from loadmaster.strategies.attempts import Outcome, accepted
from loadmaster.strategies.candidate import Candidate
from loadmaster.strategies.pipelines.chains import pools
from loadmaster.strategies.pipelines.cuts import cuts
from loadmaster.strategies.pipelines.lines import Line
from loadmaster.strategies.pipelines.pipeline import Asked, fastest
from loadmaster.strategies.pipelines.space import lacks
from loadmaster.strategies.sharding.space import Space
from loadmaster.strategies.simple import single
from loadmaster.strategies.targets.base import Semantics, refused, target
from loadmaster.strategies.targets.layered import listed_layers
from loadmaster.strategies.targets.pipelining import ModuleSpace
from loadmaster.strategies.targets.tensor_parallel import divides, weights_cut
from loadmaster.transforms.shares import batch_size

NAME = "megatron"

SEMANTICS = Semantics(
    system="Megatron-LM",
    models="a training step of a transformer: a list of layers with attention, and a batch",
    splits="heads, features and vocabulary over tp devices, tokens between the products, and the "
    "batch over dp; or the batch into micro-batches",
    unit="all layers on all devices; or runs of layers, one per device, or two where interleaved",
    moves="gradients of replicas; activations within layers, or from one run to the next",
    launches="each rank its own ops",
    memory="parameters, gradients and optimizer state of the rank, and activations",
)


@target(NAME, SEMANTICS)
def megatron(
    problem: Problem,
    *,
    root: str = "",
    layers: str | None = None,
    tp: int | None = None,
    pp: int | None = None,
    micro_batches: int | None = None,
    sequence: bool = True,
    time_limit: float | None = None,
    progress: Progress | None = None,
) -> Candidate:
    """The best of tensor parallelism inside of replicas, of each size, and of pipelines.

    Parameters
    ----------
    problem : Problem
        Of a training step.
    root : str
        What the model is called in the graph's module paths, where it was traced as part of a
        larger one.
    layers : str, optional
        The module list that holds the layers; the longest in the model if absent.
    tp, pp : int, optional
        Sizes. Absent: several are tried.
    micro_batches : int, optional
        Of a pipeline. Absent: several numbers are tried.
    sequence : bool
        Whether what lies between the products may be cut by tokens (sequence parallelism).
    time_limit, progress
        As :func:`loadmaster.strategies.pipelines.pipeline.place` has them.

    Raises
    ------
    InputError
        An inference, a model without a list of layers, both ``tp`` and ``pp`` above 1.
    InfeasibleError
        Nothing of that fits.

    Notes
    -----
    Stages that are themselves shared among devices are not planned.
    """
    if min(tp or 1, pp or 1) > 1:
        raise InputError(
            f"tp is {tp} and pp is {pp}: stages that are tensor parallel are not planned; give one"
        )
    if "b" not in problem.model.phases:
        raise refused(NAME, "the graph has no backward pass")
    if batch_size(problem.model) is None:
        raise refused(NAME, "nobody says how many samples the batch has")
    found = listed_layers(NAME, problem, root, layers)
    made: list[Candidate] = []
    if (pp or 1) == 1:
        made += _tensor_parallel(problem, found, tp, sequence=sequence)
    if (tp or 1) == 1 and pp != 1 and not lacks(problem):
        batch = ModuleSpace.of(problem).batch
        space = LayerSpace(problem, batch, found=found.cuts, listed=found)
        counts, numbers = space.checked(micro_batches, pp)
        counts = [m for m in counts if space.batch % m == 0]
        asked = Asked(counts, numbers, ("1f1b", "interleaved-1f1b"))
        best = fastest(space, asked, time_limit=time_limit, progress=progress)
        made += [] if best is None else [best[1].with_recipe(best[0])]
    if not made:
        raise InfeasibleError(
            "no replicas of equal parts of the batch, no heads in equal parts, and no runs of "
            f"{len(found)} layers that fit: give more memory, or a batch that more devices divide"
        )
    best_one = problem.objective.best(made)
    return accepted(best_one.problem, Outcome(best_one, 1.0))


def _tensor_parallel(
    problem: Problem, found: LayerList, tp: int | None, *, sequence: bool
) -> list[Candidate]:
    """Tensor parallelism of each size inside of replicas, on the devices of the commonest kind."""
    devices = max(pools(problem), key=lambda pool: len(pool.devices)).devices
    n, batch = len(devices), batch_size(problem.model) or 1
    names = [problem.cluster.devices[d].name for d in devices]
    if n == 1:
        return [single.place(problem)] if (tp or 1) == 1 else []
    try:
        space = Space.of(problem)
    except InputError:
        return []
    dimensions = Dimensions.of(problem.model)
    made = []
    for size in [k for k in range(1, n + 1) if n % k == 0] if tp is None else [tp]:
        dp = n // size
        if dp * size != n or batch % dp or (size > 1 and not divides(dimensions, size)):
            continue
        axes = {name: k for name, k in (("dp", dp), ("tp", size)) if k > 1}
        one = weights_cut(space, Mesh.of(axes, names), found, sequence=sequence)
        made += [] if one is None else [one]
    return made


@dataclass(frozen=True, eq=False)
class LayerSpace(ModuleSpace):
    """Pipelines that are cut between layers."""

    listed: LayerList | None = None

    @cached_property
    def lines(self) -> list[tuple[Line, NDArray[np.int64]]]:
        """The one order, with the places at which layers begin, but for the first."""
        assert self.listed is not None
        line = self.line
        is_open = np.zeros_like(line.is_open)
        is_open[[0, *self.listed.begins[1:], -1]] = True
        line = Line(line.place, is_open & line.is_open)
        return [(line, cuts(self.problem, line))]

    def allows(self, schedule: str, m: int, p: int, stage: NDArray[np.int32]) -> bool:
        """Whether Megatron has the schedule with such numbers."""
        return m >= p if schedule == "1f1b" else m % p == 0
