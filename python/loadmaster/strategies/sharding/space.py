"""What is known of sharding one problem, whatever the mesh."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from loadmaster.base.errors import InputError
from loadmaster.dimensions.dimensions import Dimensions
from loadmaster.judge.problem import Problem
from loadmaster.model.recipe import Mesh
from loadmaster.strategies.sharding.frame import Frame
from loadmaster.strategies.sharding.parts import Parts
from loadmaster.strategies.sharding.structure import Structure
from loadmaster.strategies.sharding.tables import Setting
from loadmaster.strategies.sharding.tying import part_played


@dataclass(frozen=True, eq=False)
class Space:
    """A problem, what is labelled in it, and what that joins.

    Attributes
    ----------
    problem : Problem
    parts : Parts
    frame : Frame
    share : float
        Share of the memory of devices that labels may fill.
    """

    problem: Problem
    parts: Parts
    frame: Frame
    share: float = 1.0

    @classmethod
    def of(cls, problem: Problem) -> Space:
        """The space of a problem.

        Raises
        ------
        InputError
            The graph does not say what its ops were called with.
        """
        if problem.model.args is None:
            raise InputError(
                "the graph does not say what its ops were called with (ops.args), so it is not "
                "known how they can be cut: read it again from the model, or capture it"
            )
        structure = Structure.of(Dimensions.of(problem.model))
        parts = Parts(problem, structure)
        tied = part_played(structure, parts.nature)
        return cls(problem, parts, Frame.of(parts, tied))

    @property
    def structure(self) -> Structure:
        """What is labelled."""
        return self.parts.structure

    @cached_property
    def work(self) -> float:
        """Seconds of all ops on the fastest device."""
        return float(self.problem.time.sum(axis=0).min())

    def setting(self, mesh: Mesh) -> Setting:
        """The setting of a mesh."""
        return Setting.of(self.parts, mesh, self.frame)

    def memory(self, mesh: Mesh) -> float:
        """Bytes of the smallest device of a mesh that may be filled."""
        return self.share * float(self.problem.capacity[mesh.on(self.problem.cluster)].min())

    def labels(self, columns: NDArray[np.int64]) -> NDArray[np.int32]:
        """Labels per axis and op of the graph, int32 [n_axes, n_ops], from those of nodes."""
        structure = self.structure
        found = np.zeros((len(columns), structure.graph.n_ops), dtype=np.int32)
        found[:, structure.op] = structure.ways.label[structure.way, columns]
        return found


def can_be_sharded(problem: Problem) -> bool:
    """Whether there are several devices, and the arguments of calls are known."""
    graph = problem.model
    several = problem.cluster.n_devices > 1 and problem.program.is_plain
    return several and graph.args is not None
