"""Space of labellings of one problem: all that is the same on every mesh."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from loadmaster.base.errors import InputError
from loadmaster.dimensions.dimensions import Dimensions
from loadmaster.dimensions.form import OWNER
from loadmaster.judge.problem import Problem
from loadmaster.model.graph import OpGraph
from loadmaster.model.program import Program
from loadmaster.model.recipe import BUCKET_BYTES, DeviceMesh, Recipe
from loadmaster.strategies.sharding.fixed import fixed, masks
from loadmaster.strategies.sharding.frame import Frame
from loadmaster.strategies.sharding.joint import joint
from loadmaster.strategies.sharding.parts import Parts
from loadmaster.strategies.sharding.solving import Solver
from loadmaster.strategies.sharding.structure import Structure
from loadmaster.strategies.sharding.tables import Setting
from loadmaster.strategies.sharding.tying import part_played
from loadmaster.strategies.sharding.uniform import Mask, roles_only
from loadmaster.transforms.recomputation import recompute

#: The attribute of a problem that keeps what is joined there.
_KEPT = "_spaces"


@dataclass(frozen=True, eq=False)
class Space:
    """A problem, what is labelled in it, and what that joins.

    Attributes
    ----------
    problem : Problem
    parts : Parts
    frame : Frame
    source : Problem
        The problem in which nothing is recomputed yet: ``problem`` itself, if nothing is.
    recompute : tuple of str
        Patterns of the modules that ``problem`` recomputes.
    again : Program or None
        The graph of ``problem``, made of that of ``source``.
    share : float
        Share of the memory of devices that labels may fill.
    recipe : Recipe or None
        That fixes some labels, and the mesh.
    allowed : list of bool [n_nodes, most labels], or None
        Per axis of the recipe's mesh, which labels each node may have.
    batch_norm : "local" or "synchronised"
        Where batch norms have their statistics from: the recipe's word, if there is one.
    solvers : dict
        Those that there are: what they found stands for any share of the memory.
    settings : dict
        Those of meshes.
    of_batch : dict of int to float
        Seconds of the shortest step with all work shared by the batch, by estimates, by the
        number of devices.
    """

    problem: Problem
    parts: Parts
    frame: Frame
    source: Problem
    recompute: tuple[str, ...] = ()
    again: Program | None = None
    share: float = 1.0
    recipe: Recipe | None = None
    allowed: Sequence[Mask] | None = None
    batch_norm: str = "local"
    solvers: dict[tuple[DeviceMesh, tuple[str, ...]], Solver] = field(default_factory=dict)
    settings: dict[DeviceMesh, Setting] = field(default_factory=dict)
    of_batch: dict[int, float] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        problem: Problem,
        modules: Sequence[str] = (),
        recipe: Recipe | None = None,
        batch_norm: str = "local",
    ) -> Space:
        """The space of a problem, with the activations of some modules recomputed, and labels that
        a recipe fixes.

        Raises
        ------
        InputError
            The graph says neither what its ops were called with nor how large tensors are; what
            :func:`loadmaster.transforms.recompute` refuses.
        """
        if not has_shapes(problem.model):
            raise InputError(
                "the graph says neither what its ops were called with (ops.args) nor the shapes of "
                "their outputs (ops.output), so it is not known how they can be cut: read it again "
                "from the model, or capture it"
            )
        source, again = problem, recompute(problem.model, modules) if modules else None
        problem = problem if again is None else problem.transformed(again)
        batch_norm = recipe.batch_norm if recipe else batch_norm
        if again is None and recipe is None:
            parts, frame = _unfixed(problem, batch_norm)
            return cls(problem, parts, frame, source, batch_norm=batch_norm)
        structure = Structure.of(Dimensions.of(problem.model), batch_norm)
        parts = Parts(problem, structure, batch_norm)
        tied = part_played(structure, parts.nature)
        if again is not None:
            tied = _as_their_origins(structure, again, tied)
        allowed = None
        if recipe is not None:
            columns = fixed(Dimensions.of(source.model), structure, recipe, again)
            # What has to be otherwise than its like in another layer is not tied to it.
            tied, allowed = joint(tied, *columns), masks(structure, columns)
        frame = Frame.of(parts, tied)
        return cls(
            problem,
            parts,
            frame,
            source,
            tuple(modules),
            again,
            recipe=recipe,
            allowed=allowed,
            batch_norm=batch_norm,
        )

    @property
    def structure(self) -> Structure:
        """The nodes that are labelled."""
        return self.parts.structure

    @cached_property
    def work(self) -> float:
        """Seconds of all ops on the fastest device."""
        return float(self.problem.time.sum(axis=0).min())

    def setting(self, mesh: DeviceMesh) -> Setting:
        """The setting of a mesh."""
        if mesh not in self.settings:
            size = BUCKET_BYTES if self.recipe is None else self.recipe.bucket_bytes
            self.settings[mesh] = Setting.of(self.parts, mesh, self.frame, size)
        return self.settings[mesh]

    def solver(self, mesh: DeviceMesh) -> Solver:
        """The solver of a mesh."""
        key = mesh, ()
        if key not in self.solvers:
            self.solvers[key] = Solver(self.setting(mesh), self.allowed)
        return self.solvers[key]

    def solver_of_batch(self, mesh: DeviceMesh, state: tuple[str, ...]) -> Solver:
        """The solver of a mesh of one axis with all work shared by the batch; roles of updates are
        ``state``.
        """
        key = mesh, state
        if key not in self.solvers:
            mask = roles_only(self.structure, ("batch",), state)
            allowed = [mask if self.allowed is None else mask & self.allowed[0]]
            self.solvers[key] = Solver(self.setting(mesh), allowed)
        return self.solvers[key]

    @cached_property
    def has_uneven_experts(self) -> bool:
        """True where experts that are modules of their own have more to do than their
        fair share.
        """
        return self.problem.expert_imbalance > 1 and bool((self.structure.expert[1] > 1).any())

    def solver_of_cut_experts(self, mesh: DeviceMesh) -> Solver:
        """The solver of a mesh on which no device has experts of its own."""
        key = mesh, ("expert",)
        if key not in self.solvers:
            ways, way = self.structure.ways, self.structure.way
            mask = ~ways.shares_experts[way]
            # A parameter or an update may be on one device all the same, unless it is an expert's.
            of_expert = (self.structure.expert[1] > 1)[:, None]
            mask = mask & ~(of_expert & (ways.label[way] == OWNER))
            every = self.allowed or [mask] * len(mesh.axes)
            self.solvers[key] = Solver(self.setting(mesh), [mask & one for one in every])
        return self.solvers[key]

    def memory(self, mesh: DeviceMesh) -> float:
        """Bytes of the smallest device of a mesh that may be filled."""
        return self.share * float(self.problem.capacity[mesh.on(self.problem.cluster)].min())


def _unfixed(problem: Problem, batch_norm: str) -> tuple[Parts, Frame]:
    """The parts and the frame of a problem with nothing recomputed or fixed, made once."""
    known: dict[str, tuple[Parts, Frame]] = vars(problem).setdefault(_KEPT, {})
    if batch_norm not in known:
        structure = Structure.of(Dimensions.of(problem.model), batch_norm)
        parts = Parts(problem, structure, batch_norm)
        known[batch_norm] = parts, Frame.of(parts, part_played(structure, parts.nature))
    return known[batch_norm]


def can_be_sharded(problem: Problem) -> bool:
    """True for a problem of several devices whose ops are known to be cut in some way."""
    several = problem.cluster.n_devices > 1 and problem.program.is_plain
    return several and has_shapes(problem.model)


def has_shapes(graph: OpGraph) -> bool:
    """True for a graph with arguments of calls, or with sizes that may tell them."""
    return graph.args is not None or any(graph.outputs)


def _as_their_origins(
    structure: Structure, again: Program, tied: NDArray[np.int64]
) -> NDArray[np.int64]:
    """The ties of nodes, with every op that is recomputed tied to the one that it repeats."""
    first = structure.node[again.first[again.serves[structure.op]]]
    is_alike = (first >= 0) & (structure.way[np.maximum(first, 0)] == structure.way)
    return np.where(is_alike, tied[np.maximum(first, 0)], tied)
