"""PyTorch's DTensor: parallel styles of modules inside of data parallelism.

The labelling solver says which parameters it would cut on the inner axis, with the labels of
Megatron (:mod:`loadmaster.strategies.sharding.megatron`). What styles of modules make of these is
walked through (:mod:`.module_styles`); what they cannot say stays whole. The forward pass then has
these labels, and those of the backward pass follow from them (:mod:`.backward_labels`). The outer
axis shares the batch, with parameters whole or in parts (``fully_shard``); or there are two,
replicas of devices that have a part each (HSDP).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from loadmaster.base import checks
from loadmaster.base.effort import Budget
from loadmaster.base.errors import InfeasibleError, InputError
from loadmaster.base.progress import Progress
from loadmaster.dimensions.form import REPLICATE
from loadmaster.judge.problem import Problem
from loadmaster.model.graph import PARAMETER, OpGraph
from loadmaster.model.module_paths import alike
from loadmaster.model.recipe import DeviceMesh
from loadmaster.strategies.candidate import Candidate
from loadmaster.strategies.sharding.judging import layout
from loadmaster.strategies.sharding.own_share import own_share
from loadmaster.strategies.sharding.ranking import Ranked, best_of
from loadmaster.strategies.sharding.solving import Solver
from loadmaster.strategies.sharding.space import Space
from loadmaster.strategies.sharding.structure import Structure
from loadmaster.strategies.sharding.uniform import TENSOR, Mask, by_batch, roles_only
from loadmaster.strategies.sharding.units import by_processes, unit_patterns
from loadmaster.systems.dtensor.backward_labels import Backward
from loadmaster.systems.dtensor.chosen_styles import to_document
from loadmaster.systems.dtensor.module_styles import SEQUENCE, Forward, Styled
from loadmaster.systems.registry import refused
from loadmaster.systems.shared.judged_meshes import best_judged
from loadmaster.systems.shared.uniform_meshes import (
    DATA,
    MODEL,
    PARTS,
    REPLICAS,
    in_two,
    of_most_devices,
    tensor_parts,
    uniform_meshes,
)
from loadmaster.transforms.samples import joined_samples

#: Options that are sizes of axes.
_SIZES = ("replicate", "shard", "tp")

#: The share of the forward pass's time that an axis shares at least.
_SHARED = 0.01


def place(
    problem: Problem,
    *,
    tp: int | None = None,
    replicate: int | None = None,
    shard: int | None = None,
    sequence: bool | None = None,
    reshard: bool | None = None,
    time_limit: float | None = None,
    progress: Progress | None = None,
) -> Candidate:
    """The best mesh of data and tensor parallelism, and the styles of modules on it.

    Parameters
    ----------
    problem : Problem
    tp : int, optional
        Size of the inner axis, which must divide the number of devices in use; absent: the best.
    replicate : int, optional
        How many replicas of parameters share the batch; 1: none. Absent: the best number.
    shard : int, optional
        How many devices that share the batch have a part each of a replica; 1: parameters are
        whole. Absent: the best number. The three sizes multiply to the number of devices in use.
    sequence : bool, optional
        Whether what lies between the products is cut by tokens (sequence parallelism), where styles
        of modules can say that; absent: where it is shorter.
    reshard : bool, optional
        Whether layers that lie in parts are gathered again in the backward pass; absent: if that is
        faster, or memory asks for it.
    time_limit : float, optional
        Seconds on the clock; what is under way is finished first.
    progress : callable, optional
        Called with the mesh and the best step time whenever there is a better plan.

    Raises
    ------
    InputError
        The graph does not say what its ops were called with; a size that does not divide; the
        model is of another kind.
    InfeasibleError
        It does not fit.
    """
    asked = Sizes(replicate, shard, tp, reshard)
    space = Space.of(problem)
    budget = Budget.make(None, time_limit) if time_limit is not None else Budget(1.0, None)
    joins = joined_samples(problem.model)
    shapes = [mesh for mesh in uniform_meshes(problem) if next(asked.open(mesh), None)]
    if joins:  # Each process would have the loss of its samples alone.
        shapes = [mesh for mesh in shapes if tensor_parts(mesh) == mesh.size]
    if not shapes and joins:
        raise refused("dtensor", joins)
    if not shapes:
        n = max((mesh.size for mesh in uniform_meshes(problem)), default=1)
        if n == 1:
            raise refused(
                "dtensor", "one device can be used, or is of the fastest kind: plan for more"
            )
        raise InputError(
            f"{asked}: these are no sizes of a mesh of all {n} devices that can be used"
        )
    tries = (False, True) if sequence is None else (sequence,)
    rows = _styled(space, shapes, asked, budget, tries)
    ranked = best_of(rows, of_most_devices(shapes))
    if not ranked:
        reason = "no batch can be shared, and no weight be cut, evenly"
        raise refused("dtensor", f"{joins}; no weight can be cut evenly" if joins else reason)
    words = "styles of modules"
    candidate, labels = best_judged(space, ranked, words, budget, progress, _judged)
    assert isinstance(labels, RankedStyles)
    styled = labels.way.styled(space.structure, labels.mesh)
    return replace(candidate, for_writer=to_document(styled))


def _judged(space: Space, ranked: Ranked) -> Candidate:
    """Labels as processes of PyTorch run them."""
    problem = space.source
    devices = ranked.mesh.on(problem.cluster).tolist()
    candidate = by_processes(problem, devices, layout(space, ranked), space.recompute)
    estimate = ranked.labels.estimate.step_time
    return replace(candidate, assignment=replace(candidate.assignment, estimate=estimate))


@dataclass(frozen=True)
class Sizes:
    """Sizes of a mesh that a user may have asked for, and whether units are gathered again; None:
    all are tried.
    """

    replicate: int | None = None
    shard: int | None = None
    tp: int | None = None
    reshard: bool | None = None

    def __post_init__(self) -> None:
        for name in _SIZES:
            if (value := getattr(self, name)) is not None:
                checks.integer(name, value, 1)

    def __str__(self) -> str:
        said = ((name, getattr(self, name)) for name in _SIZES)
        return ", ".join(f"{name} is {value}" for name, value in said if value is not None)

    def words(self, mesh: DeviceMesh, state: str) -> list[str]:
        """The words of units to try on a mesh: parameters that are whole are kept anyway."""
        if PARTS not in mesh.names and state == "whole":
            return ["kept"]
        return {False: ["kept"], True: ["again"], None: ["kept", "again"]}[self.reshard]

    def open(self, mesh: DeviceMesh) -> Iterator[tuple[DeviceMesh, str]]:
        """A mesh of one axis of data, and those with that axis in two, each with how parameters lie
        on the outermost axis.
        """
        if self.tp not in (None, tensor_parts(mesh)):
            return
        n = mesh.size // tensor_parts(mesh)
        ways = [(mesh, "whole", n, 1)]
        ways += [(mesh, "flat", 1, n)] if n > 1 else []
        for two in in_two(mesh):
            parts = two.shape[two.names.index(PARTS)]
            ways.append((two, "whole", n // parts, parts))
        for one, state, replicas, parts in ways:
            if self.replicate in (None, replicas) and self.shard in (None, parts):
                yield one, state


def _styled(
    space: Space, shapes: list[DeviceMesh], asked: Sizes, budget: Budget, tries: tuple[bool, ...]
) -> Iterator[Ranked]:
    """Labels that styles can say, of every mesh; of the best mesh with fewer modules cut, too."""
    best: tuple[Ranked, Way] | None = None
    for shape in shapes:
        if best is not None and best[0].fits and space.work / shape.size > best[0].key[1]:
            continue
        for mesh, way in _ways(space, shape, asked, tries):
            if budget.is_cut:
                return
            if best is not None and best[0].fits and floor(space, mesh, way) > best[0].key[1]:
                continue
            ranked = solved(space, mesh, way)
            if ranked is not None:
                yield ranked
                best = min((best, (ranked, way)), key=_rank) if best else (ranked, way)
    if best is not None:
        yield from _fewer(space, *best)


@dataclass(frozen=True)
class Way:
    """Choices that are open once a mesh is chosen.

    Attributes
    ----------
    state : str
        How parameters lie on the outermost axis: "whole" or "flat".
    specs : dict of int to int
        The factors by which parameters are cut on the inner axis, by node.
    sequence : bool
        Whether what lies between the products is cut by tokens.
    inner : bool [n_nodes, most labels], or None
        Labels that nodes may have on the inner axis; None: there is none.
    word : str
        Whether units stay gathered until the backward pass: "kept" or "again".
    """

    state: str
    specs: dict[int, int]
    sequence: bool = False
    inner: Mask | None = None
    word: str = "kept"

    def units(self, graph: OpGraph, mesh: DeviceMesh) -> dict[str, str]:
        """The modules that the written file wraps; none where nothing shares the batch."""
        if mesh.names == (MODEL,):
            return {}
        return {**dict.fromkeys(unit_patterns(graph), self.word), ".": "kept"}

    def styled(self, structure: Structure, mesh: DeviceMesh) -> Styled:
        """The styles of modules on a mesh, as they were found in planning."""
        if self.inner is None:
            return Styled({}, {}, {})
        return Forward.of(structure, tensor_parts(mesh)).styled(self.specs, sequence=self.sequence)


@dataclass(frozen=True)
class RankedStyles(Ranked):
    """Labels that styles of modules say, and the choices that they follow from."""

    way: Way = field(kw_only=True)


def _rank(one: tuple[Ranked, Way]) -> tuple[bool, float]:
    return one[0].key


def _ways(
    space: Space, mesh: DeviceMesh, asked: Sizes, tries: tuple[bool, ...]
) -> Iterator[tuple[DeviceMesh, Way]]:
    """All columns, then rows; and what the solver would cut. Each with sequence parallelism, too,
    or as ``tries`` has it, where that can be said; and with all that is open of the outer axis.
    """
    forward = Forward.of(space.structure, tensor_parts(mesh))
    for specs in _cuts(space, mesh) if MODEL in mesh.names else [{}]:
        for sequence in dict.fromkeys(one and by_tokens(forward, specs) for one in tries):
            inner = pinned(forward, specs, sequence) if MODEL in mesh.names else None
            for one, state in asked.open(mesh):
                for word in asked.words(one, state):
                    yield one, Way(state, specs, sequence, inner, word)


def _cuts(space: Space, mesh: DeviceMesh) -> Iterator[dict[int, int]]:
    structure, size = space.structure, tensor_parts(mesh)
    forward, one = Forward.of(structure, size), DeviceMesh.of({MODEL: size}, mesh.devices[:size])
    tried = [forward.columns_then_rows()]
    mask = roles_only(structure, TENSOR, ("whole", *TENSOR))
    with suppress(InfeasibleError):
        tried.append(proposed(forward, Solver(space.setting(one), [mask]).solve(1.0).columns[0]))
    seen: list[dict[int, int]] = []
    for wanted in tried:
        specs, _ = expressible(forward, wanted)
        if specs and specs not in seen:
            seen.append(specs)
            yield specs


def floor(space: Space, mesh: DeviceMesh, way: Way) -> float:
    """Seconds that no step on a mesh is shorter than: outer axes share all work, the inner one what
    may be cut there.
    """
    structure, inner = space.structure, tensor_parts(mesh)
    seconds = space.problem.costs.time[structure.op].min(axis=1)
    if way.inner is not None:
        seconds = seconds / np.where(way.inner[:, 1:].any(axis=1), inner, 1)
    return float(seconds.sum()) / (mesh.size // inner)


def solved(space: Space, mesh: DeviceMesh, way: Way) -> Ranked | None:
    """The cheapest labels of a way; None: there are none, or an axis shares next to nothing of the
    forward pass: its devices would do the same.
    """
    structure = space.structure
    states = {DATA: way.state, REPLICAS: "whole", PARTS: "flat"}
    masks = [_own(structure, states[name]) for name in mesh.names if name in states]
    masks += [way.inner] if way.inner is not None else []
    units = way.units(structure.graph, mesh)
    solver = Solver(replace(space.setting(mesh), units=units), masks)
    try:
        labels = solver.solve(1.0)
    except InfeasibleError:
        return None
    nodes = Forward.of(structure, 1).nodes
    seconds = space.problem.costs.time[structure.op[nodes]].min(axis=1)
    # Parts of sums are no share of the work: every device adds as much.
    shares = ~structure.ways.with_role(("whole", "partial"))[structure.way[nodes]]
    is_shared = shares[np.arange(len(nodes)), labels.columns[:, nodes]]
    if (is_shared @ seconds < _SHARED * seconds.sum()).any():
        return None
    return RankedStyles(mesh, labels, solver, labels.fits(space.memory(mesh)), units, way=way)


def _own(structure: Structure, state: str) -> Mask:
    """Labels of an axis that shares the batch, where parameters lie as ``state`` says."""
    mask, ways = by_batch(structure, state), structure.ways
    own = ways.label[structure.way] == own_share(structure.graph)[structure.op][:, None]
    own &= np.arange(own.shape[1]) < ways.n_labels[structure.way, None]
    return np.where((own.any(axis=1) & ~structure.in_update)[:, None], own, mask)


def _fewer(space: Space, ranked: Ranked, way: Way) -> Iterator[Ranked]:
    """The same with modules of one kind after another whole, as long as that gains."""
    forward = Forward.of(space.structure, tensor_parts(ranked.mesh))
    groups = dict.fromkeys(_group(forward.module[node]) for node in way.specs)
    for group in groups:
        kept = {n: spec for n, spec in way.specs.items() if _group(forward.module[n]) != group}
        specs, _ = expressible(forward, kept)
        if not specs or specs == way.specs:
            continue
        sequence = way.sequence and by_tokens(forward, specs)
        inner = pinned(forward, specs, sequence)
        other = replace(way, specs=specs, sequence=sequence, inner=inner)
        without = solved(space, ranked.mesh, other)
        if without is not None:
            yield without
            if without.key < ranked.key:
                ranked, way = without, other


def _group(module: str) -> str:
    """Modules that are cut together: those beside each other, in all layers; alone at the top."""
    parent = module.rpartition(".")[0]
    return alike(parent) if "*" in alike(parent) else alike(module)


def proposed(forward: Forward, columns: NDArray[np.int64]) -> dict[int, int]:
    """The factors by which labels cut parameters, by node."""
    specs = {node: forward.spec(node, int(columns[node])) for node in forward.parameters}
    return {node: spec for node, spec in specs.items() if spec >= 0}


def expressible(forward: Forward, specs: dict[int, int]) -> tuple[dict[int, int], Styled]:
    """The parameters among some that can be cut by styles of modules, and what becomes of it.

    Where a module cannot say it, its own parameters stay whole; or those of the modules beside it.
    """
    while True:
        styled = forward.styled(specs)
        if not styled.reasons or not specs:
            return specs, styled
        kept = {n: spec for n, spec in specs.items() if not forward.is_of(n, styled.reasons)}
        if len(kept) == len(specs):
            kept = {
                n: spec for n, spec in specs.items() if not forward.is_beside(n, styled.reasons)
            }
        specs = kept if len(kept) < len(specs) else {}


def by_tokens(forward: Forward, specs: dict[int, int]) -> bool:
    """True if styles can say that tensors between the products are cut by tokens."""
    if not specs:
        return False
    styled = forward.styled(specs, sequence=True)
    return not styled.reasons and any(s.kind == SEQUENCE for s in styled.styles.values())


def pinned(forward: Forward, specs: dict[int, int], sequence: bool) -> Mask:
    """Labels that each node may have: of both passes one, that which styles of modules make of it;
    of parameters those by which they are cut.
    """
    structure = forward.structure
    ways, way = structure.ways, structure.way
    roles = (*TENSOR, *["token"] * sequence)
    mask = roles_only(structure, roles, ("whole", *TENSOR, "parameter"))
    styled = forward.styled(specs, sequence=sequence)
    column = styled.column | Backward(forward, styled, specs, mask).columns()
    labels, nodes = np.arange(mask.shape[1]), np.array(list(column), dtype=np.int64)
    mask[nodes] = labels == np.array(list(column.values()))[:, None]
    spec = np.full(structure.n, REPLICATE, dtype=np.int64)
    spec[list(specs)] = list(specs.values())
    own = np.array(forward.parameters, dtype=np.int64)
    lies = ways.outputs[ways.first_output[way[own]]] == spec[own, None]
    mask[own] = lies & (labels < ways.n_labels[way[own], None])
    return _with_states_as_parameters(structure, mask, spec)


def _with_states_as_parameters(structure: Structure, mask: Mask, spec: NDArray[np.int64]) -> Mask:
    """The mask with updates and their slots cut as their parameter is, by its spec; whole where
    they have no such label.
    """
    ways, updates = structure.ways, structure.updates
    parameter = np.full(updates.n, -1)
    parameter[updates.of_parameter] = structure.node[updates.parameter]
    nodes = np.flatnonzero(structure.in_update & (structure.stands_for != PARAMETER))
    way, owner = structure.way[nodes], parameter[updates.of_op[structure.op[nodes]]]
    lies = mask[nodes] & (ways.outputs[ways.first_output[way]] == spec[owner, None])
    lies[~lies.any(axis=1), 0] = True
    mask[nodes] = lies
    return mask
